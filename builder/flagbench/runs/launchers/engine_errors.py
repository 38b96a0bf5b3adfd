"""Translates the messages of a container engine that refuses a container into errors with remedies."""

from __future__ import annotations

from flagbench.errors import FlagbenchError
from flagbench.images.docker_errors import ErrorPattern, try_match_pattern
from flagbench_core.exit_codes import ExitCode

_PATTERNS = {
    ExitCode.WRONG_HARDWARE: (
        ErrorPattern(
            r"(?i)could not select device driver.*gpu",
            "the container engine cannot give a container its GPUs",
            "install the NVIDIA container toolkit (package nvidia-container-toolkit), run "
            "`nvidia-ctk runtime configure --runtime=docker` and restart the engine",
        ),
        ErrorPattern(
            r"(?i)nvidia-container-cli: requirement error: unsatisfied condition: (?P<what>[^,\s]+)",
            "the machine's NVIDIA driver is too old for this image, which requires {what}",
            "install a newer driver, or choose a stack for this one (`flagbench list stacks`)",
        ),
        ErrorPattern(
            r"(?i)nvidia-container-cli: (?P<what>.*?)(?:: unknown)?$",
            "the NVIDIA container toolkit found no usable driver or device: {what}",
            "check that the driver works on this machine, and install it where it is missing",
        ),
        ErrorPattern(
            r"(?i)gathering device information.*?\"(?P<what>[^\"]+)\": no such file",
            "this machine has no {what}, which the stack's devices need",
            "install the accelerator's driver, or choose a stack for what is here (`flagbench list stacks`)",
        ),
        ErrorPattern(
            r"(?i)unable to find group (?P<what>[^:\s]+)",
            "neither this machine nor the image has the group {what}, to which the stack's devices belong",
            "install the accelerator's driver, which makes the group",
        ),
    ),
    ExitCode.USAGE: (
        ErrorPattern(
            r"(?i)bind source path does not exist: (?P<what>.*)",
            "the engine does not find {what}: it runs on another file system",
            "put the folder where the engine runs, or use an engine of this machine (DOCKER_HOST)",
        ),
        ErrorPattern(r"(?i)minimum memory limit", "the container's memory is too small", "give --memory 6m or more"),
        ErrorPattern(
            r"(?i)exec: \"(?P<what>[^\"]+)\".*(?:not found|no such file|permission denied)",
            "the image cannot start its entry point {what}",
            "name an image of flagbench, or build it again",
        ),
        ErrorPattern(
            r"(?i)exec format error",
            "the image is for another kind of processor than this machine's",
            "add a stack for this machine's platform: docs/add-a-stack.md",
        ),
    ),
}
"""Patterns in messages of Docker Engine 20.10 and later, runc and the NVIDIA container toolkit, by the exit code of
the error. The first pattern that matches decides."""


def engine_refusal(text: str) -> FlagbenchError:
    """The engine's refusal to create or start a container, as an error with its remedy."""
    for code, patterns in _PATTERNS.items():
        pattern = try_match_pattern(patterns, text)
        if pattern is not None:
            return FlagbenchError(pattern.cause, remedy=pattern.remedy, code=code)
    message = " ".join(text.split())
    return FlagbenchError(
        f"the container engine refused the container: {message}",
        remedy="fix what it names; `flagbench run --dry-run` shows the same as a docker line to try",
        code=ExitCode.ENGINE,
    )


def missing_image(image: str, built_by: str | None) -> FlagbenchError:
    """The error that the engine has no such image. `built_by`: the name to build it by; None if flagbench cannot."""
    remedy = "pull, load or build it first; nothing is pulled"
    if built_by:
        remedy = f"build it: `flagbench build {built_by}`"
    return FlagbenchError(f"there is no image {image} here", remedy=remedy)
