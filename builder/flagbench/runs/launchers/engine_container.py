"""Runs one container of the Docker Engine, from finding its image to removing it.

The docker command runs the container, and the engine's API says how it ended.

This module imports docker-py, which takes 0.15 s, so launchers import it only when they start a container.
"""

from __future__ import annotations

import math
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from docker.errors import APIError, DockerException, NotFound  # type: ignore[import-untyped]

from flagbench.errors import FlagbenchError
from flagbench.image_reference import image_of
from flagbench.images.docker import DockerEngine
from flagbench.images.docker_api import engine_errors, open_client
from flagbench.images.docker_process import find_docker
from flagbench.runs.launchers.container_exit import RunEnd, RunImage
from flagbench.runs.launchers.docker_command import RUN_LABEL, Container
from flagbench.runs.launchers.engine_errors import engine_refusal, missing_image
from flagbench.runs.launchers.folders import output_folder
from flagbench.runs.launchers.frozen import TIMEOUT_SECONDS, FrozenWatch
from flagbench.runs.prepare_request import PrepareRequest
from flagbench.runs.request import RunRequest
from flagbench.system.signals import Forwarding, Interruption
from flagbench_core.exit_codes import ExitCode

ANSWER_SECONDS = 60.0
"""Longest time for the engine to answer a question: docker-py's default."""
_CLIENT_FAILED = 125
"""The exit code of `docker run` if it started no container; a container may end with it too."""
_KEPT_STDERR_BYTES = 2**14
"""Bytes of the end of stderr that are kept: enough for the client's error message."""
_START_SECONDS = 3.0
"""Seconds for which sending a signal is tried again, because the engine refuses it until the container runs."""
_RETRY_SECONDS = 0.1
_FROZEN_INTERVAL_SECONDS = 10.0
"""Seconds between two questions whether a container is frozen: the engine lists its processes for it."""


_NO_ANSWER = (DockerException, OSError, ValueError)
"""What docker-py raises if the engine does not answer. ValueError: the engine died in the middle of its answer."""


class ContainerOutcome(NamedTuple):
    """The image of a container, and how the container ended.

    If the engine refuses the container, nothing ran: `run_container` raises the error. If the connection to the
    engine is lost, the run may have worked for hours: the error is returned, so that the launcher writes a record
    that states it and names the image.
    """

    image: RunImage
    """The image that the container ran, or would have run."""
    end: RunEnd | FlagbenchError
    """How the container ended; an error if a signal arrived before its start, or if the connection was lost."""


def run_container(
    container: Container, request: RunRequest | PrepareRequest, *, keep: bool = False
) -> ContainerOutcome:
    """Run a container to its end; its stderr goes to this process's.

    Raises FlagbenchError if the engine does not start it, has no such image, or has one of another case or stack.

    Args:
        container: the specification of the container.
        request: what it runs, which its image must be for.
        keep: whether to keep the container when it has ended, instead of removing it.
    """
    name = container.name
    # Signals are handled first: one that arrives while the container is made must not leave it behind.
    with Forwarding() as forwarder, closing(open_client()) as client, engine_errors("run a container"):
        client.api.timeout = ANSWER_SECONDS
        docker = find_docker()
        found = _find_image(DockerEngine(client), container.image, request)
        engine_info = client.info()
        image = replace(found.image, host=engine_info.get("Name") or "")
        # The container is started by the image's id, because the name may move to another image before that.
        container = replace(
            container, image=found.engine_id, environment={**container.environment, **image.environment}
        )
        if any("name=rootless" in option for option in engine_info.get("SecurityOptions") or ()):
            container = container.rootless()
        if forwarder.early:
            reason = "interrupted before the container started"
            return ContainerOutcome(image, FlagbenchError(reason, remedy="run again", code=ExitCode.INTERRUPTED))
        # Without --sig-proxy=false, the client would forward signals, too: see the docstring of `_ContainerRun`.
        words = container.command(f"--name={name}", "--sig-proxy=false")
        try:
            with output_folder(request.options.out):
                end = _ContainerRun(client.api, name, forwarder, _timeout_of(request)).follow(docker, words)
            return ContainerOutcome(image, end)
        finally:
            if keep:
                sys.stderr.write(f"the container {name} is kept: `docker rm {name}` removes it\n")
            else:
                _remove(client.api, name)


def _timeout_of(request: RunRequest | PrepareRequest) -> float:
    """The seconds for which a container may be frozen: the run's --timeout. A `prepare` has none."""
    if isinstance(request, PrepareRequest):
        return math.inf
    return request.options.timeout or TIMEOUT_SECONDS


