"""Building with an engine in memory: tiers, tags, labels, skipping, failures."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest

from flagbench.build.build_lock import build_lock
from flagbench.build.builder import Builder, build_images, find_target
from flagbench.build.options import BuildOptions
from flagbench.build.progress import Progress
from flagbench.build.results import ImageResult
from flagbench.catalog.lookup import UnknownNameError
from flagbench.catalog.model import Catalog
from flagbench.engines.base import BuildFailed
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.model import Lock

ON_DEBIAN = BuildOptions(base="debian:bookworm-slim")
BUILDER = Path(__file__).parents[4] / "builder"
Engine = Any
"""The engine in memory of this folder's conftest."""


def build(
    catalog: Catalog, engine: Engine, name: str = "distilbert:mini", options: BuildOptions = ON_DEBIAN
) -> tuple[ImageResult, str]:
    """One image, and what was said."""
    said = io.StringIO()
    result = Builder(catalog, options, engine, Progress(stream=said)).build(find_target(name, catalog))
    return result, said.getvalue()


def test_an_image_has_two_tiers_with_their_tags(mini: Catalog, engine: Engine) -> None:
    result, said = build(mini, engine)
    heavy, thin = result.tiers
    short = heavy.digest.removeprefix("sha256:")[:12]
    assert heavy.tags == (
        "flagbench/stack:mini",
        "flagbench/stack:mini-0.1.0",
        f"localhost/flagbench/stack:mini-{short}",
    )
    assert thin.tags == ("flagbench/distilbert:mini", "flagbench/distilbert:mini-0.1.0", "flagbench/distilbert:small")
    assert engine.requests[1].build_args["STACK_IMAGE"] == heavy.tags[2]
    assert engine.requests[0].build_args == {"BASE": "debian:bookworm-slim", "SOURCE_DATE_EPOCH": "315532800"}
    assert "building stack/mini" in said
    assert engine.says in said


def test_labels_say_what_an_image_was_made_from(mini: Catalog, engine: Engine) -> None:
    result, _ = build(mini, engine)
    labels = engine.requests[1].labels
    assert (
        labels["dev.flagbench.context"]
        == result.top.digest
        == engine.requests[1].build_args["FLAGBENCH_CONTEXT_DIGEST"]
    )
    assert labels["dev.flagbench.lock"] == result.lock
    assert labels["dev.flagbench.base"] == labels["org.opencontainers.image.base.digest"] == result.base.identity
    assert (labels["dev.flagbench.case"], labels["dev.flagbench.stack"]) == ("distilbert", "mini")
    assert labels["org.opencontainers.image.created"] == "1980-01-01T00:00:00Z"
    assert "dev.flagbench.case" not in engine.requests[0].labels


def test_a_second_build_asks_the_engine_for_nothing(mini: Catalog, engine: Engine) -> None:
    first, _ = build(mini, engine)
    again, said = build(mini, engine)
    assert len(engine.requests) == 2
    assert again.top.skipped
    assert (again.top.image_id, again.top.tags) == (first.top.image_id, first.top.tags)
    assert said == ""


def test_a_case_is_complete_without_its_stacks_image(mini: Catalog, engine: Engine) -> None:
    build(mini, engine)
    for ref in [ref for ref in engine.images if "flagbench/stack" in ref]:
        del engine.images[ref]
    assert build(mini, engine)[0].top.skipped


def test_a_lost_tag_is_given_again(mini: Catalog, engine: Engine) -> None:
    result, _ = build(mini, engine)
    del engine.images["flagbench/distilbert:small"]
    build(mini, engine)
    assert engine.images["flagbench/distilbert:small"].id == result.top.image_id
    assert len(engine.requests) == 2


def test_the_image_of_an_earlier_state_is_found_by_its_fixed_tag(
    mini: Catalog, engine: Engine, mini_lock: Callable[..., Lock]
) -> None:
    before, _ = build(mini, engine, "mini")
    mini_lock(hashes=("sha256:" + "1" * 64,))
    assert not build(mini, engine, "mini")[0].top.skipped
    mini_lock()
    back, _ = build(mini, engine, "mini")
    assert back.top.skipped
    assert engine.images["flagbench/stack:mini"].id == before.top.image_id


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions(base="debian:bookworm-slim", epoch=1_700_000_000),
        BuildOptions(base="other"),
        BuildOptions(base="debian:bookworm-slim", no_cache=True),
    ],
    ids=["epoch", "base", "no-cache"],
)
def test_what_an_image_is_made_from_decides_whether_it_is_built(
    options: BuildOptions, mini: Catalog, engine: Engine
) -> None:
    build(mini, engine)
    engine.images["other"] = type(engine.images["debian:bookworm-slim"])(
        "sha256:" + "c" * 64, {}, 1, ("other",), {}, (), "linux/amd64"
    )
    result, _ = build(mini, engine, options=options)
    assert [tier.skipped for tier in result.tiers] == [False, False]


