"""What an engine says when it refuses a container, in its own words, and what a person is told."""

from __future__ import annotations

import pytest

from flagbench.runs.launchers.engine_errors import engine_refusal, missing_image
from flagbench_core.exit_codes import ExitCode

RUNC = "OCI runtime create failed: container_linux.go:380: starting container process caused: "
HOOK = (
    "failed to create shim: OCI runtime create failed: runc create failed: unable to start container process: error "
    "during container init: error running hook #0: error running hook: exit status 1, stdout: , stderr: "
    "Auto-detected mode as 'legacy'\nnvidia-container-cli: "
)
DRIVER = "requirement error: unsatisfied condition: cuda>=13.0, please update your driver to a newer version: unknown"
NO_DEVICE = 'error gathering device information while adding custom device "/dev/mxcd": no such file or directory'
NO_ENTRY = RUNC + 'exec: "/usr/bin/tini": stat /usr/bin/tini: no such file or directory: unknown'
NO_FOLDER = 'invalid mount config for type "bind": bind source path does not exist: /a b'
# By exit code: what the engine says, and parts of the message and of the remedy.
REFUSALS = {
    ExitCode.WRONG_HARDWARE: [
        ('could not select device driver "" with capabilities: [[gpu]]', "its GPUs", "nvidia-container-toolkit"),
        (HOOK + DRIVER, "requires cuda>=13.0", "newer driver"),
        (HOOK + "initialization error: nvml error: driver not loaded: unknown", "driver not loaded", "driver"),
        (NO_DEVICE, "has no /dev/mxcd", "driver"),
        ("Unable to find group video: no matching entries in group file", "the group video", "driver"),
    ],
    ExitCode.USAGE: [
        (NO_FOLDER, "does not find /a b", "DOCKER_HOST"),
        (NO_ENTRY, "entry point /usr/bin/tini", "build it again"),
        ("exec /usr/bin/tini: exec format error", "another kind of processor", "add a stack"),
    ],
    ExitCode.ENGINE: [
        ("something\nnobody foresaw {0}", "something nobody foresaw {0}", "--dry-run"),
    ],
}


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_says_what_to_do(code: ExitCode) -> None:
    for text, cause, remedy in REFUSALS[code]:
        error = engine_refusal(text)
        assert error.code is code
        assert cause in error.message
        assert "\n" not in error.message
        assert remedy in error.remedy


def test_a_missing_image_says_what_to_type() -> None:
    ours = missing_image("flagbench/distilbert:cpu", "distilbert:cpu")
    assert (ours.code, ours.remedy) == (ExitCode.USAGE, "build it: `flagbench build distilbert:cpu`")
    assert "flagbench build" not in missing_image("other:1", None).remedy
