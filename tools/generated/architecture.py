"""The layers of both sides, drawn from the contracts of import-linter in pyproject.toml."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.report.export import table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCES = {"flagbench": "builder", "flagbench_cases": "entrypoints"}
"""The folder of each import package in a checkout."""


def layers(root: Path, package: str) -> str:
    """A diagram of the layers of an import package, the highest first, and a table of what each module is for."""
    found = _layers(root, package)
    boxes = [f'    layer{index}["{" · ".join(modules)}"]' for index, modules in enumerate(found)]
    arrows = [f"    layer{index} --> layer{index + 1}" for index in range(len(found) - 1)]
    diagram = "\n".join(["```mermaid", "flowchart TB", *boxes, *arrows, "```", ""])
    source = root / SOURCES[package] / package
    rows = [(f"`{name}`", _purpose(source, name)) for modules in found for name in modules]
    return f"{diagram}\n{table(('module', 'what it is'), rows)}"


def _layers(root: Path, package: str) -> Sequence[Sequence[str]]:
    """The modules of each layer, without the package's name."""
    path = root / "pyproject.toml"
    contracts = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    for contract in contracts:
        if contract["type"] == "layers" and contract["layers"][0].startswith(f"{package}."):
            return [
                [module.strip(" ()").removeprefix(f"{package}.") for module in layer.replace(":", "|").split("|")]
                for layer in contract["layers"]
            ]
    raise FlagbenchError(f"{path} has no contract of the layers of {package}", remedy="add one for import-linter")


def _purpose(source: Path, module: str) -> str:
    """The first line of a module's docstring."""
    stem = source / module.replace(".", "/")
    path = stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
