"""Short questions to other programs, such as git and nvidia-smi. What does not answer in time is unknown."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

PATIENCE_S = 10.0
"""Seconds that an answer may take; a vendor's tool hangs where a driver does."""
_MOST_BYTES = 1 << 20


def ask(command: Sequence[str], **variables: str) -> tuple[str | None, str | None]:
    """What a command prints on stdout, or None and why. A process that hangs in the kernel is not waited for.

    `variables`: of its environment, beside those of this process.
    """
    import select
    import subprocess  # most commands ask nothing

    deadline = time.monotonic() + PATIENCE_S
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C", **variables},
        )
    except OSError as error:
        return None, f"cannot be started: {error.strerror or error}"
    output = bytearray()
    assert process.stdout is not None
    with process.stdout as stream:
        waiting = select.poll()
        waiting.register(stream, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0 and len(output) <= _MOST_BYTES:
            if waiting.poll(left * 1000):
                block = os.read(stream.fileno(), 1 << 16)
                if not block:
                    break
                output += block
    too_much = len(output) > _MOST_BYTES
    code: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(0 if too_much else max(0.0, deadline - time.monotonic()))
    if code is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    if too_much:
        return None, "printed too much"
    if code is None:
        return None, f"did not answer within {PATIENCE_S:g} s"
    if code:
        return None, f"failed with exit code {code}"
    return output.decode("utf-8", "replace"), None
