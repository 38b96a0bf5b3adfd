"""Renders the image of a stack, on which the images of its cases are built: a Dockerfile and the files of its steps.

A step is a RUN instruction. Its files are in a folder of its own, so that a change of one step's files leaves the
cached results of the others valid.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.images.lockfile import Lock
from flagbench.images.render import quoting
from flagbench.images.render.directory import BuildDirectory, make_build_directory
from flagbench.images.render.steps import install_programs, stack_steps, step_files
from flagbench.images.render.templates import Templates
from flagbench.manifests.stack import Stack

HOME = "/opt/flagbench"
"""The folder of everything of flagbench in an image."""
VENV = f"{HOME}/venv"
"""The virtual environment of images whose base has no Python for the stack."""
BASE_PACKAGES = f"{HOME}/base-packages.json"
"""The file with the versions of the base's packages, written before others are installed over them."""
USER_HOME = "/home/flagbench"
"""The home of whatever user runs a container."""
TINI = "/usr/bin/tini"
"""The first process of a container, which forwards signals."""

_RDMA = {
    "libibverbs.so.1": ("libibverbs1", "ibverbs-providers"),
    "librdmacm.so.1": ("librdmacm1",),
}
"""The libraries that NCCL loads to use InfiniBand, with the Debian packages that contain each. The package rdma-core
is left out: its udev rules and services are for a host."""
_OUR_VARIABLES = frozenset({"HOME", "PATH", "PYTHONPATH", "PYTHONHOME", "MAX_JOBS"})
"""Environment variables that every image or its build sets, besides those that begin with FLAGBENCH_."""


def interpreter(stack: Stack) -> str:
    """The path of the Python in a stack's image: the base's, or that of our own virtual environment."""
    return quoting.absolute_path(stack.build.interpreter or f"{VENV}/bin/python3")


def render_stack(stack: Stack, lock: Lock, templates: Templates) -> BuildDirectory:
    """Render the build directory of a stack's image.

    Raises FlagbenchError: (USAGE) a value cannot be written to a Dockerfile; (BUILD_FAILED) an error in a template.
    """
    values = stack_values(stack, lock)
    dockerfile = templates.render("stack", stack.name, values)
    steps = {name: values[name] for name in ("torch", "packages")}
    programs = install_programs(stack.build, templates)
    files = {
        "inputs/README": templates.read_file("inputs.txt"),
        "steps/base/check_base.sh": templates.read_file("check_base.sh"),
        "steps/apt/install.sh": programs["install.sh"],
        "steps/check/check_stack.py": templates.read_file("check_stack.py"),
        "steps/check/stack.json": _expectations(stack, bool(steps["torch"])).encode(),
        **step_files(steps, programs),
    }
    return make_build_directory(f"stack/{stack.name}", dockerfile, files)


def stack_values(stack: Stack, lock: Lock) -> dict[str, Any]:
    """Collect the variables of a stack's template; images/README.md documents them.

    Raises FlagbenchError (USAGE) for a value that cannot be written to a Dockerfile.
    """
    _require_valid_names(stack)
    return {
        **stack_steps(stack, lock),
        "stack": stack,
        "base": _base_reference(lock),
        "pinned": lock.base_digest is not None,
        "toolkit": toolkit_values(stack),
        "python_version": quoting.python_version(stack.python),
        "python": interpreter(stack),
        "apt": [*map(quoting.apt_name, _apt_packages(stack)), *_rdma_packages(stack)],
        "indexes": [quoting.index_url(url) for url in stack.build.indexes],
        "env": _environment(stack, lock),
        "home": HOME,
        "venv": VENV,
        "kept": BASE_PACKAGES,
        "user_home": USER_HOME,
    }


