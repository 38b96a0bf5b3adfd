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


def test_every_contract_has_a_planted_violation() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert set(re.findall(r'\[tool\.importlinter\.contracts\]\]\nname = "(.+)"', project)) == PLANTED.keys()


def test_a_forbidden_import_breaks_its_contract(tmp_path: Path) -> None:
    pytest.importorskip("importlinter")  # CI's environments of the other Pythons do not lint
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for source in ("builder", "entrypoints"):
        shutil.copytree(
            ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
        )
    for module, forbidden in PLANTED.values():
        path = (
            tmp_path
            / ("builder" if module.split(".")[0] == "flagbench" else "entrypoints")
            / module.replace(".", "/")
        )
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        path.write_text(f"{path.read_text()}\nimport {forbidden}\n")
    environment = {"PYTHONPATH": f"{tmp_path / 'builder'}:{tmp_path / 'entrypoints'}", "COLUMNS": "1000"}
    command = [LINTER, "--no-cache"]
    linted = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert linted.returncode == 1, linted.stderr
    assert set(re.findall(r"^(.+) BROKEN", linted.stdout, re.MULTILINE)) == PLANTED.keys()
