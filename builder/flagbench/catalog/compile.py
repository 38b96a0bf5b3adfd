"""Manifests compiled to the JSON that the image side reads with the standard library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from flagbench.catalog.model import Catalog
from flagbench.errors import FlagbenchError
from flagbench.files import write_atomically
from flagbench.schema import shipped_manifests

_IMAGE_SIDE = {
    "flagbench.evidence": "flagbench_cases.shared.evidence",
    "flagbench.s3": "flagbench_cases.shared.s3",
    "flagbench.stats": "flagbench_cases.shared.stats",
    "flagbench.redaction": "flagbench_cases.shared.credentials",
}
"""Modules of the host side that the image side has a copy of, and the copy."""
_PACKAGE = Path(__file__).parents[1]
"""The host side's, whose modules are copied and need not be imported."""
_HOST_ONLY = ("between.py", "compare.py", "looks.py")
"""An image knows one run only."""


def compiled_files(catalog: Catalog) -> dict[str, str]:
    """Every compiled file: its path inside the image side's package, and its text."""
    files = {f"cases/{case.name.replace('-', '_')}/case.json": case.compiled for case in catalog.cases.values()}
    files |= {f"shared/stacks/{stack.name}.json": stack.compiled for stack in catalog.stacks.values()}
    files["shared/store.json"] = (shipped_manifests() / "store-v1.json").read_text(encoding="utf-8")
    # The two packages never import each other, and both must find the same credentials, use buckets alike and compute
    # the same numbers.
    files["shared/credentials.py"] = _copied(_PACKAGE / "redaction.py")
    for name in ("s3", "evidence", "stats"):
        paths = (path for path in (_PACKAGE / name).glob("*.py") if path.name not in _HOST_ONLY)
        files |= {f"shared/{name}/{path.name}": _copied(path) for path in paths}
    return files


def _copied(path: Path) -> str:
    """A module of the host side as the image side has it."""
    text = path.read_text(encoding="utf-8")
    for ours, theirs in _IMAGE_SIDE.items():
        text = text.replace(f"from {ours}", f"from {theirs}")
    name = path.relative_to(_PACKAGE).as_posix()
    return f"# A copy of builder/flagbench/{name}, made by `flagbench manifests compile`.\n{text}"


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
    copies = [f"{copy.partition('.')[2].replace('.', '/')}/*.py" for copy in _IMAGE_SIDE.values()]
    return find_stale(package, compiled_files(catalog), ("cases/*/case.json", "shared/stacks/*.json", *copies))


def find_stale(root: Path, wanted: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str | None]:
    """Generated files under `root` that are not as they should be, by path: the text each should have.

    Args:
        wanted: the text of every generated file by its path.
        patterns: what matches a generated file; one that is not wanted is left over, and its text is None.
    """
    found = (path.relative_to(root).as_posix() for pattern in patterns for path in root.glob(pattern))
    names = sorted({*wanted, *found})
    return {name: wanted.get(name) for name in names if committed_text(root / name) != wanted.get(name)}


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
    return path.read_text(encoding="utf-8") if path.is_file() else None
