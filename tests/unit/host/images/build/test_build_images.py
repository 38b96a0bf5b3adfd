"""Building with an engine in memory: tiers, tags, labels and failures."""

import re

import pytest

from flagbench.images.build import Builder, build_images, find_target
from flagbench.images.build_options import BuildOptions
from flagbench.images.tags import VERSION
from flagbench.manifests.lookup import UnknownNameError
from flagbench.progress import Progress


def test_an_image_has_two_tiers_with_their_tags(build, engine, capsys):
    heavy, thin = (built.tier for built in build().tiers)
    short = heavy.digest.removeprefix("sha256:")[:12]
    assert heavy.tags == (
        "flagbench/stack:mini",
        f"flagbench/stack:mini-{VERSION}",
        f"localhost/flagbench/stack:mini-{short}",
    )
    assert thin.tags == (
        "flagbench/distilbert:mini",
        f"flagbench/distilbert:mini-{VERSION}",
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
    assert thin.labels["org.opencontainers.image.base.digest"] == "", "no registry has it"
    assert (thin.labels["dev.flagbench.case"], thin.labels["dev.flagbench.stack"]) == ("distilbert", "mini")
    assert thin.labels["org.opencontainers.image.created"].endswith("Z")
    assert "dev.flagbench.case" not in heavy.labels


def test_credentials_are_neither_shown_nor_kept(build, engine, capsys):
    engine.says = "Looking in indexes: https://user:planted@mirror.example/simple as planted\n"
    build(pip_source=("https://user:planted@mirror.example/simple",))
    said = capsys.readouterr().err
    assert "https://***@mirror.example/simple" in said
    assert "planted" not in said
    assert b"planted" in engine.contexts[0]["inputs/pip.conf"]
    request = engine.requests[0]
    assert "planted" not in repr((request.build_args, request.labels, request.tags))


def test_every_name_is_looked_up_before_the_first_is_built(mini, engine):
    with pytest.raises(UnknownNameError):
        list(build_images(["distilbert:mini", "nothing"], mini, BuildOptions(), engine, Progress()))
    assert engine.requests == []


def test_a_stack_is_built_once_even_without_the_cache(mini, engine):
    options = BuildOptions(base="debian:bookworm-slim", no_cache=True)
    builder = Builder(mini, options, engine, Progress())
    builder.build(find_target("mini", mini))
    builder.build(find_target("distilbert:mini", mini))
    assert [request.tags[0] for request in engine.requests] == ["flagbench/stack:mini", "flagbench/distilbert:mini"]
    assert all(request.no_cache for request in engine.requests)