def toolkit_values(stack: Stack) -> dict[str, Any] | None:
    """Collect the variables with which a template takes the stack's toolkit from its image; None if it has none.

    Raises FlagbenchError (usage) for a value that cannot be written to a Dockerfile.
    """
    toolkit = stack.build.toolkit
    if toolkit is None:
        return None
    folder = quoting.absolute_path(toolkit.folder)
    for file in toolkit.files:
        quoting.absolute_path(f"{folder}/{file}")
    return {"image": quoting.image_reference(toolkit.image), "folder": folder, "files": toolkit.files}


def _require_valid_names(stack: Stack) -> None:
    """Check that names can be written without quotes, and that no variable is one that every image sets itself.

    Raises FlagbenchError (USAGE) if not.
    """
    quoting.plain_name(stack.name)
    reserved = []
    for name in stack.build.env:
        quoting.variable_name(name)
        if name in _OUR_VARIABLES or name.startswith("FLAGBENCH_"):
            reserved.append(name)
    if reserved:
        raise FlagbenchError(
            f"the stack {stack.name} sets {', '.join(reserved)}, which every image sets itself",
            remedy=f"take it out of build.env in {stack.path}",
        )


def _base_reference(lock: Lock) -> str | None:
    """The default of the build argument BASE; None if it has no default, so that a build has to give it."""
    if lock.base_image is None:
        return None
    reference = lock.base_image
    if lock.base_digest:
        reference = f"{lock.base_image}@{lock.base_digest}"
    return quoting.image_reference(reference)


def _apt_packages(stack: Stack) -> list[str]:
    """List the Debian packages of the image, each once.

    tini forwards signals to every process of a run. The compiler and Python's headers are for what is compiled during
    a run: Triton's launcher, torch.compile and DeepSpeed's operators. A Python that is not the distribution's, such
    as conda's, has its own headers.
    """
    packages = ["tini", "g++"]
    interpreter = stack.build.interpreter
    if not interpreter:
        packages.append(f"python{stack.python}-venv")
    if interpreter is None or PurePosixPath(interpreter).parent == PurePosixPath("/usr/bin"):
        packages.append(f"python{stack.python}-dev")
    packages += stack.build.apt
    return list(dict.fromkeys(packages))


def _rdma_libraries(stack: Stack) -> list[str]:
    """List the libraries of _RDMA if containers of the stack get InfiniBand devices, else none."""
    if "/dev/infiniband" not in stack.docker.multi_node.devices:
        return []
    return [*_RDMA]


def _rdma_packages(stack: Stack) -> list[str]:
    """List the packages of these libraries as `PACKAGE@LIBRARY`.

    `install.sh apt` installs such a package only if the base does not have the library; a vendor's own one is kept.
    """
    packages = []
    for library in _rdma_libraries(stack):
        packages += [f"{package}@{library}" for package in _RDMA[library]]
    return packages


def _environment(stack: Stack, lock: Lock) -> dict[str, str]:
    """The variables that ENV sets, without PATH, which extends the base's own."""
    return {
        **stack.build.env,
        "FLAGBENCH_STACK": stack.name,
        "FLAGBENCH_LOCK_DIGEST": lock.digest,
        "HOME": USER_HOME,
        "XDG_CACHE_HOME": f"{USER_HOME}/.cache",
        # Their defaults contain the name of the user, and a container may run with a uid that has no name.
        "TORCHINDUCTOR_CACHE_DIR": f"{USER_HOME}/.cache/torchinductor",
        "TRITON_CACHE_DIR": f"{USER_HOME}/.cache/triton",
        "PYTHONUNBUFFERED": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def _expectations(stack: Stack, brings_torch: bool) -> str:
    """Write what check_stack.py has to find in the image, as JSON.

    Args:
        brings_torch: whether torch is installed, and not a part of the base.
    """
    expected = {
        "python": stack.python,
        "expects": dict(stack.expects),
        "from_base": sorted(stack.build.from_base) if stack.build.interpreter else [],
        "imports": ["torch"] if brings_torch else [],
        "compiles": True,
        "libraries": _rdma_libraries(stack),
    }
    return json.dumps(expected, sort_keys=True, indent=1) + "\n"
