"""Reads the compiled manifests of this image: its cases, and the stacks that it knows."""

from __future__ import annotations

import json
import os
from typing import Any

from flagbench_cases.shared.errors import UsageError

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(os.path.dirname(HERE), "cases")


def case_names() -> list[str]:
    """The cases in this image: every folder with a compiled case.json; some have no code of their own."""
    folders = [name for name in os.listdir(CASES) if os.path.isfile(os.path.join(CASES, name, "case.json"))]
    return sorted(name.replace("_", "-") for name in folders)


def load_case(name: str) -> dict[str, Any]:
    """The compiled manifest of a case. Raises UsageError for an unknown one."""
    if name not in case_names():
        names = ", ".join(case_names()) or "none"
        raise UsageError(f"unknown case {name!r}", f"choose one of: {names}")
    return _read_json(os.path.join(CASES, name.replace("-", "_"), "case.json"))


def package_of(name: str) -> str:
    """The package below `cases` with the code of a case: that of its family, or its own."""
    return load_case(name).get("family", name).replace("-", "_")


def load_stack(name: str) -> dict[str, Any]:
    """The compiled manifest of a stack. Raises UsageError for an unknown one."""
    folder = os.path.join(HERE, "stacks")
    files = [file for file in os.listdir(folder) if file.endswith(".json")]
    stacks = sorted(file[: -len(".json")] for file in files)
    if name not in stacks:
        names = ", ".join(stacks)
        raise UsageError(f"unknown stack {name!r}", f"set FLAGBENCH_STACK to one of: {names}")
    return _read_json(os.path.join(folder, name + ".json"))


def _read_json(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return json.load(file)
