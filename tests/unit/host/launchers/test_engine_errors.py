"""What an engine says when it refuses a container, in its own words, and what a person is told."""

from __future__ import annotations

import pytest

from flagbench.errors import ExitCode
from flagbench.launchers.engine_errors import engine_refusal, missing_image

RUNC = "OCI runtime create failed: container_linux.go:380: starting container process caused: "
HOOK = (
    "failed to create shim: OCI runtime create failed: runc create failed: unable to start container process: error "
    "during container init: error running hook #0: error running hook: exit status 1, stdout: , stderr: "
    "Auto-detected mode as 'legacy'\n"
)
REFUSALS = [
    (
        'could not select device driver "" with capabilities: [[gpu]]',
        ExitCode.WRONG_HARDWARE,
        "cannot give a container its GPUs",
        "nvidia-container-toolkit",
    ),
    (
        HOOK
        + "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update your driver to "
        "a newer version, or use an earlier cuda container: unknown",
        ExitCode.WRONG_HARDWARE,
        "requires cuda>=13.0",
        "newer driver",
    ),
    (
        HOOK + "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
        ExitCode.WRONG_HARDWARE,
        "nvml error: driver not loaded",
        "nvidia-smi",
    ),
    (
        'error gathering device information while adding custom device "/dev/mxcd": no such file or directory',
        ExitCode.WRONG_HARDWARE,
        "has no /dev/mxcd",
        "driver",
    ),
    (
        "Unable to find group video: no matching entries in group file",
        ExitCode.WRONG_HARDWARE,
        "the group video",
        "driver",
    ),
    (
        'invalid mount config for type "bind": bind source path does not exist: /a b',
        ExitCode.USAGE,
        "does not find /a b",
        "DOCKER_HOST",
    ),
    (
        RUNC + 'exec: "/usr/bin/tini": stat /usr/bin/tini: no such file or directory: unknown',
        ExitCode.USAGE,
        "entry point /usr/bin/tini",
        "build it again",
    ),
    ("exec /usr/bin/tini: exec format error", ExitCode.USAGE, "another kind of processor", "add a stack"),
    (
        "mkdir /var/lib/docker/overlay2/x: no space left on device",
        ExitCode.ENGINE,
        "disk is full",
        "docker system df",
    ),
    (
        "failed to create endpoint x on network bridge: adding interface veth1 to bridge docker0 failed: could not "
        "find bridge docker0: route ip+net: no such network interface",
        ExitCode.ENGINE,
        "could not find bridge docker0",
        "restart the engine",
    ),
    ("something\nnobody foresaw {0}", ExitCode.ENGINE, "something nobody foresaw {0}", "--show-command"),
]


@pytest.mark.parametrize(("text", "code", "cause", "remedy"), REFUSALS)
def test_a_refusal_says_what_to_do(text: str, code: ExitCode, cause: str, remedy: str) -> None:
    error = engine_refusal(text)
    assert error.code is code
    assert cause in error.message
    assert "\n" not in error.message
    assert remedy in error.remedy


def test_a_missing_image_says_what_to_type() -> None:
    ours = missing_image("flagbench/distilbert:cpu", "distilbert:cpu")
    assert (ours.code, ours.remedy) == (ExitCode.USAGE, "build it: flagbench build distilbert:cpu")
    assert "flagbench build" not in missing_image("other:1", None).remedy
