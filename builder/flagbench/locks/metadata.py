"""images/locks/metadata.toml: the dependencies of packages whose metadata no index has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec.toml
from packaging.requirements import Requirement

from flagbench.errors import FlagbenchError
from flagbench.locks.model import canonical

Tables = Mapping[tuple[str, str], tuple[str, ...]]
"""The declared requirements of a package, as pip writes requirements, by its canonical name and version."""


class _Table(msgspec.Struct, rename="kebab"):
    name: str
    version: str
    requires_dist: tuple[str, ...]


class _File(msgspec.Struct, rename="kebab"):
    dependency_metadata: list[_Table]


def read_tables(images: Path) -> Tables:
    """The tables of an images folder; none where it has no such file.

    Raises FlagbenchError (usage): the file is not TOML, a table lacks a key, or a requirement is not one of an index.
    """
    path = images / "locks" / "metadata.toml"
    if not path.is_file():
        return {}
    try:
        tables = msgspec.toml.decode(path.read_bytes(), type=_File).dependency_metadata
        # A line that names a package of an index is no option for uv.
        if wrong := next((line for table in tables for line in table.requires_dist if Requirement(line).url), None):
            raise ValueError(f"{wrong!r} names a URL")
    except ValueError as error:
        raise FlagbenchError(
            f"{path} is not a list of dependency-metadata tables: {error}",
            remedy="give each table `name`, `version` and `requires-dist`",
        ) from None
    return {(canonical(table.name), table.version): table.requires_dist for table in tables}


def uv_settings(tables: Tables) -> str:
    """A uv.toml that declares these tables, so that uv builds nothing to learn them."""
    # A JSON string of ASCII is a TOML basic string.
    return "".join(
        "[[dependency-metadata]]\n"
        f"name = {json.dumps(name)}\n"
        f"version = {json.dumps(version)}\n"
        f"requires-dist = {json.dumps(requires)}\n"
        for (name, version), requires in tables.items()
    )
