"""Compiles manifests to JSON files, which the image side reads with the standard library, and finds stale ones.

The files are committed in the package flagbench_cases. `flagbench manifests compile` writes them. `find_stale` and
`write_stale` also serve other generated files, such as the Dockerfiles of images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.stack import Stack
from flagbench.system.files import write_atomically


def compiled_files(cases: Iterable[Case], stacks: Iterable[Stack]) -> dict[str, str]:
    """Compile cases and stacks; returns the text of each file by its path in the image side's package."""
    files = {f"cases/{case.name.replace('-', '_')}/case.json": case.compiled for case in cases}
    return files | {f"shared/stacks/{stack.name}.json": stack.compiled for stack in stacks}


def image_package(catalog: Catalog) -> Path:
    """Find the image side's package next to the manifests. Raises FlagbenchError (USAGE) outside a checkout."""
    package = catalog.root.parent / "entrypoints" / "flagbench_cases"
    if not package.is_dir():
        raise FlagbenchError(
            f"{catalog.root} is not in a checkout: there is no {package}",
            remedy="run this in a checkout of flagbench",
        )
    return package


def stale_compiled(catalog: Catalog, package: Path) -> dict[str, str | None]:
    """Find compiled files that are missing, differ from the manifests or have no manifest any more.

    The result is that of `find_stale`.
    """
    wanted = compiled_files(catalog.cases.values(), catalog.stacks.values())
    return find_stale(package, wanted, ("cases/*/case.json", "shared/stacks/*.json"))


def find_stale(root: Path, wanted: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str | None]:
    """Find generated files under `root` that are missing, differ or are left over.

    Args:
        wanted: the text of every generated file by its path, relative to `root`.
        patterns: glob patterns that match all generated files; a file that is not in `wanted` is left over.

    Returns the text that each such file should have, by path; None if the file is left over.
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
    """Write the files that `find_stale` found, and remove those that are left over; returns the paths of both."""
    for name, text in stale.items():
        path = root / name
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
            continue
        path.unlink()
        # Folders that are empty now are removed, too.
        for folder in path.parents:
            if folder == root or any(folder.iterdir()):
                break
            folder.rmdir()
    return list(stale)


def committed_text(path: Path) -> str | None:
    """Read the text of a generated file; None if it is missing."""
    if not path.is_file():
        return None
    return path.read_text(encoding="utf-8")
