"""The layers of both sides, from the contracts of import-linter in pyproject.toml."""

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
    """A table of the layers of an import package, the highest first, and of what each module is for."""
    source = root / SOURCES[package] / package
    rows = []
    for number, modules in enumerate(_layers(root, package), start=1):
        rows += [(str(number), f"`{name}`", _purpose(source, name)) for name in modules]
    return table(("layer", "module", "what it is"), rows)


def _layers(root: Path, package: str) -> Sequence[Sequence[str]]:
    """The modules of each layer, without the package's name."""
    path = root / "pyproject.toml"
    contracts = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    for contract in contracts:
        if contract["type"] == "layers" and contract["layers"][0].startswith(f"{package}."):
            return [_modules(layer, package) for layer in contract["layers"]]
    raise FlagbenchError(f"{path} has no contract of the layers of {package}", remedy="add one for import-linter")


def _modules(layer: str, package: str) -> list[str]:
    """The modules of one layer of a contract, `package.a | package.b : (package.c)`."""
    modules = layer.replace(":", "|").split("|")
    return [module.strip(" ()").removeprefix(f"{package}.") for module in modules]


def _purpose(source: Path, module: str) -> str:
    """The first line of a module's docstring."""
    stem = source / module.replace(".", "/")
    path = stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
