"""The platform of a stack, as uv names it and as the tags of wheels that pip accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flagbench.errors import FlagbenchError

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack

_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
_OLD_GLIBC = 31
"""Ubuntu 20.04 has glibc 2.31, and vendors' bases with Python 3.8 are built on it."""
_GLIBC = 35
"""Ubuntu 22.04, the oldest of the other bases; Debian 12 has 2.36, Ubuntu 24.04 has 2.39."""
_FIRST = 5
"""manylinux1 is glibc 2.5."""
_NAMED = {5: ["manylinux1"], 12: ["manylinux2010"], 17: ["manylinux2014"]}


def machine(stack: Stack) -> str:
    """The stack's processor, as wheels name it. Raises FlagbenchError (usage) for a platform without wheels."""
    try:
        return _MACHINES[stack.platform]
    except KeyError:
        raise FlagbenchError(
            f"the stack {stack.name} is for {stack.platform}, for which packages cannot be locked",
            remedy=f"platforms that can: {', '.join(_MACHINES)}",
        ) from None


def _glibc(stack: Stack) -> int:
    return _OLD_GLIBC if stack.python == "3.8" else _GLIBC


def uv_platform(stack: Stack) -> str:
    """As `uv --python-platform` names it, like x86_64-manylinux_2_35."""
    return f"{machine(stack)}-manylinux_2_{_glibc(stack)}"


def pip_platforms(stack: Stack) -> list[str]:
    """Every tag that fits, newest first, for `pip download --platform`, which needs all of them listed."""
    names = []
    for minor in range(_glibc(stack), _FIRST - 1, -1):
        names += [f"manylinux_2_{minor}", *_NAMED.get(minor, ())]
    return [f"{name}_{machine(stack)}" for name in (*names, "linux")]