def check_image(name: str, request: RunRequest) -> None:
    """Raise FlagbenchError if no engine answers, or it has no image of that name for this case and stack."""
    with closing(open_client()) as client:
        _find_image(DockerEngine(client), name, request)


class _FoundImage(NamedTuple):
    """An image that the engine has."""

    engine_id: str
    """The id by which the engine finds the image."""
    image: RunImage
    """The image as the record names it."""


def _find_image(engine: DockerEngine, name: str, request: RunRequest | PrepareRequest) -> _FoundImage:
    """Find the image of that name. Raises FlagbenchError if there is none, or it is of another case or stack."""
    case, stack = request.case.name, request.stack.name
    image = engine.inspect(name)
    if image is None:
        built_by = None
        if name == image_of(case, stack):
            built_by = f"{case}:{stack}"
        raise missing_image(name, built_by)
    for kind, expected in (("case", case), ("stack", stack)):
        actual = image.labels.get(f"dev.flagbench.{kind}", expected)
        if actual != expected:
            raise FlagbenchError(
                f"the image {name} is of the {kind} {actual}, not of {expected}",
                remedy="name the image of what is to be run, or run what the image is of",
            )
    # An image that was pulled or pushed has a digest with its repository, by which it can be pulled.
    digest = image.repo_digests[0] if image.repo_digests else image.id
    configuration_id = image.id if engine.has_classic_image_store() else None
    return _FoundImage(image.id, RunImage(digest, configuration_id))


def _remove(api: Any, name: str) -> None:
    """Remove the container of that name; print a warning if that fails."""
    try:
        api.remove_container(name, force=True, v=True)
    except NotFound:
        return  # it was never made, or somebody removed it
    except (DockerException, OSError) as error:
        sys.stderr.write(
            f"warning: the container {name} could not be removed: {' '.join(str(error).split())}\n"
            f"fix: `docker rm -f {name}`; `docker ps -a --filter label={RUN_LABEL}` finds it\n"
        )


class _ContainerRun:
    """Runs a container by `docker run`, and forwards signals to it.

    Signals reach the container only through the API: clients differ in how they forward one. So the client runs in
    its own session, where a terminal's Ctrl-C does not reach it.
    """

    def __init__(self, api: Any, name: str, forwarder: Forwarding, timeout: float) -> None:
        """Take docker-py's low-level client, the name of the container, where signals come from, and the seconds for
        which the container may be frozen."""
        self._api = api
        self._name = name
        self._forwarder = forwarder
        is_frozen = partial(is_container_frozen, api, name)
        self._watch = FrozenWatch(is_frozen, self._kill, timeout=timeout, interval=_FROZEN_INTERVAL_SECONDS)
        self._stderr = bytearray()
        """The end of what the client printed on stderr."""

    def follow(self, docker: str, words: list[str]) -> RunEnd | FlagbenchError:
        """Run the client at the path `docker` until the container has ended, and say how it ended.

        Returns an error if the connection to the engine was lost. Raises FlagbenchError if the client cannot be
        started, or if the engine refused to start the container.
        """
        printed = bytearray()
        interruption = Interruption(None, None)
        engine_answers = True
        with _start_client(docker, words) as client:
            assert client.stdout is not None
            assert client.stderr is not None
            readers = {client.stdout: printed.extend, client.stderr: self._read_stderr}
            send = partial(self._send, client)
            try:
                interruption = self._forwarder.follow(client, readers, send, self._kill, self._watch.look)
            except _NO_ANSWER:  # the engine is asked to send a signal, or to kill the container
                engine_answers = False
            finally:
                client.kill()  # it may still wait for a container that cannot be killed
        state = None
        if engine_answers:
            state = _final_state(self._api, self._name)
        return self._classify(state, client.returncode, interruption, bytes(printed))

    def _classify(
        self, state: dict[str, Any] | None, returncode: int, interruption: Interruption, printed: bytes
    ) -> RunEnd | FlagbenchError:
        """Say how the container ended.

        Returns an error if the connection to the engine was lost. Raises FlagbenchError if the engine refused to
        start the container.

        Args:
            state: the container's State after the client's end, as `_final_state` returns it.
            returncode: the exit code of the client.
            interruption: the signal and the kill by which this process interrupted the container.
            printed: what the container printed on stdout.
        """
        was_killed = interruption.killed_after is not None or self._watch.killed_after is not None
        if not was_killed:
            # Lost: the engine does not answer.
            if state is None:
                return self._lost_connection()
            # Refused: the container was created and never started, or not even created.
            if state.get("Status") == "created" or (not state and returncode == _CLIENT_FAILED):
                raise _refusal(self._stderr)
            # Lost: the engine answers, but its connection to the client broke while the container ran.
            if state.get("Running"):
                return self._lost_connection()
        # Ended: by itself, or killed. The engine may not know the exit code of one that was killed or removed.
        state = state or {}
        return RunEnd(
            printed,
            state.get("ExitCode"),
            signalled=interruption.signal,
            killed_after=interruption.killed_after,
            oom_killed=bool(state.get("OOMKilled")),
            error=" ".join(str(state.get("Error") or "").split()),
            frozen_for=self._watch.killed_after,
        )

    def _lost_connection(self) -> FlagbenchError:
        """The error for a connection to the engine that was lost while the container ran."""
        return FlagbenchError(
            f"the connection to the container engine was lost while the container {self._name} ran",
            remedy="check that the engine runs, and see its log; then run again",
            code=ExitCode.ENGINE,
        )

    def _send(self, client: subprocess.Popen[bytes], number: int) -> None:
        """Send a signal to the container. One that cannot be sent is given up: the container is killed later."""
        deadline = time.monotonic() + _START_SECONDS
        while client.poll() is None and time.monotonic() < deadline:
            try:
                self._api.kill(self._name, signal.Signals(number).name)
            except APIError:
                time.sleep(_RETRY_SECONDS)
            else:
                return

    def _kill(self) -> None:
        """Kill the container. It is unpaused first: a paused one does not get even SIGKILL before it runs again."""
        with suppress(APIError):  # it is not paused
            self._api.unpause(self._name)
        with suppress(APIError):  # it has ended just now
            self._api.kill(self._name)

    def _read_stderr(self, chunk: bytes) -> None:
        """Print what the container writes to stderr as it comes, except the client's error: see `_refusal`.

        This assumes that the client writes its error with one `write`, which then is a chunk that begins with
        "docker: ", and that nothing in a container prints a chunk that begins so.
        """
        self._stderr += chunk
        del self._stderr[:-_KEPT_STDERR_BYTES]
        if not chunk.startswith(b"docker: "):
            # The run continues if the reader of its progress has gone (`2>&1 | head`).
            with suppress(OSError, ValueError):
                sys.stderr.buffer.write(chunk)
                sys.stderr.buffer.flush()


