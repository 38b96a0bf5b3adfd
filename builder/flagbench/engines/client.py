"""The docker command: finding one, and running it for a build."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import termios
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from threading import Thread
from typing import TextIO

from flagbench.engines.base import EngineError
from flagbench.redaction import redact
from flagbench.signals import Forwarding

VARIABLE = "FLAGBENCH_DOCKER"
"""Names the docker command to use, instead of the first usable one on PATH."""
OLDEST = (20, 10)
NEEDS_BUILDX = (23, 0)
"""From this version on, the docker command builds with BuildKit through its buildx plugin alone."""
_PROBE_SECONDS = 30
# The client of 20.10 does not end when it is interrupted once while its context comes from standard input. Killed, it
# takes the build with it.
_STOP_SECONDS = 2
_INSTALL = (
    "install Docker's client with its buildx plugin (docs.docker.com/go/buildx; on Debian 12 the package docker.io "
    f"is enough), or name a client that has it with {VARIABLE}"
)


@dataclass(frozen=True)
class DockerCommand:
    """A docker command."""

    path: str
    version: str


def find_client(*, builds: bool = True) -> DockerCommand:
    """The command that FLAGBENCH_DOCKER names, else the first usable `docker` on PATH; `builds`: one with BuildKit.

    Raises EngineError if no client is installed, or none can be used; it names each with its reason.
    """
    named = os.environ.get(VARIABLE)
    problems = []
    for path in [named] if named else _on_path(os.environ.get("PATH", os.defpath)):
        found = _probe(path, builds=builds)
        if isinstance(found, DockerCommand):
            return found
        problems.append(f"{path} {found}")
    if not problems:
        raise EngineError("the docker command is not installed: none is on PATH", remedy=_INSTALL)
    raise EngineError(f"no docker command here can be used: {', '.join(problems)}", remedy=_INSTALL)


def run_client(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    read: Callable[[str], None],
    secrets: Sequence[str] = (),
    content: Iterable[bytes] | None = None,
    show: TextIO | None = None,
) -> int:
    """Run the command to its end; returns its exit status.

    `content` is its standard input. Every line that it prints, without credentials and `secrets`, goes to `read` and
    to `show`; where `show` is a terminal, the command prints to one of that size. A signal interrupts the command,
    which then cancels what the engine does for it, and raises KeyboardInterrupt; an exception of `content` kills it.
    """
    terminal = show is not None and show.isatty()
    output, its_output = pty.openpty() if terminal else os.pipe()
    with Forwarding(_STOP_SECONDS) as forwarder:
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL if content is None else subprocess.PIPE,
                stdout=its_output,
                stderr=its_output,
                start_new_session=True,
            )
        except OSError as error:
            os.close(output)
            raise EngineError(f"{command[0]} cannot be run: {error.strerror}", remedy=_INSTALL) from None
        finally:
            os.close(its_output)
        reader = Thread(target=_read_output, args=(output, read, secrets, show, terminal), daemon=True)
        reader.start()
        try:
            signalled, _ = forwarder.follow(
                lambda: _write_and_wait(process, content), lambda _: process.send_signal(signal.SIGINT), process.kill
            )
        finally:
            process.kill()
            process.wait()
            reader.join()
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
    if signalled is not None:
        raise KeyboardInterrupt
    return process.returncode


def _write_and_wait(process: subprocess.Popen[bytes], content: Iterable[bytes] | None) -> None:
    if process.stdin is not None:
        # A command that ends early says why itself. One whose input cannot be made must not take it for whole.
        with suppress(BrokenPipeError):
            process.stdin.writelines(content or ())
            process.stdin.close()
    process.wait()


def _on_path(path: str) -> list[str]:
    """Every `docker` in the folders of PATH, each file once."""
    found: dict[str, str] = {}
    for folder in path.split(os.pathsep):
        if folder and (docker := shutil.which("docker", path=folder)):
            found.setdefault(os.path.realpath(docker), docker)
    return list(found.values())


def _probe(path: str, *, builds: bool) -> DockerCommand | str:
    """The command, or why it cannot be used."""
    said = _answer(path, "--version")
    if said is None:
        return "cannot be run"
    if "podman" in said.lower():
        return "is Podman, which flagbench does not support"
    found = re.match(r"Docker version ((\d+)\.(\d+)[^\s,]*)", said)
    if found is None:
        return "is not a Docker client"
    version = int(found[2]), int(found[3])
    if version < OLDEST:
        return f"({found[1]}) is older than 20.10"
    if builds and version >= NEEDS_BUILDX and _answer(path, "buildx", "version") is None:
        return f"({found[1]}) has no buildx plugin"
    return DockerCommand(path, found[1])


def _answer(*command: str) -> str | None:
    """What a command printed; None where it failed."""
    nothing = subprocess.DEVNULL
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            command, stdin=nothing, stderr=nothing, timeout=_PROBE_SECONDS, text=True, errors="replace"
        )
    return None


def _read_output(
    output: int, read: Callable[[str], None], secrets: Sequence[str], show: TextIO | None, terminal: bool
) -> None:
    # A terminal's other end ends with an error (EIO), a pipe without.
    with suppress(OSError), open(output, "rb") as lines:
        if terminal and show is not None:
            _copy_size(show, output)
        for line in lines:
            text = redact(line.decode("utf-8", "replace"), secrets)
            read(text)
            if show is None:
                continue
            try:
                show.write(text)
                show.flush()
                if terminal:
                    _copy_size(show, output)
            except (OSError, ValueError):
                show = None  # the reader is gone; the build continues


def _copy_size(show: TextIO, output: int) -> None:
    """Give the command's terminal the size of the one it is shown on."""
    with suppress(OSError):
        ioctl(output, termios.TIOCSWINSZ, ioctl(show.fileno(), termios.TIOCGWINSZ, bytes(8)))
