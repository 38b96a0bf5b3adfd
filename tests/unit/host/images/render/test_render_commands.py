"""`flagbench render` as a person types them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.cli import main
from flagbench.images.render.templates import shipped_images
from flagbench.manifests.lookup import missing_module

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
    images = json.loads(run("render", "distilbert:cpu", "-o", str(out), "--json").out)["images"]
    assert [image["name"] for image in images] == ["stack/cpu", "distilbert/cpu"]
    for image in images:
        folder = Path(image["folder"])
        files = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
        assert files == {*image["files"]}
        assert (folder / "Dockerfile").read_text(encoding="utf-8") == image["dockerfile"]


CASES = [case.name for case in CATALOG.cases.values() if missing_module(case, CATALOG.stacks["cpu"]) is None]
"""The cases that have an image on `cpu`."""


@pytest.mark.parametrize("case", sorted(CASES))
def test_an_image_has_all_of_flagbench_that_its_case_imports(case: str, run: Run, tmp_path: Path) -> None:
    """With the standard library alone, as before an image's packages are imported."""
    run("render", f"{case}:cpu", "-o", str(tmp_path))
    words = [sys.executable, "-S", "-m", "flagbench_cases", case, "--preset", "tiny", "--nodes", "1", "--describe"]
    done = subprocess.run(words, env={"PYTHONPATH": str(tmp_path / case)}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["config"]["case"] == case


def test_every_image_is_written(run: Run, tmp_path: Path) -> None:
    run("render", "--all", "-o", str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == STACKS
    assert (tmp_path / "cpu" / "distilbert" / "Dockerfile").is_file()


def test_a_stale_dockerfile_is_shown_and_refreshed(run: Run, checkout: Path) -> None:
    rendered = checkout / "images" / "rendered"
    stack = rendered / "cpu" / "stack" / "Dockerfile"
    good = stack.read_text(encoding="utf-8")
    stack.write_text(good.replace("USER 1000:0", "USER 0:0"), encoding="utf-8")
    (rendered / "cuda13" / "distilbert" / "Dockerfile").unlink()
    left_over = rendered / "gone" / "stack" / "Dockerfile"
    left_over.parent.mkdir(parents=True)
    left_over.write_text("FROM scratch\n", encoding="utf-8")
    said = run("render", "--all", "--check", code=2)
    assert "-USER 0:0\n+USER 1000:0\n" in said.out
    for part in ("cpu/stack", "cuda13/distilbert", "gone/stack"):
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
        ["render", "distilbert:cpuu"],
    ],
)
def test_contradictions_and_unknown_names_are_usage_errors(words: list[str], run: Run) -> None:
    assert "fix: " in run(*words, code=2).err
