"""Renders the image of a case on a stack's image: a Dockerfile and the files that it copies.

The image adds to the stack's image the code of flagbench_cases and flagbench_core, the compiled manifests of the case
and the stack, and the packages that only this case needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.image_reference import LOCAL
from flagbench.images.lockfile import Lock
from flagbench.images.render.directory import BuildDirectory, make_build_directory
from flagbench.images.render.quoting import apt_name, index_url, plain_name, variable_name
from flagbench.images.render.stack import HOME, TINI, interpreter, toolkit_values
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
"""The package with the code of cases."""
CASE_FOLDER = re.compile(rf"{PACKAGE}/cases/[^/]+(?=/)")
"""The folder, at the beginning of a path, with the code or the compiled manifest of a case."""
ROOFS_FOLDER = f"{PACKAGE}/cases/roofs"
"""The code of the case roofs, which measures a device; every case's image has it, for the option --roofs."""
STACKS = f"{PACKAGE}/shared/stacks"
"""The folder of the compiled manifests of all stacks; an image contains only that of its own stack."""
STACK_TIER = "stack"
"""Replaces a case's name in the name of a stack's image, `flagbench/stack:cpu`; no case can have this name."""
WHEELS = f"{HOME}/wheels"
"""The folder in which a stage that compiles a package leaves the wheel; the image does not contain it."""


def read_code(*packages: Path) -> dict[str, bytes]:
    """Read every file of Python packages, except compiled Python and hidden files.

    Args:
        packages: the packages' folders.

    Returns the content by path; a path begins with the package's name.
    """
    files: dict[str, bytes] = {}
    for package in packages:
        for path in package.rglob("*"):
            name = path.relative_to(package.parent)
            if path.suffix in (".pyc", ".pyo") or _is_hidden(name) or not path.is_file():
                continue
            files[name.as_posix()] = path.read_bytes()
    return files


def _is_hidden(path: Path) -> bool:
    """Whether a path is hidden, or in a folder that is; caches of compiled Python count as hidden."""
    return any(part == "__pycache__" or part.startswith(".") for part in path.parts)


def render_case(
    case: Case,
    stack: Stack,
    stack_directory: BuildDirectory,
    lock: Lock,
    code: Mapping[str, bytes],
    templates: Templates,
) -> BuildDirectory:
    """Render the build directory of a case's image.

    Args:
        stack_directory: the stack's build directory; its digest is in a file next to the Dockerfile, so that this
            directory's digest changes with it.
        lock: the lock of the stack.
        code: the packages, as `read_code` reads them.

    Raises:
        FlagbenchError: (USAGE) the case has no code in the package, or a value cannot be written to a Dockerfile;
            (BUILD_FAILED) an error in a template.
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
        files["inputs/README"] = templates.read_file("inputs.txt")
        programs = install_programs(stack.build, templates)
        files.update(step_files(steps, programs))
        if values["compiled"]:
            files |= {f"steps/wheels/{name}": content for name, content in programs.items()}
    # No step of the Dockerfile reads this file.
    files["stack.digest"] = f"{stack_directory.name} {stack_directory.digest}\n".encode()
    return make_build_directory(f"{case.name}/{stack.name}", dockerfile, files)


def case_values(case: Case, stack: Stack, lock: Lock) -> dict[str, Any]:
    """Collect the variables of a case's template; images/README.md documents them.

    Raises FlagbenchError (USAGE) for a value that cannot be written to a Dockerfile.
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
        "toolkit": toolkit_values(stack),
        # Steps that install wheels of an index, by the name of their folder.
        "installed": {name: step for name, step in steps.items() if step and not name.startswith(COMPILE)},
        "compiled": [_compilation(package, steps, stack, lock) for package in needed_to_compile(case, stack.build)],
    }


def _compilation(package: Compiled, steps: Mapping[str, PipStep], stack: Stack, lock: Lock) -> dict[str, Any]:
    """Collect the variables with which the template compiles one package."""
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
    """The folder with the code or the compiled manifest of a case."""
    return f"{PACKAGE}/cases/{name.replace('-', '_')}"


def code_files(case: Case, stack: Stack, code: Mapping[str, bytes]) -> dict[str, bytes]:
    """Select the files of the packages for a case's image: all but the code and manifests of other cases and stacks.

    The manifests of the case and the stack are compiled from the catalog; those in the packages are left out.

    Args:
        code: the packages, as `read_code` reads them.

    Raises FlagbenchError (USAGE) if the case has no code.
    """
    folder = _case_folder(case.name)
    code_folder = _case_folder(case.family or case.name)  # The cases of a family share their code.
    if not any(path.startswith(f"{code_folder}/") for path in code):
        raise FlagbenchError(
            f"the case {case.name} has no code: there is no {code_folder}",
            remedy="write its workload there; docs/add-a-case.md shows how",
        )
    case_folders = {match.group() for match in map(CASE_FOLDER.match, code) if match is not None}
    other_folders = case_folders - {folder, code_folder, ROOFS_FOLDER}
    skipped = [f"{path}/" for path in other_folders]
    skipped += [f"{STACKS}/", f"{code_folder}/case.json"]
    files = {path: content for path, content in code.items() if not path.startswith(tuple(skipped))}
    files[f"{folder}/case.json"] = case.compiled.encode()
    files[f"{STACKS}/{stack.name}.json"] = stack.compiled.encode()
    return files
