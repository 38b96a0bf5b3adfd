"""One container of the Docker Engine: its image found, made, started, followed to its end, removed.

Imports docker-py, which takes 0.15 s: only what starts a container imports this module, when it does so.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Thread
from typing import Any

from docker.errors import APIError, DockerException, ImageNotFound, NotFound  # type: ignore[import-untyped]

from flagbench.engines.base import names_configurations
from flagbench.engines.connect import engine_errors, open_client
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import image_of
from flagbench.launchers.container import RUN_LABEL, Container
from flagbench.launchers.container_exit import Ended, RunImage
from flagbench.launchers.docker_args import engine_config
from flagbench.launchers.engine_errors import engine_refusal, missing_image
from flagbench.launchers.folders import output_folder
from flagbench.launchers.signals import Forwarding
from flagbench.request import PrepareRequest, RunRequest

ANSWER_SECONDS = 60.0
"""For the engine's answer to anything but waiting: starting a container with eight devices takes seconds."""
MOST_BYTES = 64 * 2**20
"""Bytes of stdout that are kept, from its end: a record has some tens of KB."""
_DRAIN_SECONDS = 5.0


def run_container(
    container: Container,
    request: RunRequest | PrepareRequest,
    *,
    connect: Callable[[], Any] | None,
    keep: bool = False,
) -> tuple[RunImage, Ended | FlagbenchError]:
    """Run a container to its end; its stderr goes to this process's. Returns its image, and its end.

    The end is an error where a signal arrived before the start, or where the connection to the engine was lost.
    Raises FlagbenchError where the engine does not start it, has no such image, or has one of another case or stack.
    `connect` makes the client of the engine, unless it is docker's own.
    """
    # First: a signal that arrives while the container is made must not leave it behind.
    with Forwarding() as forwarder, _connected(connect or open_client) as api:
        image, named = _find_image(api, container.image, request)
        container = replace(container, environment={**container.environment, **named.environment})
        if container.folders and any("name=rootless" in option for option in api.info().get("SecurityOptions") or ()):
            # It runs as the caller: root in its containers is the caller outside.
            container = replace(container, user="0:0", groups=container.grants.groups)
        with output_folder(request.options.out), _made(api, container, image, keep=keep) as made:
            if forwarder.early:
                reason = "interrupted before the container started"
                return named, FlagbenchError(reason, remedy="run again", code=ExitCode.INTERRUPTED)
            ended = _follow(api, made, forwarder)
            return named, ended or FlagbenchError(
                f"the connection to the container engine was lost while the container {container.name} ran",
                remedy="check that the engine runs, and see its log; then run again",
                code=ExitCode.ENGINE,
            )


@contextmanager
def _connected(connect: Callable[[], Any]) -> Iterator[Any]:
    """The engine's low-level client; its unexpected exceptions are engine errors (15)."""
    client = connect()
    client.api.timeout = ANSWER_SECONDS
    try:
        with engine_errors("run a container"):
            yield client.api
    finally:
        client.close()


def _find_image(api: Any, name: str, request: RunRequest | PrepareRequest) -> tuple[str, RunImage]:
    """The engine's id of the image of that name, and how the record names it."""
    case, stack = request.case.name, request.stack.name
    try:
        raw = api.inspect_image(name)
    except ImageNotFound:
        raise missing_image(name, f"{case}:{stack}" if name == image_of(case, stack) else None) from None
    except APIError as error:
        raise engine_refusal(str(error.explanation or error)) from None
    labels = (raw.get("Config") or {}).get("Labels") or {}
    for kind, asked in (("case", case), ("stack", stack)):
        found = labels.get(f"dev.flagbench.{kind}", asked)
        if found != asked:
            raise FlagbenchError(
                f"the image {name} is of the {kind} {found}, not of {asked}",
                remedy="name the image of what is to be run, or run what the image is of",
            )
    image_id = str(raw["Id"])
    config = image_id if names_configurations(api.info()) else None
    # With its repository, the digest of a manifest can be pulled. The engine knows it of what it pulled or pushed.
    return image_id, RunImage(next(iter(raw.get("RepoDigests") or ()), image_id), config)


@contextmanager
def _made(api: Any, container: Container, image: str, *, keep: bool) -> Iterator[str]:
    """Make the container; remove it at the end in any case, or report that it is left."""
    try:
        # By id: the name may move to another image before the start.
        made: str = api.create_container_from_config(engine_config(container, image), container.name)["Id"]
    except ImageNotFound:
        raise missing_image(container.image, None) from None
    except APIError as error:
        raise engine_refusal(str(error.explanation or error)) from None
    try:
        yield made
    finally:
        if keep:
            sys.stderr.write(f"the container {container.name} is kept: `docker rm {container.name}` removes it\n")
        else:
            _remove(api, made, container)


def _remove(api: Any, made: str, container: Container) -> None:
    try:
        api.remove_container(made, force=True, v=True)
    except NotFound:
        return  # already removed
    except (DockerException, OSError) as error:
        sys.stderr.write(
            f"warning: the container {container.name} could not be removed: {' '.join(str(error).split())}\n"
            f"fix: `docker rm -f {container.name}`; `docker ps -a --filter label={RUN_LABEL}` finds it\n"
        )


def _follow(api: Any, made: str, forwarder: Forwarding) -> Ended | None:
    """Start the container and wait until it has ended; None if the connection to the engine is lost."""
    stdout = bytearray()

    def wait() -> None:
        with suppress(NotFound):
            api.wait(made, timeout=None)

    def send(number: int) -> None:
        # It may have ended just now. What cannot be signalled for another reason is killed after the grace.
        with suppress(APIError):
            api.kill(made, signal.Signals(number).name)

    def kill() -> None:
        # A paused container does not even see SIGKILL before it runs again.
        for call in (api.unpause, api.kill):
            with suppress(APIError):
                call(made)

    try:
        # Attached before the start, so that no output is lost.
        output = api.attach(made, stdout=True, stderr=True, stream=True, demux=True)
        api.start(made)
    except APIError as error:
        raise engine_refusal(str(error.explanation or error)) from None
    reader = Thread(target=_read, args=(output, stdout), daemon=True)
    reader.start()
    code, oom_killed, said = None, False, ""
    try:
        signalled, overdue = forwarder.follow(wait, send, kill)
        # Everything it wrote has been sent by now, unless another process keeps its output open.
        reader.join(_DRAIN_SECONDS)
        with suppress(NotFound):
            state = api.inspect_container(made)["State"]
            code, oom_killed = int(state.get("ExitCode") or 0), bool(state.get("OOMKilled"))
            said = " ".join(str(state.get("Error") or "").split())
    except (DockerException, OSError, ValueError):  # ValueError: the engine died in the middle of its answer
        return None
    return Ended(bytes(stdout), code, signalled, overdue, oom_killed, said)


def _read(output: Iterator[tuple[bytes | None, bytes | None]], kept: bytearray) -> None:
    """In a thread: stderr to the user as it comes, stdout kept. An end of the connection ends it."""
    with suppress(OSError):
        for stdout, stderr in output:
            # The run continues if the reader of its progress is gone (`2>&1 | head`).
            with suppress(OSError, ValueError):
                sys.stderr.buffer.write(stderr or b"")
                sys.stderr.buffer.flush()
            kept += stdout or b""
            del kept[:-MOST_BYTES]
