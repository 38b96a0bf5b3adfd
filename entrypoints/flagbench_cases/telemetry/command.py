"""Runs a vendor's command-line tool with a timeout, without leaving processes behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from typing import Sequence

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class NoAnswer(Exception):
    """The tool gave no usable answer; the text says why, for the record."""


class Tool:
    """A tool by its name, on PATH or in `places`."""

    def __init__(self, name: str, places: Sequence[str] = ()) -> None:
        self._name = name
        self._places = places
        self._stuck: subprocess.Popen[bytes] | None = None

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
                # The parsers expect English output.
                env=dict(os.environ, LC_ALL="C"),
                preexec_fn=_as_a_child,
            )
        except OSError as error:
            raise NoAnswer(f"{path} cannot be run ({error.strerror or error})") from None
        try:
            output = process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            self._stuck = process
            process.kill()
            # Not waited for: blocked in a driver call, it would block the sampler.
            raise NoAnswer(f"{self._words(arguments)} did not answer within {seconds:.0f} s") from None
        return output.decode("utf-8", "replace")

    def close(self) -> None:
        """Reap a killed call, if it has ended."""
        if self._stuck is not None:
            self._stuck.poll()

    def _path(self) -> str:
        path = shutil.which(self._name) or shutil.which(self._name, path=os.pathsep.join(self._places))
        if path is None:
            folders = " or ".join(["on PATH", *(f"in {place}" for place in self._places)])
            raise NoAnswer(f"{self._name} was not found {folders}")
        return path

    def _words(self, arguments: Sequence[str]) -> str:
        return " ".join([self._name, *arguments])


def no_device(name: str, text: str) -> NoAnswer:
    """The error for a tool that printed `text`, in which there is no device: with its first line."""
    lines = text.strip().splitlines()
    if not lines:
        return NoAnswer(f"{name} lists no device")
    return NoAnswer(f"{name} lists no device: {lines[0].strip()[:200]}")


def _as_a_child() -> None:
    """In the child: die with the sampler, and unblock the signals that the sampler blocks."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
