"""`flagbench build` as it is typed, with an engine in memory."""

import json

import pytest

from flagbench.cli import main
from flagbench.images.docker_errors import BuildFailed

ON_DEBIAN = ["--base", "debian:bookworm-slim"]


@pytest.fixture(autouse=True)
def in_memory(engine, mini, monkeypatch):
    """The command finds this engine."""
    monkeypatch.setattr("flagbench.cli.build.open_engine", lambda: engine)


def test_it_builds_and_then_has_nothing_to_do(capsys, engine):
    assert main.run(["build", "distilbert:small", *ON_DEBIAN]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("flagbench/distilbert:mini  built  sha256:")
    assert "building stack/mini" in err
    assert main.run(["build", "distilbert:small", *ON_DEBIAN]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("flagbench/distilbert:mini  up to date  sha256:")
    assert err == ""
    assert len(engine.requests) == 2


def test_json_is_one_document(capsys, engine):
    assert main.run(["build", "distilbert:mini", "mini", *ON_DEBIAN, "--json"]) == 0
    out, err = capsys.readouterr()
    case, stack = json.loads(out)["images"]
    assert (case["image"], stack["image"]) == ("distilbert:mini", "mini")
    assert [tier["tier"] for tier in case["tiers"]] == ["stack/mini", "distilbert/mini"]
    assert set(case["tiers"][0]) == {"tier", "image_id", "context", "tags", "skipped", "seconds"}
    assert case["base"] == {"name": "debian:bookworm-slim", "digest": engine.images["debian:bookworm-slim"].id}
    assert set(case) == {"image", "image_id", "context", "tags", "skipped", "base", "lock", "tiers"}
    assert stack["image_id"] == case["tiers"][0]["image_id"]
    assert err == ""


def test_quiet_prints_ids(capsys, engine):
    assert main.run(["build", "mini", *ON_DEBIAN, "--quiet"]) == 0
    assert capsys.readouterr() == (engine.images["flagbench/stack:mini"].id + "\n", "")


@pytest.mark.parametrize(
    ("failure", "code"), [(BuildFailed("pip failed", remedy="look"), 8), (KeyboardInterrupt(), 7)]
)
def test_a_build_that_ends_early_tags_nothing(failure, code, capsys, engine):
    engine.failure = failure
    assert main.run(["build", "mini", *ON_DEBIAN]) == code
    assert capsys.readouterr().out == ""
    assert [ref for ref in engine.images if ref.startswith("flagbench/")] == []


def test_options_come_from_the_environment(monkeypatch, engine, wheelhouse):
    monkeypatch.setenv("FLAGBENCH_BASE", "debian:bookworm-slim")
    monkeypatch.setenv("FLAGBENCH_PIP_SOURCE", "https://one.example/simple https://two.example/simple")
    monkeypatch.setenv("FLAGBENCH_APT_SOURCE", "http://mirror.example/debian")
    monkeypatch.setenv("FLAGBENCH_WHEELHOUSE", str(wheelhouse))
    assert main.run(["build", "mini", "-q"]) == 0
    assert engine.requests[0].build_args == {"BASE": "debian:bookworm-slim"}
    assert {name for name in engine.contexts[0] if name.startswith("inputs/")} == {
        "inputs/README",
        "inputs/apt/url",
        "inputs/pip.conf",
        "inputs/wheels/psutil-7.2.2-py3-none-any.whl",
    }
    assert b"extra-index-url =\n    https://two.example/simple" in engine.contexts[0]["inputs/pip.conf"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["distilbert:mini"], 2),  # the base's digest is not locked
        (["distilbert:minni", *ON_DEBIAN], 2),
        (["distilbert", *ON_DEBIAN], 2),
        (["mini", "--base", "nowhere"], 8),
        (["mini", *ON_DEBIAN, "--ca-bundle", "nowhere"], 2),
    ],
)
def test_errors_and_their_exit_codes(arguments, code, capsys):
    assert main.run(["build", *arguments]) == code
    assert capsys.readouterr().out == ""


def test_what_is_allowed_unlocked_is_built(engine):
    assert main.run(["build", "mini", "--allow-unlocked", "-q"]) == 0
    assert engine.requests[0].build_args["BASE"] == "debian:bookworm-slim"
