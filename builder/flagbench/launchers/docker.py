"""Runs a case's image in a container of the Docker Engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flagbench.catalog.model import Case, Stack
from flagbench.engines import open_client
from flagbench.engines.connect import engine_errors
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import image_of
from flagbench.launchers import LaunchResult
from flagbench.launchers.container import RUN_LABEL, Container, DockerOptions, plan
from flagbench.launchers.container_exit import exit_code, explain, record_in
from flagbench.launchers.docker_args import docker_line, engine_config
from flagbench.launchers.engine_errors import engine_refusal, missing_image
from flagbench.launchers.environment import is_another_node
from flagbench.launchers.fallback import record_of_killed
from flagbench.launchers.folders import output_folder
from flagbench.launchers.host import Host, this_host
from flagbench.launchers.signals import GRACE_SECONDS, Forwarding
from flagbench.launchers.watch import Watch, Watched
from flagbench.request import RunRequest

ANSWER_SECONDS = 60.0
"""For the engine's answer to anything but waiting: starting a container with eight devices takes seconds."""


@dataclass(frozen=True)
class Image:
    """The image that is run: its id, and the digest that the record names."""

    id: str
    digest: str


class DockerLauncher:
    """The launcher of `--via docker`. The image must exist: nothing is built or pulled."""

    def __init__(
        self,
        options: DockerOptions | None = None,
        *,
        environment: Mapping[str, str] = os.environ,
        host: Host | None = None,
        connect: Callable[[], Any] = open_client,
        grace: float = GRACE_SECONDS,
        shows: Mapping[str, str] | None = None,
    ) -> None:
        """`shows`: variables for the container that only decide how progress is drawn."""
        self._options = options or DockerOptions()
        self._environment = environment
        self._host = host or this_host()
        self._connect = connect
        self._grace = grace
        self._shows = shows or {}

    def command(self, request: RunRequest) -> str:
        """The `docker run` line of the same container; the engine is not asked for anything."""
        return docker_line(plan(request, self._options, self._environment, self._host))

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run the image; its progress goes to this process's stderr. The container is removed at the end.

        Raises FlagbenchError where nothing could be started: usage (2) for a missing image, data (3) for a missing
        folder, wrong hardware (13) for a missing device, engine (15) otherwise.
        """
        container = plan(request, self._options, self._environment, self._host)
        where = self._environment.get("DOCKER_HOST") or "its usual address"
        # First: a signal that arrives while the container is made must not leave it behind.
        with Forwarding() as forwarder, connected(self._connect, where) as api:
            image = find_image(api, container.image, request.case, request.stack)
            told = {"FLAGBENCH_IMAGE_DIGEST": image.digest, **self._shows}
            container = replace(container, environment={**container.environment, **told})
            if container.folders and is_rootless(api):
                container = container.of_rootless_engine()
            keep = self._options.keep
            with output_folder(request.options.out), made_container(api, container, image, keep=keep) as made:
                if forwarder.early is not None:
                    error = FlagbenchError(
                        "interrupted before the container started", remedy="run again", code=ExitCode.INTERRUPTED
                    )
                    return _without_record(request, container, image, error)
                return _result(follow(api, made, forwarder, self._grace), request, container, image)


def _result(seen: Watched | None, request: RunRequest, container: Container, image: Image) -> LaunchResult:
    if seen is None:
        error = FlagbenchError(
            f"the connection to the container engine was lost while the container {container.name} ran",
            remedy="check that the engine runs, and see its log",
            code=ExitCode.ENGINE,
        )
        return _without_record(request, container, image, error)
    record, code = record_in(seen.stdout), seen.exit_code
    if record:
        return LaunchResult(record, exit_code(record, code))
    if request.options.nodes > 1 and code is not None and code in set(ExitCode) and seen.overdue is None:
        # Only node 0 prints a record; the image may know its node rank from the platform's variables alone.
        return LaunchResult(b"", code)
    return _without_record(request, container, image, explain(seen.state, seen.signalled, seen.overdue))


def _without_record(request: RunRequest, container: Container, image: Image, error: FlagbenchError) -> LaunchResult:
    """The record that the host writes, because the container did not; on another node than 0, only its reason."""
    if request.options.nodes > 1 and is_another_node(request.options.node_rank, container.environment):
        sys.stderr.write(f"error: {error.message}\nfix: {error.remedy}\n")
        return LaunchResult(b"", int(error.code))
    named = replace(request, options=replace(request.options, run_id=container.run))
    return LaunchResult(record_of_killed(named, error, image_digest=image.digest), int(error.code))


def find_image(api: Any, name: str, case: Case, stack: Stack) -> Image:
    """The image of that name. Raises FlagbenchError (usage) for none, and for one of another case or stack."""
    from docker.errors import APIError, ImageNotFound  # type: ignore[import-untyped]

    try:
        raw = api.inspect_image(name)
    except ImageNotFound:
        built_by = f"{case.name}:{stack.name}" if name == image_of(case.name, stack.name) else None
        raise missing_image(name, built_by) from None
    except APIError as error:
        raise engine_refusal(str(error.explanation or error)) from None
    labels = (raw.get("Config") or {}).get("Labels") or {}
    for kind, asked in (("case", case.name), ("stack", stack.name)):
        found = labels.get(f"dev.flagbench.{kind}", asked)
        if found != asked:
            raise FlagbenchError(
                f"the image {name} is of the {kind} {found}, not of {asked}",
                remedy="name the image of what is to be run, or run what the image is of",
            )
    # With its repository, the digest of a manifest can be pulled; an image that was never pushed has its id alone.
    return Image(raw["Id"], next(iter(raw.get("RepoDigests") or ()), raw["Id"]))


@contextmanager
def connected(connect: Callable[[], Any], where: str) -> Iterator[Any]:
    """The engine's low-level client; an unexpected exception of it becomes an engine error (15)."""
    client = connect()
    client.api.timeout = ANSWER_SECONDS
    try:
        with engine_errors("run a container", where):
            yield client.api
    finally:
        client.close()


def is_rootless(api: Any) -> bool:
    return any("name=rootless" in option for option in api.info().get("SecurityOptions") or ())


@contextmanager
def made_container(api: Any, container: Container, image: Image, *, keep: bool) -> Iterator[str]:
    """Make the container; remove it at the end in any case, or report that it is left."""
    from docker.errors import APIError, ImageNotFound

    try:
        # By id: the name may move to another image before the start.
        made: str = api.create_container_from_config(engine_config(container, image.id), container.name)["Id"]
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


def follow(api: Any, made: str, forwarder: Forwarding, grace: float = GRACE_SECONDS) -> Watched | None:
    """Start the container and wait until it has ended; None if the connection to the engine is lost.

    Raises FlagbenchError where the engine does not start it.
    """
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    watch = Watch(api, made, grace)
    try:
        watch.start()
    except APIError as error:
        raise engine_refusal(str(error.explanation or error)) from None
    forwarder.to(watch.forward)
    try:
        return watch.follow()
    except (DockerException, RequestException, OSError, ValueError):
        return None


def _remove(api: Any, made: str, container: Container) -> None:
    from docker.errors import DockerException, NotFound
    from requests.exceptions import RequestException

    try:
        api.remove_container(made, force=True, v=True)
    except NotFound:
        return  # already removed
    except (DockerException, RequestException, OSError) as error:
        sys.stderr.write(
            f"warning: the container {container.name} could not be removed: {' '.join(str(error).split())}\n"
            f"fix: `docker rm -f {container.name}`; `docker ps -a --filter label={RUN_LABEL}` finds it\n"
        )
