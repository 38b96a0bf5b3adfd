"""Every contract of import-linter fails on an import that it forbids."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT

LINTER = Path(sys.executable).with_name("lint-imports")

PLANTED = {
    "Host side: a lower layer never imports a higher one": ("flagbench.errors", "flagbench.cli"),
    "The two packages never import each other": ("flagbench.report", "flagbench_cases"),
    "Reading a record needs no engine, no network client and no framework": ("flagbench.verify", "rich"),
    "Image side: a lower layer never imports a higher one, and nothing imports a case but by its name": (
        "flagbench_cases.node",
        "flagbench_cases.cases",
    ),
    "A case imports the contract, shared code, preparation and its engine": (
        "flagbench_cases.cases.glm",
        "flagbench_cases.rank",
    ),
    "The parent of a node and the record are free of torch": ("flagbench_cases.record", "torch"),
    "Only the stopwatch reads a clock": ("flagbench_cases.rank", "time"),
    "No cycles, in either package or below it": ("flagbench_cases.node.placement", "flagbench_cases.node.rendezvous"),
    "No case imports another": ("flagbench_cases.cases.glm", "flagbench_cases.cases.distilbert"),
}
"""By the name of a contract: a module, and what it may not import."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of both packages, without anything planted."""
    pytest.importorskip("importlinter")  # CI's environments of the other Pythons do not lint
    root = tmp_path_factory.mktemp("checkout")
    shutil.copy(ROOT / "pyproject.toml", root)
    for source in ("builder", "entrypoints"):
        shutil.copytree(ROOT / source, root / source, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    return root


def broken(checkout: Path) -> set[str]:
    """The contracts that import-linter finds broken in a checkout."""
    linted = subprocess.run(
        [LINTER, "--no-cache"],
        cwd=checkout,
        env={"PYTHONPATH": f"{checkout / 'builder'}:{checkout / 'entrypoints'}", "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = set(re.findall(r"^(.+) BROKEN", linted.stdout, re.MULTILINE))
    assert (linted.returncode != 0) == bool(found), linted.stdout + linted.stderr
    return found


def test_every_contract_has_a_planted_violation() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert set(re.findall(r'\[tool\.importlinter\.contracts\]\]\nname = "(.+)"', project)) == PLANTED.keys()


def test_the_packages_keep_every_contract(checkout: Path) -> None:
    assert broken(checkout) == set()


@pytest.mark.parametrize("contract", PLANTED)
def test_a_forbidden_import_breaks_its_contract(contract: str, checkout: Path) -> None:
    module, forbidden = PLANTED[contract]
    source = "builder" if module.split(".")[0] == "flagbench" else "entrypoints"
    path = checkout / source / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text()
    path.write_text(f"{text}\nimport {forbidden}\n")
    try:
        assert contract in broken(checkout)
    finally:
        path.write_text(text)
