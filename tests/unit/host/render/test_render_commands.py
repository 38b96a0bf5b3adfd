"""`flagbench render` and `flagbench lint` as a person types them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.cli import main
from flagbench.render import lint
from flagbench.render.roots import shipped_images

Run = Callable[..., Any]
STACKS = {path.name for path in (shipped_images() / "rendered").iterdir()}


@pytest.fixture
def checkout(manifests: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what a checkout has of images: manifests/ and images/."""
    shutil.copytree(shipped_images(), manifests.parent / "images")
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    return manifests.parent


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that ends with `code`; returns what it printed on stdout (`out`) and stderr (`err`)."""

    def invoke(*words: str, code: int = 0) -> Any:
        assert main.run(list(words)) == code
        return capsys.readouterr()

    return invoke


def test_the_dockerfiles_of_a_stack_and_of_an_image_are_printed(run: Run) -> None:
    stack, image = run("render", "cpu").out, run("render", "distilbert:c500").out
    assert stack.startswith("# GENERATED")
    assert "ENTRYPOINT" not in stack
    assert image.count("# GENERATED") == 2
    assert "ARG STACK_IMAGE=localhost/flagbench/stack:c500-maca2.18" in image


def test_complete_build_directories_are_written(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first, second = (
        json.loads(run("render", "distilbert:cpu", "-o", str(out), "--json").out)["images"] for _ in range(2)
    )
    assert first == second
    assert [image["name"] for image in first] == ["stack/cpu", "distilbert/cpu"]
    for image in first:
        folder = Path(image["folder"])
        files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
        assert files == {*image["files"], "rendered.sha256"}
        assert (folder / "Dockerfile").read_text(encoding="utf-8") == image["dockerfile"]


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
    assert {path.name for path in out.iterdir()} == {*STACKS, "stack", "distilbert", "notes.txt"}
    assert (out / "cpu" / "stack" / "Dockerfile").is_file()
    hopper = out / "hopper-cuda13" / "stack" / "Dockerfile"
    assert (out / "stack" / "Dockerfile").read_bytes() == hopper.read_bytes()


def test_a_stale_dockerfile_is_shown_and_refreshed(run: Run, checkout: Path) -> None:
    rendered = checkout / "images" / "rendered"
    stack = rendered / "cpu" / "stack" / "Dockerfile"
    good = stack.read_text(encoding="utf-8")
    stack.write_text(good.replace("USER 1000:0", "USER 0:0"), encoding="utf-8")
    (rendered / "hopper-cuda13" / "distilbert" / "Dockerfile").unlink()
    left_over = rendered / "gone" / "stack" / "Dockerfile"
    left_over.parent.mkdir(parents=True)
    left_over.write_text("FROM scratch\n", encoding="utf-8")
    said = run("render", "--all", "--check", code=2)
    assert "-USER 0:0\n+USER 1000:0\n" in said.out
    for part in ("cpu/stack", "hopper-cuda13/distilbert", "gone/stack"):
        assert f"rendered/{part}/Dockerfile" in said.err
    assert len(json.loads(run("render", "--all", "--json").out)["changed"]) == 3
    assert stack.read_text(encoding="utf-8") == good
    assert not left_over.parent.parent.exists()
    assert run("render", "--all", "--check").out == ""
    assert "up to date" in run("render", "--all").out


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
    assert "fix: " in run(*words, code=2).err


def test_lint_names_file_line_and_rule(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM debian:12\nRUN cd /x && sudo pip install y\n", encoding="utf-8")
    lines = run("lint", str(tmp_path), code=2).out.splitlines()
    assert f"{path}:1: pinned-image: debian:12 has no digest" in lines
    assert any(line.startswith(f"{path}:2: DL3004: ") for line in lines)
    as_json = json.loads(run("lint", str(path), "--json", code=2).out)["findings"]
    assert [f"{f['path']}:{f['line']}: {f['rule']}: {f['text']}" for f in as_json] == lines


def test_lint_sees_what_a_template_makes(run: Run, write: Callable[..., Path]) -> None:
    assert run("lint").out == "no findings\n"
    lines = run("lint", "--template", str(write("USER 0:0", "last", "case")), code=2).out.splitlines()
    cases = [f"/{case}/Dockerfile:" for case in load_catalog().cases]
    assert all(any(case in line for case in cases) for line in lines), "a stack's template is another"
    assert {line.split(": ")[1] for line in lines} == {"DL3002"}


@pytest.mark.parametrize(
    ("fake", "said"), [(None, "flagbench[lint]"), ("#!/bin/sh\necho wrong flag >&2\nexit 1\n", "wrong flag")]
)
def test_a_hadolint_that_is_missing_or_fails_is_told(
    fake: str | None, said: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if fake:
        (tmp_path / "hadolint").write_text(fake, encoding="utf-8")
        (tmp_path / "hadolint").chmod(0o755)
    monkeypatch.setattr(lint.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin" if fake else str(tmp_path))
    (tmp_path / "Dockerfile").write_text("FROM scratch\n", encoding="utf-8")
    assert said in run("lint", str(tmp_path / "Dockerfile"), code=2).err
    assert run("lint").out == "no findings\n", "it is for what people write"
