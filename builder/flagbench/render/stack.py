"""The heavy image of a stack: its Dockerfile, and the files that each step of it needs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagbench.catalog.model import Stack, StackBuild
from flagbench.errors import FlagbenchError
from flagbench.locks.model import Lock, canonical
from flagbench.render.environment import render_template
from flagbench.render.model import Rendered, rendered
from flagbench.render.quoting import (
    absolute_path,
    apt_name,
    image_reference,
    index_url,
    plain_name,
    python_version,
    variable_name,
)
from flagbench.render.roots import shipped_images

HOME = "/opt/flagbench"
"""What belongs to flagbench in an image."""
VENV = f"{HOME}/venv"
WHEELS = f"{HOME}/wheels"
"""Where the stage that compiles leaves its wheels; it does not reach the image."""
BASE_PACKAGES = f"{HOME}/base-packages.json"
"""The versions that the base brought, noted before anything was installed over it."""
USER_HOME = "/home/flagbench"
TINI = "/usr/bin/tini"
EPOCH = 315532800
"""SOURCE_DATE_EPOCH where none is given: 1980-01-01, the earliest time that a zip file, hence a wheel, can hold."""

# What `import torch` needs beside NVIDIA's libraries (Requires-Dist of its wheels): installed together with torch, so
# that what is compiled against it finds it whole.
_WITH_TORCH = frozenset(
    {"torch", "triton", "pytorch-triton", "filelock", "typing-extensions", "sympy", "mpmath", "networkx"}
    | {"jinja2", "markupsafe", "fsspec", "numpy"}
)
# What the setup.py of flash-attn and of DeepSpeed import; --no-build-isolation leaves it to whoever calls.
_BUILD_TOOLS = frozenset({"setuptools", "wheel", "packaging", "ninja", "psutil"})
_OURS = frozenset({"HOME", "PATH", "PYTHONPATH"})


@dataclass(frozen=True)
class Step:
    """The requirement files of one pip command; an empty text is a file that is not there."""

    locked: str
    unlocked: str

    def __bool__(self) -> bool:
        return bool(self.locked or self.unlocked)


def interpreter(stack: Stack) -> str:
    """The Python of a stack's image: the base's, or that of our own virtual environment."""
    return absolute_path(stack.build.interpreter or f"{VENV}/bin/python3")


def render_stack(stack: Stack, lock: Lock, images: Path, template: Path | None = None) -> Rendered:
    """The build directory of a stack's image.

    Args:
        images: the folder with templates/ and files/; what is not there is flagbench's own.
        template: a person's template that extends the stack's.

    Raises:
        FlagbenchError: (usage) a value that cannot stand in a Dockerfile; (build failed) an error in a template.
    """
    _require_plain(stack)
    steps = _steps(stack.build, lock)
    values: dict[str, Any] = {
        "stack": stack,
        "lock": lock,
        "base": _base(lock),
        "pinned": lock.base_digest is not None,
        "epoch": EPOCH,
        "python_version": python_version(stack.python),
        "python": interpreter(stack),
        "apt": [apt_name(name) for name in _apt(stack)],
        "indexes": [index_url(url) for url in stack.build.indexes],
        "torch": steps["torch"],
        "packages": steps["packages"],
        "build_tools": steps["build-tools"],
        "compiled": [(package, steps[f"compile-{package.name}"]) for package in stack.build.compiled],
        "env": _environment(stack, lock),
        "home": HOME,
        "venv": VENV,
        "wheels": WHEELS,
        "kept": BASE_PACKAGES,
        "user_home": USER_HOME,
    }
    dockerfile = render_template(images, [f"stacks/{stack.name}.j2", "stack.j2"], values, template)
    return rendered(f"stack/{stack.name}", dockerfile, _files(stack, steps, images))


def _require_plain(stack: Stack) -> None:
    """Names that templates write as they stand, whatever a manifest's schema let through."""
    for name in (stack.name, *(package.name for package in stack.build.compiled)):
        plain_name(name)
    for variables in (stack.build.env, *(package.env for package in stack.build.compiled)):
        for name in variables:
            variable_name(name)
    if reserved := [name for name in stack.build.env if name in _OURS or name.startswith("FLAGBENCH_")]:
        raise FlagbenchError(
            f"the stack {stack.name} sets {', '.join(reserved)}, which every image sets itself",
            remedy=f"take it out of build.env in {stack.path}",
        )


