"""What only some cases need: compiled with as many jobs as the engine's machine takes, and given to no other tier."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flagbench.build.builder import Builder, find_target
from flagbench.build.compiler_jobs import compiler_jobs
from flagbench.build.options import BuildOptions
from flagbench.build.progress import Progress
from flagbench.build.results import ImageResult
from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Catalog
from flagbench.engines.base import Resources
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks import LockEntry, load_lock, write_lock
from flagbench.locks.model import inputs_digest

Engine = Any
"""The engine in memory of this folder's conftest."""
GIB = 2**30
SDIST = "kernels-1.0.tar.gz"
HASH = "sha256:2f6cd03cd8e1c9b9bf6e0c5b8b7c2f5f2a6c5c1f6b0a4f3e5d2c1b0a99887766"


@pytest.mark.parametrize(
    ("cpus", "gib", "stages", "jobs"),
    [(64, 256, 1, 28), (64, 256, 2, 14), (8, 1024, 1, 8), (2, 24, 1, 2), (2, 24, 3, 1), (4, 2, 1, 1), (16, 0, 1, 1)],
)
def test_jobs_fit_the_processors_and_nine_gib_each(cpus: int, gib: int, stages: int, jobs: int) -> None:
    assert compiler_jobs(Resources(cpus, gib * GIB), stages) == jobs


@pytest.fixture
def needy(mini_lock: Callable[..., Any], manifests: Path) -> Catalog:
    """The stack `mini` compiles `kernels` for cases that need it, as distilbert does here; no other stack has it."""
    mini_lock()
    for path in (manifests / "stacks").glob("*.yaml"):
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.stem == "mini":
            kernels = {"name": "kernels", "version": "1.0", "env": {}, "reason": "to have something to compile"}
            plain["build"]["compiled"] = [kernels]
        else:
            plain["build"]["left_out"]["kernels"] = "this test needs it on mini alone"
        path.write_text(yaml.safe_dump(plain), encoding="utf-8")
    case = manifests / "cases" / "distilbert.yaml"
    case.write_text(case.read_text(encoding="utf-8") + "\nneeds: [kernels]\n", encoding="utf-8")
    catalog = load_catalog(manifests)
    images = manifests.parent / "images"
    lock = load_lock("mini", images)
    assert lock is not None
    entries = tuple(
        sorted(
            (*lock.entries, LockEntry("kernels", "1.0", (HASH,), ("kernels-1.0.tar.gz",))),
            key=lambda entry: entry.name,
        )
    )
    lock = dataclasses.replace(lock, entries=entries, inputs=inputs_digest(catalog.stacks["mini"]))
    write_lock(lock, images)
    return catalog


def build(catalog: Catalog, engine: Engine, name: str = "distilbert:mini", **options: Any) -> ImageResult:
    """One image."""
    chosen = BuildOptions(base="debian:bookworm-slim", **options)
    return Builder(catalog, chosen, engine, Progress(stream=io.StringIO())).build(find_target(name, catalog))


def test_the_engine_s_machine_decides_the_jobs_and_not_the_image(needy: Catalog, engine: Engine) -> None:
    first = build(needy, engine)
    small = type(engine)(machine=Resources(2, 4 * GIB))
    again = build(needy, small)
    assert [e.requests[1].build_args["MAX_JOBS"] for e in (engine, small)] == ["28", "1"]
    assert again.top.digest == first.top.digest
    assert engine.requests[1].labels == small.requests[1].labels
    assert "MAX_JOBS" not in engine.requests[0].build_args


def test_wheels_are_kept_by_the_base_unless_everything_is_to_be_made_again(needy: Catalog, engine: Engine) -> None:
    result = build(needy, engine)
    assert engine.requests[1].build_args["BASE_DIGEST"] == result.base.identity
    build(needy, engine, no_cache=True)
    assert "BASE_DIGEST" not in engine.requests[-1].build_args


def test_other_cases_are_as_they_were(needy: Catalog, engine: Engine) -> None:
    build(needy, engine, "glm:mini")
    assert not engine.requests[1].build_args.keys() & {"MAX_JOBS", "BASE_DIGEST"}
    assert not any(name.startswith("inputs/") for name in engine.contexts[1])


def test_each_tier_is_given_the_files_that_it_installs(
    needy: Catalog, engine: Engine, wheelhouse: Path, ca_bundle: Path
) -> None:
    (wheelhouse / SDIST).write_bytes(b"")
    with pytest.raises(FlagbenchError) as refused:
        build(needy, engine, wheelhouse=wheelhouse, ca_bundle=ca_bundle)
    assert "kernels" in refused.value.message
    assert refused.value.code is ExitCode.USAGE
    (heavy,) = engine.contexts
    assert {name for name in heavy if name.startswith("inputs/wheels")} == {
        "inputs/wheels/psutil-7.2.2-py3-none-any.whl"
    }
    build(needy, engine, ca_bundle=ca_bundle)
    assert engine.contexts[-1]["inputs/ca.crt"] == ca_bundle.read_bytes()


def test_a_stack_s_image_that_was_removed_meanwhile_is_an_error_before_the_build(
    needy: Catalog, engine: Engine
) -> None:
    class Removing(type(engine)):  # type: ignore[misc]
        """Loses the stack's image as soon as it is built."""

        def free_bytes(self) -> int | None:
            for name in [name for name in self.images if "flagbench/stack" in name]:
                del self.images[name]
            return None

    engine = Removing()
    with pytest.raises(FlagbenchError) as caught:
        build(needy, engine, "glm:mini")
    assert caught.value.code is ExitCode.BUILD_FAILED
    assert len(engine.requests) == 1, "the engine is not asked to build on what it would have to pull"
    assert engine.pulled == []
