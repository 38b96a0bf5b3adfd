"""One container of the Docker Engine, from its image to its removal: run by the docker command, asked for by the API.

Imports docker-py, which takes 0.15 s: only what starts a container imports this module, when it does so.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from docker.errors import APIError, DockerException, NotFound  # type: ignore[import-untyped]

from flagbench.errors import FlagbenchError
from flagbench.image_reference import image_of
from flagbench.images.docker import DockerEngine
from flagbench.images.docker_api import engine_errors, open_client
from flagbench.images.docker_process import find_docker
from flagbench.runs.launchers.container_exit import Ended, RunImage
from flagbench.runs.launchers.docker_command import RUN_LABEL, Container
from flagbench.runs.launchers.engine_errors import engine_refusal, missing_image
from flagbench.runs.launchers.folders import output_folder
from flagbench.runs.prepare_request import PrepareRequest
from flagbench.runs.request import RunRequest
from flagbench.system.signals import Forwarding
from flagbench_core.exit_codes import ExitCode

ANSWER_SECONDS = 60.0
"""For the engine's answer to a question."""
_CLIENT_FAILED = 125
"""The exit code of `docker run` where there is no container; a container may end with it too."""
_MOST_SAID = 2**14
_START_SECONDS = 3.0


def run_container(
    container: Container, request: RunRequest | PrepareRequest, *, keep: bool = False
) -> tuple[RunImage, Ended | FlagbenchError]:
    """Run a container to its end; its stderr goes to this process's. Returns its image, and its end.

    The end is an error where a signal arrived before the start, or where the connection to the engine was lost.
    Raises FlagbenchError where the engine does not start it, has no such image, or has one of another case or stack.
    """
    name = container.name
    # First: a signal that arrives while the container is made must not leave it behind.
    with Forwarding() as forwarder, closing(open_client()) as client, engine_errors("run a container"):
        client.api.timeout = ANSWER_SECONDS
        docker = find_docker()
        image_id, named = _find_image(DockerEngine(client), container.image, request)
        engine = client.info()
        named = replace(named, host=engine.get("Name") or "")
        # By id: the name may move to another image before the start.
        container = replace(container, image=image_id, environment={**container.environment, **named.environment})
        if any("name=rootless" in option for option in engine.get("SecurityOptions") or ()):
            container = container.rootless()
        if forwarder.early:
            reason = "interrupted before the container started"
            return named, FlagbenchError(reason, remedy="run again", code=ExitCode.INTERRUPTED)
        words = container.command(f"--name={name}", "--sig-proxy=false")
        try:
            with output_folder(request.options.out):
                return named, _follow(docker, words, client.api, name, forwarder)
        finally:
            if keep:
                sys.stderr.write(f"the container {name} is kept: `docker rm {name}` removes it\n")
            else:
                _remove(client.api, name)


def check_image(name: str, request: RunRequest) -> None:
    """Raise FlagbenchError where no engine answers, or it has no such image of this case and stack."""
    with closing(open_client()) as client:
        _find_image(DockerEngine(client), name, request)


def _find_image(engine: DockerEngine, name: str, request: RunRequest | PrepareRequest) -> tuple[str, RunImage]:
    """The engine's id of the image of that name, and how the record names it."""
    case, stack = request.case.name, request.stack.name
    image = engine.inspect(name)
    if image is None:
        raise missing_image(name, f"{case}:{stack}" if name == image_of(case, stack) else None)
    for kind, asked in (("case", case), ("stack", stack)):
        found = image.labels.get(f"dev.flagbench.{kind}", asked)
        if found != asked:
            raise FlagbenchError(
                f"the image {name} is of the {kind} {found}, not of {asked}",
                remedy="name the image of what is to be run, or run what the image is of",
            )
    # With its repository, the digest of a manifest can be pulled.
    digest = next(iter(image.repo_digests), image.id)
    return image.id, RunImage(digest, image.id if engine.names_configurations() else None)


def _remove(api: Any, name: str) -> None:
    try:
        api.remove_container(name, force=True, v=True)
    except NotFound:
        return  # never made, or already removed
    except (DockerException, OSError) as error:
        sys.stderr.write(
            f"warning: the container {name} could not be removed: {' '.join(str(error).split())}\n"
            f"fix: `docker rm -f {name}`; `docker ps -a --filter label={RUN_LABEL}` finds it\n"
        )


def _follow(docker: str, words: list[str], api: Any, name: str, forwarder: Forwarding) -> Ended | FlagbenchError:
    """Run the client until the container has ended; the engine's State says how it did.

    Signals reach the container through the API alone: clients differ in what they make of one, so this one is in a
    session of its own, where a terminal's Ctrl-C does not reach it.
    """
    printed, said = bytearray(), bytearray()
    signalled = overdue = None

    def send(number: int) -> None:
        # The engine refuses until the container runs. What cannot be signalled is killed after the grace.
        latest = time.monotonic() + _START_SECONDS
        while client.poll() is None and time.monotonic() < latest:
            try:
                api.kill(name, signal.Signals(number).name)
            except APIError:
                time.sleep(0.1)
            else:
                return

    def kill() -> None:
        # A paused container does not even see SIGKILL before it runs again.
        for call in (api.unpause, api.kill):
            with suppress(APIError):
                call(name)

    try:
        with subprocess.Popen(
            words,
            executable=docker,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as client:
            assert client.stdout is not None
            assert client.stderr is not None
            read = {client.stdout: printed.extend, client.stderr: lambda chunk: _pass_on(chunk, said)}
            try:
                signalled, overdue = forwarder.follow(client, read, send, kill)
            finally:
                client.kill()  # where it still waits, for a container that cannot be killed
        state = _state(api, name)
    except (DockerException, OSError, ValueError):  # ValueError: the engine died in the middle of its answer
        state = {"Running": True}
    never_started = state.get("Status") == "created" or (not state and client.returncode == _CLIENT_FAILED)
    if overdue is None and never_started:
        raise _refusal(said)
    if overdue is None and state.get("Running"):
        return FlagbenchError(
            f"the connection to the container engine was lost while the container {name} ran",
            remedy="check that the engine runs, and see its log; then run again",
            code=ExitCode.ENGINE,
        )
    error = " ".join(str(state.get("Error") or "").split())
    oom_killed = bool(state.get("OOMKilled"))
    return Ended(bytes(printed), state.get("ExitCode"), signalled, overdue, oom_killed, error)


def _state(api: Any, name: str) -> dict[str, Any]:
    """The State of a container; empty where there is none."""
    try:
        return dict(api.inspect_container(name)["State"])
    except NotFound:
        return {}


def _pass_on(chunk: bytes, said: bytearray) -> None:
    """What the container says goes to the user as it comes; the client's error is left to `_refusal`."""
    said += chunk
    del said[:-_MOST_SAID]
    if not chunk.startswith(b"docker: "):
        # The run continues if the reader of its progress is gone (`2>&1 | head`).
        with suppress(OSError, ValueError):
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()


def _refusal(said: bytearray) -> FlagbenchError:
    """The client's last words, as an error with its remedy."""
    text = said.decode("utf-8", "replace")
    text = text.partition("docker: ")[2] or text
    text = re.split(r"\.?\s+(?:See|Run) 'docker run --help'", text)[0]
    return engine_refusal(text.removeprefix("Error response from daemon: "))
