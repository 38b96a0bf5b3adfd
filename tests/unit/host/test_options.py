"""Options are declared once: Typer's parameters, an image's words and the ranges follow from the dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import typer

from flagbench.cli import main
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import resolve_image
from flagbench.options import takes_options, words
from flagbench.runs.request import LocalOptions, RunOptions, RunRequest, read_env
from flagbench_core.exit_codes import ExitCode


@dataclass(frozen=True)
class Options:
    """One option of each kind."""

    required: Annotated[str, typer.Option("--required", "-r")]
    choice: Annotated[Literal["a", "b"], typer.Option()] = "a"
    max_count: Annotated[int | None, typer.Option(min=1, max=9)] = None
    set_: Annotated[tuple[str, ...], typer.Option("--set")] = ()
    flag: Annotated[bool, typer.Option("--flag")] = False


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any]]:
    """`parse(*words)`: the exit code of a command that takes the options, and the options that it was given."""

    def run(*arguments: str) -> tuple[int, Any]:
        given: list[Options] = []

        @takes_options
        def command(options: Options, other: Annotated[int, typer.Option()] = 7) -> None:
            """Take them."""
            assert other == 7
            given.append(options)

        app = typer.Typer(rich_markup_mode=None)
        app.command()(command)
        monkeypatch.setattr(main, "app", app)
        return main.run(arguments), given[0] if given else None

    return run


def test_what_is_typed_becomes_the_dataclass(parse: Callable[..., Any]) -> None:
    assert parse("-r", "x") == (0, Options("x"))
    typed = ("--required", "x", "--choice", "b", "--max-count", "9", "--set", "c=1", "--set", "d=2", "--flag")
    assert parse(*typed) == (0, Options("x", "b", 9, ("c=1", "d=2"), True))


@pytest.mark.parametrize("wrong", [(), ("-r", "x", "--choice", "c"), ("-r", "x", "--max-count", "10")])
def test_what_typer_refuses(parse: Callable[..., Any], wrong: tuple[str, ...]) -> None:
    assert parse(*wrong) == (2, None)


def test_words_are_typed_back(parse: Callable[..., Any]) -> None:
    options = Options("-x", "b", 9, ("c=1", "--flag"), True)
    assert words(options) == ["--required=-x", "--choice=b", "--max-count=9", "--set=c=1", "--set=--flag", "--flag"]
    assert parse(*words(options)) == (0, options)
    assert words(Options("y")) == ["--required=y"]


def test_an_image_is_always_told_its_nodes_and_devices() -> None:
    assert RunOptions().command_line() == ["--nodes=1", "--gpus=1"]
    assert RunOptions(nodes=2, gpus=8, full=True).command_line() == ["--nodes=2", "--gpus=8", "--full"]
    # On a processor the image has no default preset.
    assert RunOptions().image_arguments() == ["--nodes=1", "--gpus=1", "--preset=reference"]


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("--nodes", {"nodes": 0}),
        ("--gpus", {"gpus": 1025}),
        ("--steps", {"steps": 0}),
        ("--seed", {"seed": 2**31}),
        ("--timeout", {"timeout": float("nan")}),
        ("--max-minutes", {"max_minutes": 0.0}),
        ("--node-rank", {"node_rank": -1}),
        ("--precision", {"precision": "tf32"}),
        ("--full", {"steps": 5, "full": True}),
        ("--set", {"set_": ("batch_size",)}),
        ("batch_size", {"set_": ("batchsize=1",)}),
        ("--set dropout", {"set_": ("dropout=inf",)}),
        *(("--run-id", {"run_id": name}) for name in ("", "a;rm -rf /", "-x", "x" * 129)),
    ],
)
def test_what_the_image_would_refuse(named: str, options: dict[str, Any]) -> None:
    with pytest.raises(FlagbenchError) as caught:
        RunRequest(*resolve_image("distilbert:cpu", load_catalog()), LocalOptions(**options))
    assert caught.value.code is ExitCode.USAGE
    assert named in caught.value.message + caught.value.remedy


@pytest.mark.parametrize("image", ["llama3.1-8b-lora:cpu", "llama3-8b:cpu"])
def test_a_batch_that_micro_batches_do_not_make_up_is_refused(image: str) -> None:
    with pytest.raises(FlagbenchError, match="batch_size 7 is not a multiple of micro_batch_size 2") as caught:
        RunRequest(*resolve_image(image, load_catalog()), LocalOptions(preset="tiny", set_=("batch_size=7",)))
    assert caught.value.code is ExitCode.USAGE


def test_a_secret_in_place_of_a_name_is_not_repeated() -> None:
    token = "hf_" + "aB3dE5gH7j" * 4
    with pytest.raises(FlagbenchError) as caught:
        read_env([token])
    assert caught.value.code is ExitCode.USAGE
    assert token not in f"{caught.value.message} {caught.value.remedy}"
