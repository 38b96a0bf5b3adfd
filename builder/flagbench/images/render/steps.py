"""Divides a lock's packages among the steps of the stack's image and of the cases' images, one pip command a step.

The stack's image installs what all cases need. Packages under `optional`, `compiled` and `other_python` of the
stack's manifest are installed only in the images of cases that need them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from flagbench.errors import FlagbenchError
from flagbench.images.lockfile import Lock, canonical, select_packages
from flagbench.images.render.quoting import plain_name, python_version
from flagbench.images.render.templates import Templates
from flagbench.manifests.model import Case
from flagbench.manifests.stack import Compiled, Stack, StackBuild

_WITH_TORCH = frozenset(
    {"torch", "triton", "pytorch-triton", "filelock", "typing-extensions", "sympy", "mpmath", "networkx"}
    | {"jinja2", "markupsafe", "fsspec", "numpy"}
)
"""torch and what it imports besides NVIDIA's libraries (Requires-Dist of its wheels). They are installed in one step,
so that a package that is compiled on top of it can import torch."""
_BUILD_TOOLS = frozenset({"setuptools", "wheel", "packaging", "ninja", "psutil"})
"""The packages that the setup.py of flash-attn and of DeepSpeed import."""
_KEY_DIGITS = 12
"""Hexadecimal digits of the digest in the key of a compiled wheel: enough for the few wheels of one cache."""
COMPILE = "compile-"
"""The beginning of the name of a step that compiles a package."""


@dataclass(frozen=True)
class PipStep:
    """The requirements files of one pip command. It is false in a condition if there is nothing to install."""

    locked: str
    """The text of the file of packages with hashes; empty if there are none."""
    unlocked: str
    """The text of the file of unresolved packages; empty if there are none."""
    python: str | None = None
    """The minor version of the Python whose wheels are installed; None: the stack's."""

    def __bool__(self) -> bool:
        """Whether there is anything to install; templates leave out a step without packages."""
        return bool(self.locked or self.unlocked)


def stack_steps(stack: Stack, lock: Lock) -> dict[str, PipStep]:
    """Build the steps of a stack's image, by name: `torch`, which is empty if the base has it, and `packages`.

    Raises FlagbenchError (USAGE) if the lock lacks a package that only cases need.
    """
    names = _locked_names(lock)
    missing = sorted(_names_for_cases(stack.build) - names)
    if missing:
        raise FlagbenchError(
            f"the lock of {lock.stack} has no {', '.join(missing)}, which the stack names",
            remedy=f"lock the stack again with `flagbench lock {lock.stack}`",
        )
    installed = stack_packages(stack, lock)
    torch: set[str] = set()
    if "torch" in names:
        torch = {name for name in installed if _belongs_to_torch(name)}
    return {"torch": _make_step(lock, torch), "packages": _make_step(lock, installed - torch)}


def case_steps(case: Case, build: StackBuild, lock: Lock) -> dict[str, PipStep]:
    """Build the steps of a case's image, by name: `optional`, `python-VERSION` and `compile-NAME`.

    A package is compiled on the stack's image, without build isolation, so its setup imports the stack's packages.
    """
    needs = set(case.needs)
    steps = {"optional": _make_step(lock, _names_of_optional(build) & needs)}
    for python in sorted({package.python for package in build.other_python}):
        names = {plain_name(name) for name in _names_of_other_python(build, python) & needs}
        steps[f"python-{python_version(python)}"] = replace(_make_step(lock, names), python=python)
    for package in needed_to_compile(case, build):
        steps[f"{COMPILE}{package.name}"] = _make_step(lock, {canonical(package.name)})
    return steps


def needed_to_compile(case: Case, build: StackBuild) -> list[Compiled]:
    """Select the packages that a stack compiles for a case."""
    return [package for package in build.compiled if canonical(package.name) in case.needs]


def stack_packages(stack: Stack, lock: Lock) -> frozenset[str]:
    """Select the lock's packages that the image of a stack installs, by canonical name."""
    return frozenset(_locked_names(lock) - _names_for_cases(stack.build))


