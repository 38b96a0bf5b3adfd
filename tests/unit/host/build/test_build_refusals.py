"""What cannot fit the disk or the lock is refused before anything is pulled or built."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flagbench.build.builder import Builder, find_target
from flagbench.build.options import BuildOptions
from flagbench.build.progress import Progress
from flagbench.build.results import ImageResult
from flagbench.catalog.model import Catalog
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.model import Lock

ON_DEBIAN = BuildOptions(base="debian:bookworm-slim")
Engine = Any
"""The engine in memory of this folder's conftest."""


def build(
    catalog: Catalog, engine: Engine, name: str = "distilbert:mini", options: BuildOptions = ON_DEBIAN
) -> ImageResult:
    """One image."""
    return Builder(catalog, options, engine, Progress(stream=io.StringIO())).build(find_target(name, catalog))


def test_a_full_disk_is_met_before_anything_is_built(mini: Catalog, engine: Engine) -> None:
    engine.free = 50_000_000
    with pytest.raises(FlagbenchError) as refused:
        build(mini, engine)
    assert "0.1 GB" in refused.value.message
    assert refused.value.code is ExitCode.BUILD_FAILED
    assert engine.requests == []


def test_a_base_that_is_here_takes_no_more_space(mini: Catalog, engine: Engine) -> None:
    engine.images["debian:bookworm-slim"] = replace(engine.images["debian:bookworm-slim"], size=40_000_000_000)
    engine.free = 1_000_000_000
    assert not build(mini, engine).top.skipped


@pytest.mark.parametrize("locked", [True, False])
def test_nothing_is_pulled_where_the_packages_do_not_fit(
    locked: bool, mini: Catalog, engine: Engine, mini_lock: Callable[..., Lock]
) -> None:
    digest = "sha256:" + "d" * 64
    mini_lock(base_digest=digest if locked else None)
    reference = f"debian:bookworm-slim@{digest}" if locked else "vendor/base:1"
    engine.registry[reference] = engine.images["debian:bookworm-slim"]
    engine.free = 50_000_000
    with pytest.raises(FlagbenchError) as refused:
        build(mini, engine, options=BuildOptions(base=None if locked else reference))
    assert refused.value.code is ExitCode.BUILD_FAILED
    assert engine.pulled == []


def test_a_base_that_took_the_rest_of_the_disk_is_the_end(
    mini: Catalog, engine: Engine, mini_lock: Callable[..., Lock], monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = "sha256:" + "d" * 64
    mini_lock(base_digest=digest)
    engine.registry[f"debian:bookworm-slim@{digest}"] = engine.images["debian:bookworm-slim"]
    monkeypatch.setattr(engine, "free_bytes", lambda: 50_000_000 if engine.pulled else 1_000_000_000)
    with pytest.raises(FlagbenchError) as refused:
        build(mini, engine, options=BuildOptions())
    assert refused.value.code is ExitCode.BUILD_FAILED
    assert len(engine.pulled) == 1
    assert engine.requests == []


def test_another_platform_is_refused_before_anything_is_asked_for(mini: Catalog, engine: Engine) -> None:
    with pytest.raises(FlagbenchError) as refused:
        build(mini, engine, options=BuildOptions(platform="linux/arm64"))
    assert "linux/arm64" in refused.value.message
    assert refused.value.code is ExitCode.USAGE
    assert "add a stack for that platform" in refused.value.remedy
    assert (engine.requests, engine.pulled) == ([], [])


def test_a_variant_of_the_platform_is_the_platform(mini: Catalog, engine: Engine) -> None:
    build(mini, engine, options=BuildOptions(base="debian:bookworm-slim", platform="linux/amd64/v3"))
    assert {request.platform for request in engine.requests} == {"linux/amd64/v3"}