def test_inputs_change_nothing_that_is_built(mini: Catalog, engine: Engine, wheelhouse: Path) -> None:
    first, _ = build(mini, engine)
    options = BuildOptions(
        base="debian:bookworm-slim", wheelhouse=wheelhouse, pip_source=("https://user:planted@mirror.example/",)
    )
    assert build(mini, engine, options=options)[0].top.skipped
    again, _ = build(mini, type(engine)(), options=options)
    assert (again.top.digest, again.tiers[0].digest) == (first.top.digest, first.tiers[0].digest)


def test_inputs_are_in_the_context_of_the_heavy_tier_alone(mini: Catalog, engine: Engine, wheelhouse: Path) -> None:
    build(mini, engine, options=BuildOptions(base="debian:bookworm-slim", wheelhouse=wheelhouse))
    heavy, thin = engine.contexts
    assert heavy["inputs/wheels/psutil-7.2.2-py3-none-any.whl"] == b"a wheel"
    assert not any(name.startswith("inputs/wheels") for name in thin)


def test_credentials_are_neither_shown_nor_kept(mini: Catalog, engine: Engine) -> None:
    engine.says = "Looking in indexes: https://user:planted@mirror.example/simple\n"
    options = BuildOptions(base="debian:bookworm-slim", pip_source=("https://user:planted@mirror.example/simple",))
    _, said = build(mini, engine, options=options)
    assert "https://***@mirror.example/simple" in said
    assert "planted" not in said
    assert b"planted" in engine.contexts[0]["inputs/pip.conf"]
    request = engine.requests[0]
    assert "planted" not in repr((request.build_args, request.labels, request.tags))


def test_a_failed_build_tags_nothing(mini: Catalog, engine: Engine) -> None:
    engine.failure = BuildFailed("pip failed", remedy="look", step="[1/1] RUN install", lines=["one", "two"])
    with pytest.raises(BuildFailed) as failed:
        build(mini, engine)
    assert failed.value.step == "[1/1] RUN install"
    assert not [ref for ref in engine.images if ref.startswith("flagbench/")]


def test_an_interrupted_build_has_its_exit_code(mini: Catalog, engine: Engine) -> None:
    engine.failure = KeyboardInterrupt()
    with pytest.raises(FlagbenchError) as ended:
        build(mini, engine)
    assert ended.value.code is ExitCode.INTERRUPTED


def test_labels_name_the_project_and_the_layers_of_the_base(
    mini: Catalog, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = message_from_string(
        "Project-URL: Source, https://code.example/f\nProject-URL: Homepage, https://f.example"
    )
    monkeypatch.setattr("flagbench.build.tiers.metadata", lambda name: urls)
    engine.images["debian:bookworm-slim"] = replace(engine.images["debian:bookworm-slim"], layers=("a", "b"))
    build(mini, engine)
    heavy, thin = (request.labels for request in engine.requests)
    assert heavy["dev.flagbench.base.layers"] == "2"
    assert "dev.flagbench.base.layers" not in thin  # which has its stack's
    for labels in (heavy, thin):
        assert labels["org.opencontainers.image.source"] == "https://code.example/f"
        assert labels["org.opencontainers.image.url"] == "https://f.example"
        assert labels["org.opencontainers.image.documentation"] == "", "the base's own does not stay"


def test_labels_that_did_not_arrive_are_an_error(mini: Catalog, engine: Engine) -> None:
    engine.forgets_labels = True
    with pytest.raises(FlagbenchError) as failed:
        build(mini, engine)
    assert failed.value.code is ExitCode.BUILD_FAILED


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("distilbrt:mini", "did you mean distilbert"),
        ("distilbert:minni", "did you mean mini"),
        ("minni", "did you mean mini"),
        ("distilbert", "write case:stack"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, said: str, mini: Catalog) -> None:
    with pytest.raises(UnknownNameError) as unknown:
        find_target(name, mini)
    assert said in unknown.value.remedy


def test_every_name_is_looked_up_before_the_first_is_built(mini: Catalog, engine: Engine) -> None:
    with pytest.raises(UnknownNameError):
        list(build_images(["distilbert:mini", "nothing"], mini, ON_DEBIAN, engine, Progress(stream=io.StringIO())))
    assert engine.requests == []


def test_a_stack_is_built_once_even_without_the_cache(mini: Catalog, engine: Engine) -> None:
    options = BuildOptions(base="debian:bookworm-slim", no_cache=True)
    builder = Builder(mini, options, engine, Progress(stream=io.StringIO()))
    builder.build(find_target("mini", mini))
    builder.build(find_target("distilbert:mini", mini))
    assert [request.tags[0] for request in engine.requests] == ["flagbench/stack:mini", "flagbench/distilbert:mini"]
    assert all(request.no_cache for request in engine.requests)


HOLDER = """
import sys
from flagbench.build.build_lock import build_lock
with build_lock("stack/mini", lambda: None):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_waits_and_says_so() -> None:
    path = os.pathsep.join([str(BUILDER), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waited: list[str] = []

        def waiting() -> None:
            waited.append("waiting")
            holder.stdin.close()  # type: ignore[union-attr]

        with build_lock("stack/other", lambda: waited.append("wrong")):
            pass
        with build_lock("stack/mini", waiting):
            pass
    assert waited == ["waiting"]


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(FlagbenchError) as refused, build_lock("stack/mini", lambda: None):
        pass
    assert str(tmp_path / "file") in refused.value.message
