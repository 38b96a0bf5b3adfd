"""The docker command: finding the one that builds, and running it with its output shown and kept."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import termios
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fcntl import ioctl
from threading import Thread
from typing import TextIO

from flagbench.images.docker_errors import EngineError
from flagbench.system.queries import Ending, ask
from flagbench.system.signals import raising_interrupt
from flagbench_core.redaction import redact

DOCKER_VARIABLE = "FLAGBENCH_DOCKER"
"""Names the docker command to use, instead of the first usable one on PATH."""
# The client of 20.10 does not end when it is interrupted once while its context comes from standard input. Killed, it
# takes the build with it.
_STOP_SECONDS = 2
# A cause may be far above the end: pip reports a certificate long before it gives up.
_KEPT_LINES = 200
# Cursor movements, colours and window titles of the progress that is drawn on a terminal.
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")


def find_docker(*, builds: bool = False) -> str:
    """The docker command that FLAGBENCH_DOCKER names, else the first on PATH; `builds`: one that has BuildKit.

    Raises EngineError if there is none.
    """
    named = os.environ.get(DOCKER_VARIABLE)
    folders: list[str | None] = [None]
    if not named:
        folders = [*os.get_exec_path()]
    problem = f"{named or 'docker'} is not installed"
    without_buildkit = ""
    for folder in folders:
        path = shutil.which(named or "docker", path=folder)
        if path is None:
            continue
        if not builds or _has_buildkit(path):
            return path
        without_buildkit = without_buildkit or path
    if without_buildkit:
        problem = f"{without_buildkit} cannot build images: BuildKit is missing"
    raise EngineError(
        problem,
        remedy="install Docker's client with its buildx plugin (docs.docker.com/go/buildx; on Debian 12 the package "
        f"docker.io is enough), or name a client with {DOCKER_VARIABLE}",
    )


def _has_buildkit(docker: str) -> bool:
    """Whether it builds with BuildKit: by itself before 23.0, and with its buildx plugin since."""
    return ask([docker, "build", "--help"], DOCKER_BUILDKIT="1").ending is Ending.ANSWERED


def run_docker(
    command: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    *,
    content: Iterable[bytes] | None = None,
    show: TextIO | None = None,
    secrets: Sequence[str] = (),
) -> tuple[int, list[str]]:
    """Run a docker command to its end; returns its exit status and the last lines that it printed.

    `content` is its standard input. What it prints goes to `show` without credentials and `secrets`; where `show` is
    a terminal, the command draws its progress. It does not while there are secrets: a line that is drawn is cut to
    the terminal's width, and a secret in it too, which would not be recognised.

    A signal interrupts the command, which then cancels what the engine does for it, and raises KeyboardInterrupt; an
    exception of `content` kills it.
    """
    if show is not None and show.isatty() and not secrets:
        output, its_output = pty.openpty()
        with suppress(OSError):  # of the same size
            ioctl(output, termios.TIOCSWINSZ, ioctl(show.fileno(), termios.TIOCGWINSZ, bytes(8)))
    else:
        output, its_output = os.pipe()
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    stdin = subprocess.DEVNULL
    if content is not None:
        stdin = subprocess.PIPE
    with raising_interrupt():
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=stdin,
            stdout=its_output,
            stderr=its_output,
            start_new_session=True,
        )
        reader = Thread(target=_read, args=(output, lines, show, secrets), daemon=True)
        try:
            os.close(its_output)
            reader.start()
            if process.stdin is not None:
                with suppress(BrokenPipeError):  # a command that ends early says why itself
                    process.stdin.writelines(content or ())
                    process.stdin.close()  # not if `content` fails: docker would take a part for the whole
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            raise
        finally:
            process.kill()
            process.wait()
            reader.join()
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
    return process.returncode, list(lines)


def _read(output: int, lines: deque[str], show: TextIO | None, secrets: Sequence[str]) -> None:
    """In a thread: keep each line, and show what is printed, until the command has closed its output."""
    # A terminal's other end ends with an error (EIO), a pipe without.
    with suppress(OSError), open(output, encoding="utf-8", errors="replace", newline="") as printed:
        for line in printed:
            text = redact(line, secrets)
            lines.append(_ESCAPE.sub("", text).rstrip())
            try:
                if show is not None:
                    show.write(text)
                    show.flush()
            except (OSError, ValueError):
                show = None  # its reader is gone; the command continues
