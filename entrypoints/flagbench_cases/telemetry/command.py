"""A vendor's command line tool as a monitor's source: found, asked with a deadline, never left behind."""

import ctypes
import os
import shutil
import signal
import subprocess
from typing import Optional, Sequence, Tuple

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class NoAnswer(Exception):
    """The tool did not answer, or not usably; the text says why, for the record."""


class Tool:
    """One tool by its name: on PATH, else in `places`."""

    def __init__(self, name: str, places: Sequence[str] = ()) -> None:
        self._name = name
        self._places = places
        self._stuck: "Optional[subprocess.Popen[bytes]]" = None

    def ask(self, arguments: Sequence[str], seconds: float) -> str:
        """What the tool prints on stdout, whatever its exit code; NoAnswer where it is missing or takes too long."""
        if self._stuck is not None and self._stuck.poll() is None:
            raise NoAnswer("%s still hangs in an earlier call" % self._name)
        path = self._path()
        try:
            process = subprocess.Popen(
                [path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # Layouts are told apart by words of one language.
                env=dict(os.environ, LC_ALL="C"),
                preexec_fn=_as_a_child,
            )
        except OSError as error:
            raise NoAnswer("%s cannot be run (%s)" % (path, error.strerror or error)) from None
        try:
            output = process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            self._stuck = process
            process.kill()
            # Not waited for: stuck in a call of the driver, it would take the sampler with it.
            raise NoAnswer("%s did not answer within %.0f s" % (self._words(arguments), seconds)) from None
        return output.decode("utf-8", "replace")

    def close(self) -> None:
        """Collect a call that had to be killed, where it has ended by now."""
        if self._stuck is not None:
            self._stuck.poll()

    def _path(self) -> str:
        path = shutil.which(self._name) or shutil.which(self._name, path=os.pathsep.join(self._places))
        if path is None:
            raise NoAnswer("%s was not found on PATH or in %s" % (self._name, ", ".join(self._places) or "any place"))
        return path

    def _words(self, arguments: Sequence[str]) -> str:
        return " ".join([self._name, *arguments])


def _as_a_child() -> None:
    """In the child: die with the sampler, and see the signals that the sampler keeps blocked."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def visibility(*variables: str) -> Tuple[str, Optional[str]]:
    """The first of the variables that is set, and its value; the first name and None where none is."""
    found = [(name, os.environ[name]) for name in variables if name in os.environ]
    return found[0] if found else (variables[0], None)
