"""A case is built again when its stack's image or the commit is another, and only then."""

from __future__ import annotations

import io
from typing import Any

import pytest

from flagbench.build.builder import Builder, find_target
from flagbench.build.options import BuildOptions
from flagbench.build.progress import Progress
from flagbench.build.results import ImageResult
from flagbench.catalog.model import Catalog

ON_DEBIAN = BuildOptions(base="debian:bookworm-slim")
Engine = Any
"""The engine in memory of this folder's conftest."""


def build(
    catalog: Catalog, engine: Engine, name: str = "distilbert:mini", options: BuildOptions = ON_DEBIAN
) -> ImageResult:
    """One image."""
    return Builder(catalog, options, engine, Progress(stream=io.StringIO())).build(find_target(name, catalog))


def test_a_case_follows_a_stack_that_was_built_again(mini: Catalog, engine: Engine) -> None:
    before = build(mini, engine)
    build(mini, engine, "mini", BuildOptions(base="debian:bookworm-slim", no_cache=True))
    after = build(mini, engine)
    assert [tier.skipped for tier in after.tiers] == [True, False]
    assert after.top.digest == before.top.digest
    stack = engine.images["flagbench/stack:mini"]
    assert engine.images["flagbench/distilbert:mini"].layers[:-1] == stack.layers
    assert build(mini, engine).top.skipped


def test_a_case_is_of_the_commit_it_is_built_from(
    mini: Catalog, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"commit": "a" * 40 + "-dirty"}
    monkeypatch.setattr("flagbench.build.builder.commit", lambda: said["commit"])
    build(mini, engine)
    assert build(mini, engine).top.skipped
    said["commit"] = "a" * 40
    after = build(mini, engine)
    assert [tier.skipped for tier in after.tiers] == [True, False]
    request = engine.requests[-1]
    assert request.build_args["FLAGBENCH_COMMIT"] == "a" * 40
    assert engine.images["flagbench/distilbert:mini"].labels["org.opencontainers.image.revision"] == "a" * 40
    assert build(mini, engine, "mini").top.skipped


def test_where_no_commit_is_known_any_will_do_and_none_is_claimed(
    mini: Catalog, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flagbench.build.builder.commit", lambda: "a" * 40)
    build(mini, engine)
    monkeypatch.setattr("flagbench.build.builder.commit", lambda: None)
    assert build(mini, engine).top.skipped
    build(mini, engine, options=BuildOptions(base="debian:bookworm-slim", epoch=1_700_000_000))
    # The stack's label would be the case's too, were there none.
    assert engine.requests[-1].labels["org.opencontainers.image.revision"] == ""
    assert "FLAGBENCH_COMMIT" not in engine.requests[-1].build_args