def _start_client(docker: str, words: list[str]) -> subprocess.Popen[bytes]:
    """Start the docker command at the path `docker`. Raises FlagbenchError if it cannot be started."""
    try:
        return subprocess.Popen(
            words,
            executable=docker,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise FlagbenchError(
            f"{docker} cannot be started: {error.strerror}",
            remedy="check the docker command, and the limits of this user's processes (ulimit -a)",
            code=ExitCode.ENGINE,
        ) from error


def _state(api: Any, name: str) -> dict[str, Any]:
    """The State of a container in the engine's API; empty if there is no such container.

    Raises one of _NO_ANSWER if the engine does not answer.
    """
    try:
        return dict(api.inspect_container(name)["State"])
    except NotFound:
        return {}


def _final_state(api: Any, name: str) -> dict[str, Any] | None:
    """The State of a container whose client has ended; None if the engine does not answer."""
    try:
        return _state(api, name)
    except _NO_ANSWER:
        return None


def is_container_frozen(api: Any, name: str) -> bool:
    """Whether a container is paused, or its first process, or that process's child, is stopped by a signal.

    The first process of our images is tini, its child the main process of the run. A container of which the engine
    does not say so, for example because it answers too late, is not frozen: the run continues.

    Args:
        api: docker-py's low-level client.
        name: the name of the container.
    """
    try:
        state = _state(api, name)
        if state.get("Paused"):
            return True
        first_process = str(state.get("Pid"))
        rows = api.top(name, ps_args="-eo pid,ppid,stat")["Processes"] or ()
        # A row is like ["4711", "4690", "Tl"]. The status of a process that a signal stopped begins with T.
        return any(status.startswith("T") and first_process in (pid, parent) for pid, parent, status in rows)
    except (*_NO_ANSWER, LookupError):  # it may also not have started yet, or have ended
        return False


def _refusal(stderr: bytearray) -> FlagbenchError:
    """The client's error message on stderr, as an error with its remedy.

    An example of the message: `docker: Error response from daemon: Minimum memory limit allowed is 6MB.` and, on the
    next line, `See 'docker run --help'.` (or, from Docker 28 on, `Run 'docker run --help' for more information`).
    """
    text = stderr.decode("utf-8", "replace")
    text = text.partition("docker: ")[2] or text
    text = re.split(r"\.?\s+(?:See|Run) 'docker run --help'", text)[0]
    return engine_refusal(text.removeprefix("Error response from daemon: "))
