"""The docker command: finds one that can build, and runs it while its output is shown and kept.

`DockerEngine` (docker.py) runs builds, pulls and pushes with it.
"""

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
from typing import NamedTuple, TextIO

from flagbench.images.docker_errors import EngineError
from flagbench.system.queries import Ending, ask
from flagbench.system.signals import raising_interrupt
from flagbench_core.redaction import redact

DOCKER_VARIABLE = "FLAGBENCH_DOCKER"
"""The environment variable that names the docker command to use, instead of the first usable one on PATH."""
_STOP_SECONDS = 2
"""How long an interrupted command may take to end before it is killed. The client of Docker 20.10 ignores an
interrupt while it reads the context from standard input; if it is killed, the engine cancels the build."""
_KEPT_LINES = 200
"""Most lines of output that are kept to find the cause of an error. The cause may be far above the end: pip reports a
certificate that it does not trust long before it gives up."""
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
"""Cursor movements, colours and window titles in progress that is drawn on a terminal."""


class DockerResult(NamedTuple):
    """The end of a docker command."""

    code: int
    """Its exit status."""
    lines: list[str]
    """The last lines that it printed, at most _KEPT_LINES, without secrets and escape sequences."""


def find_docker(*, builds: bool = False) -> str:
    """Find the docker command: the one that FLAGBENCH_DOCKER names, else the first on PATH.

    Args:
        builds: whether it has to build images with BuildKit.

    Raises EngineError if there is no such command.
    """
    named = os.environ.get(DOCKER_VARIABLE)
    folders: list[str | None] = [*os.get_exec_path()]
    if named:
        folders = [None]  # `which` then looks at all of PATH, or takes the path that is named.
    without_buildkit = ""
    for folder in folders:
        path = shutil.which(named or "docker", path=folder)
        if path is None:
            continue
        if not builds or _has_buildkit(path):
            return path
        without_buildkit = without_buildkit or path
    problem = f"{named or 'docker'} is not installed"
    if without_buildkit:
        problem = f"{without_buildkit} cannot build images: BuildKit is missing"
    raise EngineError(
        problem,
        remedy="install Docker's client with its buildx plugin (docs.docker.com/go/buildx; on Debian 12 the package "
        f"docker.io is enough), or name a client with {DOCKER_VARIABLE}",
    )


def _has_buildkit(docker: str) -> bool:
    """Whether a docker command builds with BuildKit: clients before 23.0 include it, later ones need a plugin."""
    return ask([docker, "build", "--help"], environment={"DOCKER_BUILDKIT": "1"}).ending is Ending.ANSWERED


def run_docker(
    command: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    *,
    content: Iterable[bytes] | None = None,
    show: TextIO | None = None,
    secrets: Sequence[str] = (),
) -> DockerResult:
    """Run a docker command to its end.

    A signal to this process interrupts the command, which then cancels what the engine does for it, and raises
    KeyboardInterrupt. An exception of `content` kills the command.

    Args:
        content: chunks of its standard input.
        show: gets what it prints, without credentials and `secrets`. If it is a terminal, the command draws its
            progress, unless there are secrets: a drawn line is cut to the terminal's width, and so might a secret be,
            which would not be recognised then.
        secrets: texts that are replaced in its output.
    """
    pipe = _open_output(show, draws=not secrets)
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    stdin = subprocess.DEVNULL
    if content is not None:
        stdin = subprocess.PIPE
    with raising_interrupt():
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=stdin,
            stdout=pipe.write_end,
            stderr=pipe.write_end,
            # In a session of its own a Ctrl-C at the terminal reaches this process alone, which passes it on below.
            start_new_session=True,
        )
        reader = Thread(target=_read_output, args=(pipe.read_end, lines, show, secrets), daemon=True)
        try:
            os.close(pipe.write_end)  # Only the command's copy is left, so its end is the end of the output.
            reader.start()
            _feed(process, content)
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            raise
        finally:
            process.kill()  # Does nothing if it has ended.
            process.wait()
            reader.join()
            if process.stdin is not None:
                with suppress(OSError):  # What is still buffered cannot be written any more.
                    process.stdin.close()
    return DockerResult(process.returncode, list(lines))


class _OutputPipe(NamedTuple):
    """The file descriptors of a pipe or a pseudo-terminal through which a command's output is read."""

    read_end: int
    write_end: int


def _open_output(show: TextIO | None, *, draws: bool) -> _OutputPipe:
    """Open what a command writes its output to: a pseudo-terminal if `show` is a terminal and it may draw on it."""
    if show is None or not show.isatty() or not draws:
        return _OutputPipe(*os.pipe())
    pipe = _OutputPipe(*pty.openpty())
    with suppress(OSError):  # Without the size the command still draws, for a terminal of its default size.
        _copy_window_size(show, pipe.read_end)
    return pipe


def _feed(process: subprocess.Popen[bytes], content: Iterable[bytes] | None) -> None:
    """Write the chunks of `content` to the standard input of a command, if there are any, and close it."""
    if process.stdin is None or content is None:
        return
    with suppress(BrokenPipeError):  # A command that ends early prints the reason.
        process.stdin.writelines(content)
        # Not closed if `content` fails: docker would take the part that it has read for the whole.
        process.stdin.close()


def _copy_window_size(terminal: TextIO, output: int) -> None:
    """Give a pseudo-terminal, by its file descriptor, the size of a terminal. Raises OSError."""
    size = ioctl(terminal.fileno(), termios.TIOCGWINSZ, bytes(8))  # struct winsize: four unsigned shorts
    ioctl(output, termios.TIOCSWINSZ, size)


def _read_output(output: int, lines: deque[str], show: TextIO | None, secrets: Sequence[str]) -> None:
    """Keep each line that a command prints and show it, until the command closes its output. Runs in a thread."""
    # At its end a pseudo-terminal raises an error (EIO), and a pipe none.
    with suppress(OSError), open(output, encoding="utf-8", errors="replace", newline="") as printed:
        for line in printed:
            text = redact(line, secrets)
            lines.append(_ESCAPE.sub("", text).rstrip())
            try:
                if show is not None:
                    show.write(text)
                    show.flush()
            except (OSError, ValueError):
                show = None  # Its reader is gone, or it was closed. The command continues.
