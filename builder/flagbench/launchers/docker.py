"""Runs a case's image in a container of the Docker Engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers import LaunchResult
from flagbench.launchers.container import Container, DockerOptions, Image, is_another_node, plan
from flagbench.launchers.container_exit import Watched, exit_code, explain, record_in
from flagbench.launchers.docker_args import docker_line
from flagbench.launchers.fallback import record_of_killed
from flagbench.launchers.folders import output_folder
from flagbench.launchers.host import Host, this_host
from flagbench.launchers.signals import Forwarding
from flagbench.redaction import redact
from flagbench.request import RunRequest


class DockerLauncher:
    """The launcher of `--via docker`. The image must exist: nothing is built or pulled."""

    def __init__(
        self,
        options: DockerOptions | None = None,
        *,
        environment: Mapping[str, str] = os.environ,
        host: Host | None = None,
        connect: Callable[[], Any] | None = None,
        shows: Mapping[str, str] | None = None,
    ) -> None:
        """`shows`: variables for the container that only decide how progress is drawn."""
        self._options = options or DockerOptions()
        self._environment = environment
        self._host = host or this_host()
        self._connect = connect
        self._shows = shows or {}

    def command(self, request: RunRequest) -> str:
        """The `docker run` line of the same container; the engine is not asked for anything.

        Raises FlagbenchError (usage) for options that cannot be used, or (data) for missing folders.
        """
        return docker_line(plan(request, self._options, self._environment, self._host))

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run the image; its progress goes to this process's stderr. The container is removed at the end.

        Raises FlagbenchError where nothing could be started: usage (2) for a missing image, data (3) for a missing
        folder, wrong hardware (13) for a missing device, engine (15) otherwise.
        """
        from flagbench.launchers.engine_container import connected, find_image, follow, is_rootless, made_container

        container = plan(request, self._options, self._environment, self._host)
        # First: a signal that arrives while the container is made must not leave it behind.
        with Forwarding() as forwarder, connected(self._connect) as api:
            image = find_image(api, container.image, request.case, request.stack)
            told = {"FLAGBENCH_IMAGE_DIGEST": image.digest, **self._shows}
            container = replace(container, environment={**container.environment, **told})
            if container.folders and is_rootless(api):
                container = container.of_rootless_engine()
            keep = self._options.keep_container
            with output_folder(request.options.out), made_container(api, container, image, keep=keep) as made:
                if forwarder.early is not None:
                    error = FlagbenchError(
                        "interrupted before the container started", remedy="run again", code=ExitCode.INTERRUPTED
                    )
                    return _without_record(request, container, image, error)
                return _result(follow(api, made, forwarder), request, container, image)


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
    return _without_record(request, container, image, explain(seen))


def _without_record(request: RunRequest, container: Container, image: Image, error: FlagbenchError) -> LaunchResult:
    """The record that the host writes, because the container did not; on another node than 0, only its reason."""
    if request.options.nodes > 1 and is_another_node(request.options.node_rank, container.environment):
        sys.stderr.write(redact(f"error: {error.message}\nfix: {error.remedy}\n"))
        return LaunchResult(b"", int(error.code))
    named = replace(request, options=replace(request.options, run_id=container.run))
    return LaunchResult(record_of_killed(named, error, image_digest=image.digest), int(error.code))
