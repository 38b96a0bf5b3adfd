"""Dependencies of packages whose metadata no index has: images/locks/metadata.toml."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.locks.model import canonical
from flagbench.locks.toml import load_toml

FILE = "metadata.toml"


@dataclass(frozen=True)
class Table:
    """The declared requirements of one version of a package, as pip writes requirements."""

    name: str
    version: str
    requires: tuple[str, ...]


Tables = Mapping[tuple[str, str], Table]
"""Tables by canonical name and version."""


def read_tables(images: Path) -> Tables:
    """The tables of an images folder; none where it has no such file.

    Raises:
        FlagbenchError: (usage) the file is not TOML, or a table lacks a key.
    """
    path = images / "locks" / FILE
    if not path.is_file():
        return {}
    try:
        raw = load_toml(path.read_text(encoding="utf-8"))["dependency-metadata"]
        tables = [Table(canonical(table["name"]), table["version"], tuple(table["requires-dist"])) for table in raw]
    except (ValueError, KeyError, TypeError) as error:
        raise FlagbenchError(
            f"{path} is not a list of dependency-metadata tables: {error}",
            remedy="give each table `name`, `version` and `requires-dist`",
        ) from None
    return {(table.name, table.version): table for table in tables}


def uv_settings(tables: Iterable[Table]) -> str:
    """A uv.toml that declares these tables, so that uv builds nothing to learn them."""
    # A JSON string of ASCII is a TOML basic string.
    return "".join(
        "[[dependency-metadata]]\n"
        f"name = {json.dumps(table.name)}\n"
        f"version = {json.dumps(table.version)}\n"
        f"requires-dist = {json.dumps(list(table.requires))}\n"
        for table in tables
    )
