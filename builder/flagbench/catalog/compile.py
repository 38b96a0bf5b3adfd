"""Manifests compiled to the JSON that the image side reads with the standard library."""

from __future__ import annotations

import json
from pathlib import Path

from flagbench.catalog.model import Case, Catalog, Stack
from flagbench.errors import FlagbenchError
from flagbench.schema import shipped_manifests


def compiled_manifest(manifest: Case | Stack) -> str:
    """The whole manifest as case.json or stacks/NAME.json: keys sorted, indented by one, newline at the end."""
    return json.dumps(manifest.raw, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def compiled_files(catalog: Catalog) -> dict[str, str]:
    """Every compiled file: its path inside the image side's package, and its text."""
    files = {
        f"cases/{case.name.replace('-', '_')}/case.json": compiled_manifest(case) for case in catalog.cases.values()
    }
    files |= {f"shared/stacks/{stack.name}.json": compiled_manifest(stack) for stack in catalog.stacks.values()}
    files["shared/store.json"] = (shipped_manifests() / "store-v1.json").read_text(encoding="utf-8")
    return files


def image_package(catalog: Catalog) -> Path:
    """The image side's package beside the manifests. Raises FlagbenchError (usage) outside a checkout."""
    package = catalog.root.parent / "entrypoints" / "flagbench_cases"
    if not package.is_dir():
        raise FlagbenchError(
            f"{catalog.root} is not in a checkout: there is no {package}",
            remedy="run this in a checkout of flagbench",
        )
    return package


def stale_files(catalog: Catalog, package: Path) -> list[str]:
    """Compiled files that are missing, differ from the manifests or have no manifest any more, sorted."""
    wanted = compiled_files(catalog)
    stale = {name for name, text in wanted.items() if _text(package / name) != text}
    found = [*package.glob("cases/*/case.json"), *package.glob("shared/stacks/*.json")]
    left_over = {path.relative_to(package).as_posix() for path in found} - set(wanted)
    return sorted(stale | left_over)


def write_compiled(catalog: Catalog, package: Path) -> list[str]:
    """Bring the compiled files up to date; returns those that were written or removed."""
    wanted = compiled_files(catalog)
    changed = stale_files(catalog, package)
    for name in changed:
        path = package / name
        if name not in wanted:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[name], encoding="utf-8")
    return changed


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
