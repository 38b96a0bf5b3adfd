"""Runs a vendor's command-line tool, such as amd-smi, with a timeout and without leaving processes behind.

The monitors of devices that are read by a tool use it. They run in the sampler, a process that must not hang if a
driver does.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from typing import Sequence

_PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that sets the signal for the death of the parent process (linux/prctl.h)."""
_LONGEST_LINE = 200
"""The most characters of a tool's output in an error."""


class NoAnswer(Exception):
    """The tool gave no usable answer. The text, which the record has, says why."""


class Tool:
    """A tool by its name, on PATH or in one of the folders `places`."""

    def __init__(self, name: str, places: Sequence[str] = ()) -> None:
        self._name = name
        self._places = places
        self._stuck: subprocess.Popen[bytes] | None = None
        """The last call that timed out, which may still run: a process that waits in a driver cannot be killed."""

    def ask(self, arguments: Sequence[str], seconds: float) -> str:
        """The tool's stdout, for any exit code. Raises NoAnswer if it is missing or times out."""
        if self._stuck is not None and self._stuck.poll() is None:
            raise NoAnswer(f"{self._name} still hangs in an earlier call")
        path = self._path()
        try:
            process = subprocess.Popen(
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(os.environ, LC_ALL="C"),  # the parsers expect English output
                preexec_fn=_prepare_child,
            )
        except OSError as error:
            raise NoAnswer(f"{path} cannot be run ({error.strerror or error})") from None
        try:
            output = process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            self._stuck = process
            process.kill()
            # It is not waited for: if it waits in a driver, the sampler would wait too.
            command = " ".join([self._name, *arguments])
            raise NoAnswer(f"{command} did not answer within {seconds:.0f} s") from None
        return output.decode("utf-8", "replace")

    def close(self) -> None:
        """Collect the exit status of a killed call, if it has ended, so that no zombie process is left."""
        if self._stuck is not None:
            self._stuck.poll()

    def _path(self) -> str:
        """The path of the tool. Raises NoAnswer if it is not installed."""
        path = shutil.which(self._name) or shutil.which(self._name, path=os.pathsep.join(self._places))
        if path is None:
            folders = " or ".join(["on PATH", *(f"in {place}" for place in self._places)])
            raise NoAnswer(f"{self._name} was not found {folders}")
        return path


def no_device(name: str, text: str) -> NoAnswer:
    """The error for a tool that printed `text`, which lists no device; it has the first line of the text."""
    lines = text.strip().splitlines()
    if not lines:
        return NoAnswer(f"{name} lists no device")
    return NoAnswer(f"{name} lists no device: {lines[0].strip()[:_LONGEST_LINE]}")


def _prepare_child() -> None:
    """Called in the child before the tool starts: die with the sampler, and unblock the signals that it blocks."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
