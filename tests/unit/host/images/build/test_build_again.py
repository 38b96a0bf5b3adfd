"""When an image is up to date, and when it is built again."""

from dataclasses import replace

import pytest


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


def test_the_image_of_an_earlier_state_is_found_by_its_fixed_tag(build, engine, mini_lock):
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
