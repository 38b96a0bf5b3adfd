"""The pip commands of an image: which of a lock's packages each installs, in the stack's tier and in a case's."""

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

# The dependencies of `import torch` beside NVIDIA's libraries (Requires-Dist of its wheels): installed together with
# torch, so that a package that is compiled against torch can import it.
_WITH_TORCH = frozenset(
    {"torch", "triton", "pytorch-triton", "filelock", "typing-extensions", "sympy", "mpmath", "networkx"}
    | {"jinja2", "markupsafe", "fsspec", "numpy"}
)
# What the setup.py of flash-attn and of DeepSpeed import.
_BUILD_TOOLS = frozenset({"setuptools", "wheel", "packaging", "ninja", "psutil"})

COMPILE = "compile-"


@dataclass(frozen=True)
class PipStep:
    """The requirement files of one pip command; an empty text is a file that is not there."""

    locked: str
    unlocked: str
    python: str | None = None
    """Minor version of another Python whose wheels are installed; None: the stack's."""

    def __bool__(self) -> bool:
        return bool(self.locked or self.unlocked)


def stack_steps(stack: Stack, lock: Lock) -> dict[str, PipStep]:
    """The steps that install the packages of a stack's image: `torch`, unless the base has it, and `packages`.

    Raises FlagbenchError (usage) where the lock lacks a package that only cases need.
    """
    names = _names(lock)
    if missing := sorted(_for_cases(stack.build) - names):
        raise FlagbenchError(
            f"the lock of {lock.stack} has no {', '.join(missing)}, which the stack names",
            remedy=f"lock the stack again with `flagbench lock {lock.stack}`",
        )
    installed = stack_packages(stack, lock)
    torch = {name for name in installed if _belongs_to_torch(name)} if "torch" in names else set()
    return {"torch": _step(lock, torch), "packages": _step(lock, installed - torch)}


def case_steps(case: Case, build: StackBuild, lock: Lock) -> dict[str, PipStep]:
    """`optional`, `python-VERSION` and `compile-NAME`: what the image of a case installs beside its stack's.

    What a setup imports is the stack's: a wheel is compiled on its image, without build isolation.
    """
    steps = {"optional": _step(lock, _optional(build) & set(case.needs))}
    for python in sorted({package.python for package in build.other_python}):
        names = {plain_name(name) for name in _other_python(build, python) & set(case.needs)}
        steps[f"python-{python_version(python)}"] = replace(_step(lock, names), python=python)
    for package in needed_to_compile(case, build):
        steps[f"{COMPILE}{package.name}"] = _step(lock, {canonical(package.name)})
    return steps


def needed_to_compile(case: Case, build: StackBuild) -> list[Compiled]:
    """The packages that a stack compiles for a case."""
    return [package for package in build.compiled if canonical(package.name) in case.needs]


def stack_packages(stack: Stack, lock: Lock) -> frozenset[str]:
    """Names of the lock's packages that the image of a stack installs."""
    return frozenset(_names(lock) - _for_cases(stack.build))


def case_packages(case: Case, stack: Stack, lock: Lock) -> frozenset[str]:
    """Names of the lock's packages whose files the build of a case's image needs; none for most cases."""
    compiled = {canonical(package.name) for package in needed_to_compile(case, stack.build)}
    others = _optional(stack.build) | _other_python(stack.build)
    return frozenset(compiled | (others & set(case.needs)))


def wheel_key(package: Compiled, stack: Stack, lock: Lock) -> str:
    """`name-<12 hex>`: identifies everything but the base that determines a compiled wheel.

    The hash is over the package's file, the torch and tools that it is compiled with, Python, platform, environment.
    """
    torch = stack_steps(stack, lock)["torch"]
    decisive = [
        [(step.locked, step.unlocked) for step in (_step(lock, {canonical(package.name)}), torch)],
        select_packages(lock, _BUILD_TOOLS).hashed_requirements(),
        [stack.python, stack.platform, stack.build.interpreter, sorted(package.env.items())],
    ]
    summed = hashlib.sha256(json.dumps(decisive).encode()).hexdigest()
    return f"{package.name}-{summed[:12]}"


def install_programs(build: StackBuild, templates: Templates) -> dict[str, bytes]:
    """The scripts of a step that installs packages, by file name."""
    names = ["install.sh"]
    if build.interpreter:
        names.append("uninstall.py")
    return {name: templates.file(name) for name in names}


def step_files(steps: Mapping[str, PipStep], programs: Mapping[str, bytes]) -> dict[str, bytes]:
    """For each step what it needs and no more, so that nothing else repeats it.

    Args:
        programs: as `install_programs` gives them.
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


def _names(lock: Lock) -> set[str]:
    return {entry.name for entry in (*lock.entries, *lock.unresolved)}


def _optional(build: StackBuild) -> set[str]:
    return {canonical(line.partition("==")[0]) for line in build.optional}


def _other_python(build: StackBuild, python: str | None = None) -> set[str]:
    return {canonical(package.name) for package in build.other_python if python in (None, package.python)}


def _for_cases(build: StackBuild) -> set[str]:
    return {canonical(package.name) for package in build.compiled} | _optional(build) | _other_python(build)


def _step(lock: Lock, wanted: Collection[str]) -> PipStep:
    part = select_packages(lock, wanted)
    return PipStep(part.hashed_requirements(), part.unhashed_requirements())


def _belongs_to_torch(name: str) -> bool:
    libraries = name.startswith(("nvidia-", "cuda-")) and name != "nvidia-ml-py"
    return libraries or name in _WITH_TORCH
