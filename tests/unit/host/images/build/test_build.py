"""Building with an engine in memory: tiers, tags, labels, and when an image is built again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from flagbench.console.progress import Progress
from flagbench.images.build import ImageBuilder
from flagbench.images.build_options import BuildOptions
from flagbench.images.render.image import find_target
from flagbench.images.tags import TAG_VERSION
from flagbench_core.exit_codes import ExitCode

from .conftest import image


def test_an_image_has_two_tiers_with_their_tags(build, engine, capsys):
    heavy, thin = (built.tier for built in build().tiers)
    short = heavy.digest.removeprefix("sha256:")[:12]
    assert heavy.tags == (
        "flagbench/stack:mini",
        f"flagbench/stack:mini-{TAG_VERSION}",
        f"localhost/flagbench/stack:mini-{short}",
    )
    assert thin.tags == (
        "flagbench/distilbert:mini",
        f"flagbench/distilbert:mini-{TAG_VERSION}",
        "flagbench/distilbert:small",
    )
    assert engine.requests[1].build_args["STACK_IMAGE"] == heavy.tags[2]
    assert engine.requests[0].build_args == {"BASE": "debian:bookworm-slim"}
    said = capsys.readouterr().err
    assert "building stack/mini" in said
    assert engine.says in said
    assert re.search(rf"flagbench/stack:mini built in \d+\.\ds; also {heavy.tags[1]}, ", said)


def test_labels_say_what_an_image_was_made_from(build, engine):
    result = build()
    heavy, thin = engine.requests
    tier = result.top.tier
    assert thin.labels["dev.flagbench.context"] == tier.digest == thin.build_args["FLAGBENCH_CONTEXT_DIGEST"]
    assert thin.labels["dev.flagbench.lock"] == result.lock.digest
    assert thin.labels["dev.flagbench.base"] == tier.base.identity
    assert "org.opencontainers.image.base.digest" not in thin.labels, "no registry has it"
    assert "org.opencontainers.image.source" not in thin.labels
    pyproject = msgspec.toml.decode((Path(__file__).parents[5] / "pyproject.toml").read_bytes())
    assert thin.labels["org.opencontainers.image.licenses"] == pyproject["project"]["license"]
    assert (thin.labels["dev.flagbench.case"], thin.labels["dev.flagbench.stack"]) == ("distilbert", "mini")
    assert thin.labels["org.opencontainers.image.created"].endswith("Z")
    assert "dev.flagbench.case" not in heavy.labels


def test_an_image_does_not_inherit_the_digest_of_its_base_s_base(build, engine):
    engine.images["debian:bookworm-slim"] = image(labels={"org.opencontainers.image.base.digest": "sha256:below"})
    build()
    digests = [request.labels["org.opencontainers.image.base.digest"] for request in engine.requests]
    assert digests == ["", ""]


def test_an_image_says_where_its_code_is_if_it_is_told(build, engine):
    build()
    told = build(source_url="https://example.com/code")
    assert skipped(told) == [False, False]
    labels = [request.labels["org.opencontainers.image.source"] for request in engine.requests[2:]]
    assert labels == ["https://example.com/code"] * 2
    assert skipped(build(source_url="https://example.com/code")) == [True]
    assert skipped(build()) == [True]


def test_credentials_are_neither_shown_nor_kept(build, engine, capsys):
    engine.says = "Looking in indexes: https://user:planted@mirror.example/simple as planted\n"
    build(pip_source=("https://user:planted@mirror.example/simple",))
    said = capsys.readouterr().err
    assert "https://***@mirror.example/simple" in said
    assert "planted" not in said
    assert b"planted" in engine.contexts[0]["inputs/pip.conf"]
    request = engine.requests[0]
    assert "planted" not in repr((request.build_args, request.labels, request.tags))


def test_every_name_is_looked_up_before_an_engine_is(flagbench, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    assert flagbench("build distilbert:cpu nothing").code == ExitCode.USAGE


def test_a_stack_is_built_once_even_without_the_cache(mini, engine):
    options = BuildOptions(base="debian:bookworm-slim", no_cache=True)
    builder = ImageBuilder(mini, options, engine, Progress())
    builder.build(find_target("mini", mini))
    builder.build(find_target("distilbert:mini", mini))
    assert [request.tags[0] for request in engine.requests] == ["flagbench/stack:mini", "flagbench/distilbert:mini"]
    assert all(request.no_cache for request in engine.requests)


def skipped(result):
    return [tier.skipped for tier in result.tiers]


def test_a_case_is_complete_without_its_stacks_image(build, engine):
    build()
    for ref in [ref for ref in engine.images if "flagbench/stack" in ref]:
        del engine.images[ref]
    assert skipped(build()) == [True]


def test_a_lost_tag_is_given_again(build, engine):
    result = build()
    del engine.images["flagbench/distilbert:small"]
    build()
    assert engine.images["flagbench/distilbert:small"].id == result.top.image_id
    assert len(engine.requests) == 2


def test_the_image_of_an_earlier_state_is_found_by_its_digest_tag(build, engine, mini_lock):
    before = build("mini")
    mini_lock(hashes=("sha256:" + "1" * 64,))
    assert skipped(build("mini")) == [False]
    mini_lock()
    assert skipped(build("mini")) == [True]
    assert engine.images["flagbench/stack:mini"].id == before.top.image_id


@pytest.mark.parametrize("options", [{"base": "other"}, {"no_cache": True}])
def test_what_an_image_is_made_from_decides_whether_it_is_built(options, build, engine):
    build()
    engine.images["other"] = replace(
        engine.images["debian:bookworm-slim"], id="sha256:" + "c" * 64, layers=("other",)
    )
    assert skipped(build(**options)) == [False, False]


def test_inputs_change_nothing_that_is_built(build, engine, wheelhouse):
    first = build()
    options = {"wheelhouse": wheelhouse, "pip_source": ("https://user:planted@mirror.example/",)}
    assert skipped(build(**options)) == [True]
    again = build(engine=type(engine)(), **options)
    assert [built.tier.digest for built in again.tiers] == [built.tier.digest for built in first.tiers]


def test_a_case_follows_a_stack_that_was_built_again(build, engine):
    before = build()
    build("mini", no_cache=True)
    after = build()
    assert skipped(after) == [True, False]
    assert after.top.tier.digest == before.top.tier.digest
    stack = engine.images["flagbench/stack:mini"]
    assert engine.images["flagbench/distilbert:mini"].layers[:-1] == stack.layers
    assert skipped(build()) == [True]


@pytest.fixture
def committed(monkeypatch):
    """`committed(COMMIT)`: the checkout is of that commit."""
    return lambda commit: monkeypatch.setattr("flagbench.images.build.commit", lambda: commit)


def test_a_case_is_of_the_commit_it_is_built_from(build, engine, committed):
    committed("a" * 40 + "-dirty")
    build()
    assert skipped(build()) == [True]
    committed("a" * 40)
    assert skipped(build()) == [True, False]
    assert engine.requests[-1].build_args["FLAGBENCH_COMMIT"] == "a" * 40
    assert engine.images["flagbench/distilbert:mini"].labels["org.opencontainers.image.revision"] == "a" * 40
    assert skipped(build("mini")) == [True]


def test_without_a_known_commit_none_is_claimed(build, engine, committed):
    committed("a" * 40)
    build()
    committed(None)
    assert skipped(build()) == [True]
    build(no_cache=True)
    # The stack's label would be the case's too, were there none.
    assert engine.requests[-1].labels["org.opencontainers.image.revision"] == ""
    assert "FLAGBENCH_COMMIT" not in engine.requests[-1].build_args