def _base(lock: Lock) -> str | None:
    """The default of the build argument BASE; None: it has to be given."""
    if lock.base_image is None:
        return None
    return image_reference(f"{lock.base_image}@{lock.base_digest}" if lock.base_digest else lock.base_image)


def _apt(stack: Stack) -> list[str]:
    """Debian packages of the image. tini forwards signals to every process of a run."""
    python = [] if stack.build.interpreter else [f"python{stack.python}-venv"]
    return list(dict.fromkeys(["tini", *python, *stack.build.apt]))


def _environment(stack: Stack, lock: Lock) -> dict[str, str]:
    """What ENV sets, but for the two variables that extend the base's own."""
    return {
        **stack.build.env,
        "FLAGBENCH_STACK": stack.name,
        "FLAGBENCH_LOCK_DIGEST": lock.digest,
        "HOME": USER_HOME,
        "XDG_CACHE_HOME": f"{USER_HOME}/.cache",
        # Their defaults depend on the name of the user, which an arbitrary uid has not.
        "TORCHINDUCTOR_CACHE_DIR": f"{USER_HOME}/.cache/torchinductor",
        "TRITON_CACHE_DIR": f"{USER_HOME}/.cache/triton",
        "PYTHONUNBUFFERED": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def _steps(build: StackBuild, lock: Lock) -> dict[str, Step]:
    """Every pip command of the image by the name of its folder under steps/.

    torch has a step of its own where this build installs it. A package to compile is in none but its own, and so
    is what a changed pin of another package would make compile again for nothing.
    """
    names = {entry.name for entry in (*lock.entries, *lock.unresolved)}
    compiled = {canonical(package.name) for package in build.compiled}
    if missing := sorted(compiled - names):
        raise FlagbenchError(
            f"the lock of {lock.stack} has no {', '.join(missing)}, which the stack compiles",
            remedy=f"lock the stack again with `flagbench lock {lock.stack}`",
        )
    torch = {name for name in names if _belongs_to_torch(name)} - compiled if "torch" in names else set()
    rest = names - compiled - torch
    steps = {
        "torch": _step(lock, names, torch),
        "packages": _step(lock, names, rest),
        "build-tools": _step(lock, names, rest & _BUILD_TOOLS if compiled else set()),
    }
    for package in build.compiled:
        steps[f"compile-{package.name}"] = _step(lock, names, {canonical(package.name)})
    return steps


def _step(lock: Lock, names: Collection[str], wanted: Collection[str]) -> Step:
    others = [name for name in names if name not in wanted]
    return Step(lock.hashed_requirements(exclude=others), lock.unhashed_requirements(exclude=others))


def _belongs_to_torch(name: str) -> bool:
    libraries = name.startswith(("nvidia-", "cuda-")) and name != "nvidia-ml-py"
    return libraries or name in _WITH_TORCH


def _files(stack: Stack, steps: Mapping[str, Step], images: Path) -> dict[str, bytes]:
    """What lies beside the Dockerfile: for each step what it needs and no more, so that nothing else repeats it."""
    install, check_base, check_stack = (
        _file(images, name) for name in ("install.sh", "check_base.sh", "check_stack.py")
    )
    files = {
        "inputs/README": _file(images, "inputs.txt"),
        "steps/base/check_base.sh": check_base,
        "steps/apt/install.sh": install,
        "steps/check/check_stack.py": check_stack,
        "steps/check/stack.json": _expectations(stack, steps).encode(),
    }
    for name, step in steps.items():
        if step:
            files[f"steps/{name}/install.sh"] = install
        if step.locked:
            files[f"steps/{name}/requirements.lock"] = step.locked.encode()
        if step.unlocked:
            files[f"steps/{name}/requirements.unlocked"] = step.unlocked.encode()
    return files


def _expectations(stack: Stack, steps: Mapping[str, Step]) -> str:
    expected = {
        "python": stack.python,
        "expects": dict(stack.expects),
        "from_base": sorted(stack.build.from_base) if stack.build.interpreter else [],
        "imports": ["torch"] if steps["torch"] else [],
    }
    return json.dumps(expected, sort_keys=True, indent=1) + "\n"


def _file(images: Path, name: str) -> bytes:
    """A file of images/files, else flagbench's own."""
    for folder in (images, shipped_images()):
        path = folder / "files" / name
        if path.is_file():
            return path.read_bytes()
    raise FlagbenchError(
        f"there is no {images / 'files' / name}", remedy="install flagbench again, or put the file back"
    )
