"""images/locks/metadata.toml: the dependencies of packages whose metadata no index has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from flagbench.errors import FlagbenchError
from flagbench.locks.toml import load_toml

FILE = "metadata.toml"

Tables = Mapping[tuple[str, str], tuple[str, ...]]
"""The declared requirements of a package, as pip writes requirements, by its canonical name and version."""


def read_tables(images: Path) -> Tables:
    """The tables of an images folder; none where it has no such file.

    Raises:
        FlagbenchError: (usage) the file is not TOML, a table lacks a key, or a requirement is not one of an index.
    """
    path = images / "locks" / FILE
    if not path.is_file():
        return {}
    try:
        raw = load_toml(path.read_text(encoding="utf-8"))["dependency-metadata"]
        return {
            (canonicalize_name(table["name"]), table["version"]): tuple(map(_requirement, table["requires-dist"]))
            for table in raw
        }
    except (ValueError, KeyError, TypeError) as error:
        raise FlagbenchError(
            f"{path} is not a list of dependency-metadata tables: {error}",
            remedy="give each table `name`, `version` and `requires-dist`",
        ) from None


def _requirement(line: str) -> str:
    """The line, which names a package of an index and is no option for uv. Raises ValueError."""
    if Requirement(line).url:
        raise ValueError(f"{line!r} names a URL")
    return line


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
