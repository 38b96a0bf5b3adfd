"""Errors of the engine when it refuses a container, with their remedies."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flagbench.errors import ExitCode, FlagbenchError


@dataclass(frozen=True)
class _Rule:
    """An error recognized by its text. `{0}` in the texts is the pattern's first group."""

    pattern: re.Pattern[str]
    cause: str
    remedy: str
    code: ExitCode


def _rule(pattern: str, cause: str, remedy: str, code: ExitCode) -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE | re.DOTALL), cause, remedy, code)


# The texts are those of Docker Engine 20.10 and later, runc and the NVIDIA container toolkit; first match wins.
_RULES = (
    _rule(
        r"could not select device driver.*gpu",
        "the container engine cannot give a container its GPUs",
        "install the NVIDIA container toolkit (package nvidia-container-toolkit), run "
        "`nvidia-ctk runtime configure --runtime=docker` and restart the engine",
        ExitCode.WRONG_HARDWARE,
    ),
    _rule(
        r"nvidia-container-cli: requirement error: unsatisfied condition: ([^,\s]+)",
        "the machine's NVIDIA driver is too old for this image, which requires {0}",
        "install a newer driver, or choose a stack for this one (`flagbench list stacks`)",
        ExitCode.WRONG_HARDWARE,
    ),
    _rule(
        r"nvidia-container-cli: (.*?)(?:: unknown)?$",
        "the NVIDIA container toolkit found no usable driver or device: {0}",
        "check the driver with `nvidia-smi` on this machine",
        ExitCode.WRONG_HARDWARE,
    ),
    _rule(
        r"gathering device information.*?\"([^\"]+)\": no such file",
        "this machine has no {0}, which the stack's devices need",
        "install the accelerator's driver, or choose a stack for what is here (`flagbench list stacks`)",
        ExitCode.WRONG_HARDWARE,
    ),
    _rule(
        r"unable to find group ([^:\s]+)",
        "neither this machine nor the image has the group {0}, to which the stack's devices belong",
        "install the accelerator's driver, which makes the group",
        ExitCode.WRONG_HARDWARE,
    ),
    _rule(
        r"bind source path does not exist: (.*)",
        "the engine does not find {0}: it runs on another file system",
        "put the folder where the engine runs, or use an engine of this machine (DOCKER_HOST)",
        ExitCode.USAGE,
    ),
    _rule(
        r"exec: \"([^\"]+)\".*(?:not found|no such file|permission denied)",
        "the image cannot start its entry point {0}",
        "name an image of flagbench, or build it again",
        ExitCode.USAGE,
    ),
    _rule(
        r"exec format error",
        "the image is for another kind of processor than this machine's",
        "add a stack for this machine's platform: docs/add-a-stack.md",
        ExitCode.USAGE,
    ),
    _rule(
        r"no space left on device",
        "the engine's disk is full",
        "free some space where it keeps its containers: `docker system df` shows what takes it",
        ExitCode.ENGINE,
    ),
    _rule(
        r"failed to create endpoint .*?: (.*)",
        "the engine could not connect the container to its network: {0}",
        "restart the engine, which creates its networks again; another engine may have removed its bridge",
        ExitCode.ENGINE,
    ),
    _rule(
        r"container name .* is already in use",
        "the container's name is taken",
        "run again: the next run takes another name",
        ExitCode.ENGINE,
    ),
)


def engine_refusal(text: str) -> FlagbenchError:
    """The engine's refusal to create or start a container, as an error with its remedy."""
    for rule in _RULES:
        if (found := rule.pattern.search(text)) is not None:
            detail = found[1].strip() if rule.pattern.groups else ""
            return FlagbenchError(rule.cause.format(detail), remedy=rule.remedy, code=rule.code)
    words = " ".join(text.split())
    return FlagbenchError(
        f"the container engine refused the container: {words}",
        remedy="fix what it names; `flagbench run --show-command` prints the same as a docker line to try",
        code=ExitCode.ENGINE,
    )


def missing_image(image: str, built_by: str | None) -> FlagbenchError:
    """The engine has no such image; `built_by` is what to build it from, where flagbench can."""
    remedy = (
        f"build it: flagbench build {built_by}" if built_by else "pull, load or build it first; nothing is pulled"
    )
    return FlagbenchError(f"there is no image {image} here", remedy=remedy)
