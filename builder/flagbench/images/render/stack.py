"""The heavy image of a stack: its Dockerfile, and the files that each step of it needs."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.images.lockfile import Lock
from flagbench.images.render import quoting
from flagbench.images.render.directory import Rendered, rendered
from flagbench.images.render.steps import install_programs, stack_steps, step_files
from flagbench.images.render.templates import Templates
from flagbench.manifests.stack import Stack

HOME = "/opt/flagbench"
"""What belongs to flagbench in an image."""
VENV = f"{HOME}/venv"
BASE_PACKAGES = f"{HOME}/base-packages.json"
"""The versions that the base brought, noted before anything was installed over it."""
USER_HOME = "/home/flagbench"
TINI = "/usr/bin/tini"

_RDMA = {
    "libibverbs.so.1": ("libibverbs1", "ibverbs-providers"),
    "librdmacm.so.1": ("librdmacm1",),
}
"""What NCCL loads to use InfiniBand, and the Debian packages that have it. The package rdma-core is left out: it has
what a host needs, udev rules and services."""
_OUR_VARIABLES = frozenset({"HOME", "PATH", "PYTHONPATH", "PYTHONHOME", "MAX_JOBS"})


def interpreter(stack: Stack) -> str:
    """The Python of a stack's image: the base's, or that of our own virtual environment."""
    return quoting.absolute_path(stack.build.interpreter or f"{VENV}/bin/python3")


def render_stack(stack: Stack, lock: Lock, templates: Templates) -> Rendered:
    """The build directory of a stack's image.

    Raises FlagbenchError: (usage) a value that no Dockerfile can hold; (build failed) an error in a template.
    """
    values = stack_values(stack, lock)
    dockerfile = templates.render("stack", stack.name, values)
    steps = {name: values[name] for name in ("torch", "packages")}
    programs = install_programs(stack.build, templates)
    files = {
        "inputs/README": templates.file("inputs.txt"),
        "steps/base/check_base.sh": templates.file("check_base.sh"),
        "steps/apt/install.sh": programs["install.sh"],
        "steps/check/check_stack.py": templates.file("check_stack.py"),
        "steps/check/stack.json": _expectations(stack, bool(steps["torch"])).encode(),
        **step_files(steps, programs),
    }
    return rendered(f"stack/{stack.name}", dockerfile, files)


def stack_values(stack: Stack, lock: Lock) -> dict[str, Any]:
    """What a stack's template may use.

    Raises FlagbenchError (usage) for a value that cannot be written to a Dockerfile.
    """
    _require_plain(stack)
    return {
        **stack_steps(stack, lock),
        "stack": stack,
        "base": _base(lock),
        "pinned": lock.base_digest is not None,
        "python_version": quoting.python_version(stack.python),
        "python": interpreter(stack),
        "apt": [*map(quoting.apt_name, _apt(stack)), *_rdma_packages(stack)],
        "indexes": [quoting.index_url(url) for url in stack.build.indexes],
        "env": _environment(stack, lock),
        "home": HOME,
        "venv": VENV,
        "kept": BASE_PACKAGES,
        "user_home": USER_HOME,
    }


def _require_plain(stack: Stack) -> None:
    """Refuse names that cannot be written unquoted, and variables that every image sets itself."""
    quoting.plain_name(stack.name)
    for name in stack.build.env:
        quoting.variable_name(name)
    if reserved := [name for name in stack.build.env if name in _OUR_VARIABLES or name.startswith("FLAGBENCH_")]:
        raise FlagbenchError(
            f"the stack {stack.name} sets {', '.join(reserved)}, which every image sets itself",
            remedy=f"take it out of build.env in {stack.path}",
        )


def _base(lock: Lock) -> str | None:
    """The default of the build argument BASE; None: it has to be given."""
    if lock.base_image is None:
        return None
    reference = lock.base_image
    if lock.base_digest:
        reference = f"{lock.base_image}@{lock.base_digest}"
    return quoting.image_reference(reference)


def _apt(stack: Stack) -> list[str]:
    """Debian packages of the image.

    tini forwards signals to every process of a run. The compiler and the headers are for what is compiled during a
    run: Triton's launcher, torch.compile and DeepSpeed's operators. A Python that is not the distribution's, such as
    conda's, brings its own headers.
    """
    python = []
    if not stack.build.interpreter:
        python.append(f"python{stack.python}-venv")
    if stack.build.interpreter is None or PurePosixPath(stack.build.interpreter).parent == PurePosixPath("/usr/bin"):
        python.append(f"python{stack.python}-dev")
    return list(dict.fromkeys(["tini", "g++", *python, *stack.build.apt]))


def _rdma_libraries(stack: Stack) -> list[str]:
    """The libraries of _RDMA, if containers of the stack get InfiniBand devices."""
    if "/dev/infiniband" not in stack.docker.multi_node.devices:
        return []
    return [*_RDMA]


def _rdma_packages(stack: Stack) -> list[str]:
    """Their packages as `install.sh apt` takes them: a base that has a library, such as a vendor's, keeps it."""
    packages = []
    for library in _rdma_libraries(stack):
        packages += [f"{package}@{library}" for package in _RDMA[library]]
    return packages


def _environment(stack: Stack, lock: Lock) -> dict[str, str]:
    """What ENV sets, but for PATH, which extends the base's own."""
    return {
        **stack.build.env,
        "FLAGBENCH_STACK": stack.name,
        "FLAGBENCH_LOCK_DIGEST": lock.digest,
        "HOME": USER_HOME,
        "XDG_CACHE_HOME": f"{USER_HOME}/.cache",
        # Their defaults depend on the name of the user, and an arbitrary uid has none.
        "TORCHINDUCTOR_CACHE_DIR": f"{USER_HOME}/.cache/torchinductor",
        "TRITON_CACHE_DIR": f"{USER_HOME}/.cache/triton",
        "PYTHONUNBUFFERED": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def _expectations(stack: Stack, brings_torch: bool) -> str:
    """What check_stack.py finds out, as JSON."""
    expected = {
        "python": stack.python,
        "expects": dict(stack.expects),
        "from_base": sorted(stack.build.from_base) if stack.build.interpreter else [],
        "imports": ["torch"] if brings_torch else [],
        "compiles": True,
        "libraries": _rdma_libraries(stack),
    }
    return json.dumps(expected, sort_keys=True, indent=1) + "\n"