def case_packages(case: Case, stack: Stack) -> frozenset[str]:
    """Select the lock's packages whose files the build of a case's image needs; most cases need none.

    They are returned by canonical name.
    """
    compiled = {canonical(package.name) for package in needed_to_compile(case, stack.build)}
    wheels = _names_of_optional(stack.build) | _names_of_other_python(stack.build)
    return frozenset(compiled | (wheels & set(case.needs)))


def wheel_key(package: Compiled, stack: Stack, lock: Lock) -> str:
    """Compute the key of a compiled wheel in the cache of builds, `name-<12 hex>`.

    It is over everything that determines the wheel, except the base: the package's file, the torch and the tools that
    it is compiled with, Python, platform and environment.
    """
    source = _make_step(lock, {canonical(package.name)})
    torch = stack_steps(stack, lock)["torch"]
    decisive = [
        [(source.locked, source.unlocked), (torch.locked, torch.unlocked)],
        select_packages(lock, _BUILD_TOOLS).hashed_requirements(),
        [stack.python, stack.platform, stack.build.interpreter, sorted(package.env.items())],
    ]
    if lock.toolkit is not None:
        decisive.append(lock.toolkit)
    digest = hashlib.sha256(json.dumps(decisive).encode()).hexdigest()
    return f"{package.name}-{digest[:_KEY_DIGITS]}"


def install_programs(build: StackBuild, templates: Templates) -> dict[str, bytes]:
    """Read the scripts of a step that installs packages, by file name."""
    names = ["install.sh"]
    if build.interpreter:
        names.append("uninstall.py")
    return {name: templates.read_file(name) for name in names}


def step_files(steps: Mapping[str, PipStep], programs: Mapping[str, bytes]) -> dict[str, bytes]:
    """Lay out the files of each step in a folder of its own, `steps/NAME`; content by path.

    A folder has only what its step needs: the engine repeats a step if a file in its folder changes.

    Args:
        programs: the scripts, as `install_programs` reads them.
    """
    files: dict[str, bytes] = {}
    for name, step in steps.items():
        texts = {"requirements.lock": step.locked, "requirements.unlocked": step.unlocked}
        files |= {f"steps/{name}/{file}": text.encode() for file, text in texts.items() if text}
        if not step:
            continue
        files[f"steps/{name}/install.sh"] = programs["install.sh"]
        if "uninstall.py" in programs and not name.startswith(COMPILE):
            files[f"steps/{name}/uninstall.py"] = programs["uninstall.py"]
    return files


def _locked_names(lock: Lock) -> set[str]:
    """The canonical names of all packages of a lock."""
    return {entry.name for entry in (*lock.entries, *lock.unresolved)}


def _names_of_optional(build: StackBuild) -> set[str]:
    """The canonical names of the packages under `optional`."""
    return {canonical(line.partition("==")[0]) for line in build.optional}


def _names_of_other_python(build: StackBuild, python: str | None = None) -> set[str]:
    """The canonical names of the packages under `other_python`: those for one Python, or all of them."""
    return {canonical(package.name) for package in build.other_python if python in (None, package.python)}


def _names_for_cases(build: StackBuild) -> set[str]:
    """The canonical names of the packages that only images of cases install."""
    compiled = {canonical(package.name) for package in build.compiled}
    return compiled | _names_of_optional(build) | _names_of_other_python(build)


def _make_step(lock: Lock, names: Collection[str]) -> PipStep:
    """Make the step that installs the lock's packages of these canonical names."""
    part = select_packages(lock, names)
    return PipStep(part.hashed_requirements(), part.unhashed_requirements())


def _belongs_to_torch(name: str) -> bool:
    """Whether a package is torch, or one that it needs."""
    is_cuda_library = name.startswith(("nvidia-", "cuda-")) and name != "nvidia-ml-py"
    return is_cuda_library or name in _WITH_TORCH
