"""Manifests compiled to the JSON that the image side reads with the standard library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.stack import Stack
from flagbench.system.files import write_atomically


def compiled_files(cases: Iterable[Case], stacks: Iterable[Stack]) -> dict[str, str]:
    """The compiled files of cases and stacks: their texts by their paths in the image side's package."""
    files = {f"cases/{case.name.replace('-', '_')}/case.json": case.compiled for case in cases}
    return files | {f"shared/stacks/{stack.name}.json": stack.compiled for stack in stacks}


def image_package(catalog: Catalog) -> Path:
    """The image side's package beside the manifests. Raises FlagbenchError (usage) outside a checkout."""
    package = catalog.root.parent / "entrypoints" / "flagbench_cases"
    if not package.is_dir():
        raise FlagbenchError(
            f"{catalog.root} is not in a checkout: there is no {package}",
            remedy="run this in a checkout of flagbench",
        )
    return package


def stale_compiled(catalog: Catalog, package: Path) -> dict[str, str | None]:
    """Compiled files that are missing, differ from the manifests or have no manifest any more: see `find_stale`."""
    wanted = compiled_files(catalog.cases.values(), catalog.stacks.values())
    return find_stale(package, wanted, ("cases/*/case.json", "shared/stacks/*.json"))


def find_stale(root: Path, wanted: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str | None]:
    """Generated files under `root` that are missing, differ or are left over: the text each should have, by path.

    Args:
        wanted: the text of every generated file by its path.
        patterns: what matches a generated file; one that is not wanted is left over, and its text is None.
    """
    names = {*wanted}
    for pattern in patterns:
        names |= {path.relative_to(root).as_posix() for path in root.glob(pattern)}
    stale = {}
    for name in sorted(names):
        text = wanted.get(name)
        if committed_text(root / name) != text:
            stale[name] = text
    return stale


def write_stale(root: Path, stale: Mapping[str, str | None]) -> list[str]:
    """Bring files that `find_stale` found up to date, and remove the left-over; returns their paths."""
    for name, text in stale.items():
        path = root / name
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
            continue
        path.unlink()
        for folder in path.parents:
            if folder == root or any(folder.iterdir()):
                break
            folder.rmdir()
    return list(stale)


def committed_text(path: Path) -> str | None:
    """The text of a generated file; None if it is missing."""
    if not path.is_file():
        return None
    return path.read_text(encoding="utf-8")
