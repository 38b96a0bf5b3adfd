"""The command line of an image: every bad value is a usage error, and nothing is guessed."""

from __future__ import annotations

import pytest

from flagbench_cases.node import cli
from flagbench_cases.shared.errors import UsageError
from flagbench_core import __version__
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image


def test_the_defaults() -> None:
    given = {name: value for name, value in vars(cli.parse(["distilbert"])).items() if value not in (None, False, [])}
    assert given == {
        "case": "distilbert",
        "nodes": 1,
        "gpus": 1,
        "timeout": 600.0,
    }


def test_everything_given() -> None:
    words = "distilbert --nodes 2 --gpus 8 --node-rank 1 --master a:1 --run-id r.1_x-Y --preset tiny"
    words += " --division=faithful"
    words += " --precision bf16 --data synthetic --weights w --steps 5 --seed 7 --set a=1 --set b=-2"
    words += " --max-minutes 1.5"
    words += " --timeout 30 --out o --store file:///s --resume c --describe"
    found = cli.parse(words.split())
    assert (found.nodes, found.gpus, found.node_rank, found.steps, found.seed) == (2, 8, 1, 5, 7)
    assert (found.max_minutes, found.timeout) == (1.5, 30.0)
    assert found.set == ["a=1", "b=-2"]
    assert found.run_id == "r.1_x-Y"
    assert found.describe


COUNTS = ("0", "1.5", "", str(10**12))
LIMITS = ("0", "nan", "inf", "1e308", "")  # all limits end some day
INVALID = {
    **dict.fromkeys(("--nodes", "--gpus", "--steps", "--max-samples"), COUNTS),
    "--node-rank": ("-1", "x"),
    "--seed": ("-1", "", str(2**31)),  # every generator takes 31 bits
    **dict.fromkeys(("--max-minutes", "--timeout"), LIMITS),
    # A run id is safe in a file name.
    "--run-id": ("", "a/b", ".hidden", "-x", "a\nb", "ü", "a" * 129, "$(id)"),
    "--preset": ("huge",),
    "--division": ("tuned", ""),
    "--precision": ("int8", "FP32"),
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option in INVALID for value in INVALID[option]])
def test_a_bad_value_names_its_option(option: str, value: str) -> None:
    with refuses(UsageError, option) as caught:
        cli.parse(["distilbert", option + "=" + value])
    assert "_count" not in caught.value.message  # a person reads this, not the name of a function


@pytest.mark.parametrize(
    ("option", "value"),
    [("--node-rank", 0), ("--seed", 0), ("--seed", 2**31 - 1), ("--max-minutes", 0.5), ("--timeout", 0.5)],
)
def test_the_smallest_and_largest_values_are_taken(option: str, value: float) -> None:
    assert getattr(cli.parse(["distilbert", option, str(value)]), option[2:].replace("-", "_")) == value


@pytest.mark.parametrize(
    "words",
    ["--steps 5 --full", "--steps 5 --max-samples 5", "--full --max-samples 5"],
)
def test_lengths_contradict_each_other(words: str) -> None:
    with refuses(UsageError, *[word for word in words.split() if word.startswith("--")]):
        cli.parse(["distilbert", *words.split()])


@pytest.mark.parametrize("words", ["", "distilbert extra", "distilbert --no-such", "distilbert --describe=1"])
def test_unknown_or_missing_arguments(words: str) -> None:
    with refuses(UsageError) as caught:
        cli.parse(words.split())
    assert "--help" in caught.value.remedy


@pytest.mark.parametrize("words", ["--step 5"])
def test_options_are_not_abbreviated(words: str) -> None:
    with refuses(UsageError, words.split()[0]):
        cli.parse(["distilbert", *words.split()])


def test_help_and_version_end_well(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--help", "--version"):
        with pytest.raises(SystemExit) as caught:
            cli.parse([option])
        assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "distilbert" in printed
    assert printed.splitlines()[-1] == "flagbench %s" % __version__


def test_an_image_names_its_own_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The entry point of an image gives the case, which the person who types `docker run` does not."""
    monkeypatch.setenv("FLAGBENCH_CONTEXT_DIGEST", "sha256:" + "c" * 64)
    with pytest.raises(SystemExit):
        cli.parse(["distilbert", "--help"])
    printed = capsys.readouterr().out
    assert printed.startswith("usage: docker run IMAGE [-h]")
    assert "case" not in printed.split("\n\n")[0]
    assert "glm" not in printed
    with pytest.raises(SystemExit):
        cli.parse(["distilbert", "--version"])
    assert capsys.readouterr().out == "flagbench %s\n" % __version__
    with refuses(UsageError) as caught:
        cli.parse(["distilbert", "--no-such"])
    assert caught.value.remedy == "see docker run IMAGE --help"
