"""The thin image of a case on a stack: the image side's code, the two manifests it reads, and what only it needs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.image_reference import LOCAL
from flagbench.images.lockfile import Lock
from flagbench.images.render.directory import Rendered, rendered
from flagbench.images.render.quoting import apt_name, index_url, plain_name, variable_name
from flagbench.images.render.stack import HOME, TINI, interpreter
from flagbench.images.render.steps import (
    COMPILE,
    PipStep,
    case_steps,
    install_programs,
    needed_to_compile,
    step_files,
    wheel_key,
)
from flagbench.images.render.templates import Templates
from flagbench.manifests.model import Case
from flagbench.manifests.stack import Compiled, Stack

PACKAGE = "flagbench_cases"
CASE_MANIFEST = re.compile(rf"{PACKAGE}/cases/[^/]+/case\.json")
ROOFS_FOLDER = f"{PACKAGE}/cases/roofs"
STACKS = f"{PACKAGE}/shared/stacks"
"""Every stack's compiled manifest; an image carries only its own."""
STACK_TIER = "stack"
"""Used in place of a case's name in `flagbench/stack:cpu`; no case can have it."""
WHEELS = f"{HOME}/wheels"
"""Where a stage that compiles leaves its wheel; it does not reach the image."""


def read_code(*packages: Path) -> dict[str, bytes]:
    """Every file of the packages, except compiled Python and hidden files: content by path, which begins with the
    package's name."""
    files: dict[str, bytes] = {}
    for package in packages:
        for path in package.rglob("*"):
            name = path.relative_to(package.parent)
            hidden = any(part == "__pycache__" or part.startswith(".") for part in name.parts)
            if path.is_file() and path.suffix not in (".pyc", ".pyo") and not hidden:
                files[name.as_posix()] = path.read_bytes()
    return files


def render_case(
    case: Case, stack: Stack, stack_rendered: Rendered, lock: Lock, code: Mapping[str, bytes], templates: Templates
) -> Rendered:
    """The build directory of a case's image.

    Args:
        stack_rendered: the stack's build directory; its digest is in a file beside the Dockerfile, so that this
            directory's digest changes with it.
        lock: the stack's.
        code: the packages, as `read_code` reads them.

    Raises:
        FlagbenchError: (usage) the case has no code in the package, or a value cannot be written to a Dockerfile;
            (build failed) an error in a template.
    """
    if case.name == STACK_TIER:
        raise FlagbenchError(
            f"no case can be called '{STACK_TIER}': it names the images of stacks",
            remedy=f"give it another name in {case.path}",
        )
    values = case_values(case, stack, lock)
    dockerfile = templates.render("case", case.name, values)
    files = code_files(case, stack, code)
    steps = case_steps(case, stack.build, lock)
    if any(steps.values()):
        files["inputs/README"] = templates.file("inputs.txt")
        programs = install_programs(stack.build, templates)
        files.update(step_files(steps, programs))
        if values["compiled"]:
            files |= {f"steps/wheels/{name}": content for name, content in programs.items()}
    files["stack.digest"] = f"{stack_rendered.name} {stack_rendered.digest}\n".encode()
    return rendered(f"{case.name}/{stack.name}", dockerfile, files)


def case_values(case: Case, stack: Stack, lock: Lock) -> dict[str, Any]:
    """What a case's template may use.

    Raises FlagbenchError (usage) for a value that cannot be written to a Dockerfile.
    """
    plain_name(case.name)
    steps = case_steps(case, stack.build, lock)
    return {
        "case": case,
        "stack": stack,
        "stack_image": f"{LOCAL}/{STACK_TIER}:{plain_name(stack.name)}",
        "home": HOME,
        "tini": TINI,
        "python": interpreter(stack),
        "wheels": WHEELS,
        "indexes": [index_url(url) for url in stack.build.indexes],
        # By the name of its folder: what is installed beside compiled wheels.
        "installed": {name: step for name, step in steps.items() if step and not name.startswith(COMPILE)},
        "compiled": [_compilation(package, steps, stack, lock) for package in needed_to_compile(case, stack.build)],
    }


def _compilation(package: Compiled, steps: Mapping[str, PipStep], stack: Stack, lock: Lock) -> dict[str, Any]:
    """What the template needs to compile one package."""
    for name in package.env:
        variable_name(name)
    return {
        "name": plain_name(package.name),
        "version": package.version,
        "reason": package.reason,
        "env": package.env,
        "apt": [apt_name(name) for name in package.apt],
        "step": steps[f"{COMPILE}{package.name}"],
        "key": wheel_key(package, stack, lock),
    }


def _case_folder(name: str) -> str:
    """The folder of a case or a family in an image."""
    return f"{PACKAGE}/cases/{name.replace('-', '_')}"


def code_files(case: Case, stack: Stack, code: Mapping[str, bytes]) -> dict[str, bytes]:
    """What an image carries of the packages, by path: all but the code and manifests of others.

    That of the case roofs stays, for `--roofs`.

    The manifests of the case and the stack are compiled from the catalog; copies in the package are ignored.
    """
    folder = _case_folder(case.name)
    code_folder = _case_folder(case.family or case.name)
    if not any(path.startswith(f"{code_folder}/") for path in code):
        raise FlagbenchError(
            f"the case {case.name} has no code: there is no {code_folder}",
            remedy="write its workload there; docs/add-a-case.md shows how",
        )
    case_folders = {posixpath.dirname(path) for path in code if CASE_MANIFEST.fullmatch(path)}
    foreign = case_folders - {folder, code_folder, ROOFS_FOLDER}
    skipped = (*(f"{path}/" for path in foreign), f"{STACKS}/", f"{code_folder}/case.json")
    carried = {path: content for path, content in code.items() if not path.startswith(skipped)}
    carried[f"{folder}/case.json"] = case.compiled.encode()
    carried[f"{STACKS}/{stack.name}.json"] = stack.compiled.encode()
    return carried
