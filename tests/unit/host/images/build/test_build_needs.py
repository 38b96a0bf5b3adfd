"""What only some cases need: compiled with as many jobs as the engine's machine takes, and given to no other tier."""

import dataclasses

import pytest
import yaml

from flagbench.errors import FlagbenchError
from flagbench.images.build import compiler_jobs
from flagbench.images.docker import Resources
from flagbench.images.lockfile import inputs_digest, load_lock, write_lock
from flagbench.manifests.load import load_catalog
from flagbench_core.exit_codes import ExitCode
from packages import lock_entry

GIB = 2**30
DEVEL = "vendor/devel:1@sha256:" + "f" * 64
KERNELS = lock_entry("kernels", "1.0", "sha256:" + "1" * 64)


@pytest.mark.parametrize(
    ("cpus", "gib", "stages", "jobs"),
    [(64, 256, 1, 28), (64, 256, 2, 14), (8, 1024, 1, 8), (2, 24, 1, 2), (2, 24, 3, 1), (4, 2, 1, 1), (16, 0, 1, 1)],
)
def test_jobs_fit_the_processors_and_nine_gib_each(cpus, gib, stages, jobs):
    assert compiler_jobs(Resources(cpus, gib * GIB), stages) == jobs


@pytest.fixture
def needy(mini_lock, manifests):
    """The stack `mini` compiles `kernels` for cases that need it, as distilbert does here; no other stack has it."""
    for path in (manifests / "stacks").glob("*.yaml"):
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.stem == "mini":
            kernels = {"name": "kernels", "version": "1.0", "env": {}, "reason": "to have something to compile"}
            plain["build"]["compiled"] = [kernels]
        else:
            plain["build"]["left_out"]["kernels"] = "this test needs it on mini alone"
        path.write_text(yaml.safe_dump(plain), encoding="utf-8")
    with (manifests / "cases" / "distilbert.yaml").open("a", encoding="utf-8") as case:
        case.write("\nneeds: [kernels]\n")
    catalog = load_catalog(manifests)
    lock = mini_lock()
    inputs = inputs_digest(catalog.stacks["mini"])
    write_lock(
        dataclasses.replace(lock, entries=(KERNELS, *lock.entries), inputs=inputs), manifests.parent / "images"
    )
    return catalog


def test_the_engine_s_machine_decides_the_jobs_and_not_the_image(build, needy, engine):
    first = build(catalog=needy)
    small = type(engine)(machine=Resources(2, 4 * GIB))
    again = build(catalog=needy, engine=small)
    assert [e.requests[1].build_args["MAX_JOBS"] for e in (engine, small)] == ["28", "1"]
    assert again.top.tier.digest == first.top.tier.digest
    assert "MAX_JOBS" not in engine.requests[0].build_args


def test_wheels_are_kept_by_the_base_unless_without_cache(build, needy, engine):
    result = build(catalog=needy)
    assert engine.requests[1].build_args["BASE_DIGEST"] == result.top.tier.base.identity
    build(catalog=needy, no_cache=True)
    assert "BASE_DIGEST" not in engine.requests[-1].build_args


def test_other_cases_are_as_they_were(build, needy, engine):
    build("glm:mini", catalog=needy)
    assert not engine.requests[1].build_args.keys() & {"MAX_JOBS", "BASE_DIGEST"}
    assert not any(name.startswith("inputs/") for name in engine.contexts[1])


@pytest.fixture
def with_toolkit(needy, manifests):
    """The stack `mini` takes the compiler from another image than its base."""
    path, images = manifests / "stacks" / "mini.yaml", manifests.parent / "images"
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    plain["build"]["toolkit"] = {"image": DEVEL, "folder": "/usr/local/mini", "files": ["bin"]}
    path.write_text(yaml.safe_dump(plain), encoding="utf-8")
    catalog = load_catalog(manifests)
    write_lock(dataclasses.replace(load_lock(catalog.stacks["mini"], images), toolkit=DEVEL), images)
    return catalog


def test_a_base_that_is_given_brings_the_toolkit_too(build, with_toolkit, engine):
    build(catalog=with_toolkit, base=None, allow_unlocked=True)
    assert [request.build_args.get("TOOLKIT") for request in engine.requests] == [None, None]
    engine.requests.clear()
    engine.images["mirror/devel:1"] = engine.images["debian:bookworm-slim"]
    for image in ("distilbert:mini", "glm:mini"):
        build(image, catalog=with_toolkit, base="mirror/devel:1", no_cache=True)
    # The stack, the case that compiles, and the one that does not.
    given = {request.tags[0]: request.build_args.get("TOOLKIT") for request in engine.requests}
    assert given == {
        "flagbench/stack:mini": "mirror/devel:1",
        "flagbench/distilbert:mini": "mirror/devel:1",
        "flagbench/glm:mini": None,
    }


def test_each_tier_is_given_the_files_that_it_installs(build, needy, engine, wheelhouse, ca_bundle):
    (wheelhouse / "kernels-1.0.tar.gz").write_bytes(b"")
    with pytest.raises(FlagbenchError, match="kernels") as refused:
        build(catalog=needy, wheelhouse=wheelhouse)
    assert refused.value.code is ExitCode.USAGE
    (heavy,) = engine.contexts
    wheels = [name for name in heavy if name.startswith("inputs/wheels")]
    assert wheels == ["inputs/wheels/psutil-7.2.2-py3-none-any.whl"]
    build(catalog=needy, ca_bundle=ca_bundle)
    assert engine.contexts[-1]["inputs/ca.crt"] == ca_bundle.read_bytes()
