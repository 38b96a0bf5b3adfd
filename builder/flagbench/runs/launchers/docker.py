"""Runs a case's image in a container of the Docker Engine: the launcher of `--via docker`.

`docker_command` plans the container, `engine_container` runs it, and `container_exit` explains its end.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.images.bucket import is_in_bucket, parse_bucket_image
from flagbench.machine.diagnosis import Diagnosis, Level
from flagbench.manifests.lookup import require_image
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.launchers.container_environment import is_another_node
from flagbench.runs.launchers.container_exit import (
    RunEnd,
    choose_exit_code,
    explain_missing_record,
    find_record,
    record_of_killed,
)
from flagbench.runs.launchers.docker_command import Container, DockerOptions, plan_container, this_host
from flagbench.runs.request import RunRequest
from flagbench_core.environment import LAUNCHER
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact

if TYPE_CHECKING:
    from flagbench.runs.launchers.engine_container import ContainerOutcome


class DockerLauncher:
    """The launcher of `--via docker`. It builds no image, and pulls one only if it is named in a bucket."""

    def __init__(
        self,
        options: DockerOptions | None = None,
        *,
        environment: Mapping[str, str] = os.environ,
        display: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Take the settings of all launches.

        Args:
            options: what the user chose about the container.
            environment: the caller's variables, of which the container gets some.
            display: variables for the container that only decide how progress is drawn.
            progress: shows the pull of an image.
        """
        self._options = options or DockerOptions()
        self._environment = environment
        self._display = display or {}
        self._progress = progress or Progress(quiet=True)

    def health(self) -> Diagnosis:
        """A finding on whether a container engine answers and a docker command is installed, with their versions."""
        # Imported late because docker-py takes 0.15 s, and a command that is only shown does not need it.
        from flagbench.images.docker import open_engine
        from flagbench.images.docker_process import find_docker

        try:
            with closing(open_engine()) as engine:
                find_docker()
                return Diagnosis("docker", Level.OK, engine.health())
        except FlagbenchError as error:
            remedy = f"{error.remedy}; --via native needs no engine"
            return Diagnosis("docker", Level.WARN, error.message, remedy)

    def command(self, request: RunRequest) -> str:
        """The `docker run` line of the same container, without the image's digest: the engine is not asked for it.

        Raises FlagbenchError (USAGE) for options that cannot be used, or (DATA) for missing folders.
        """
        return shlex.join(self._plan(request).command("--rm"))

    def check(self, request: RunRequest) -> None:
        """Raise FlagbenchError as `launch` does if no engine answers or it lacks the image.

        An image in a bucket is not looked for.
        """
        from flagbench.runs.launchers.engine_container import check_image

        container = self._plan(request)
        if not self._image_is_in_bucket:
            with self._suggesting_native():
                check_image(container.image, request)

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run the image; its progress goes to this process's stderr. The container is removed at the end.

        Raises FlagbenchError if nothing could be started: USAGE for a missing image, DATA for a missing
        folder or a damaged image in a bucket, WRONG_HARDWARE for a missing device, ENGINE otherwise.
        """
        from flagbench.runs.launchers.engine_container import run_container

        container = self._plan(request)
        if self._options.image is not None and self._image_is_in_bucket:
            pulled = pulled_image(self._options.image, self._progress)
            container = replace(container, image=pulled)
        environment = {**container.environment, **self._display, LAUNCHER: "docker"}
        with self._suggesting_native():
            outcome = run_container(
                replace(container, environment=environment), request, keep=self._options.keep_container
            )
        return _launch_result(request, container, outcome)

    @property
    def _image_is_in_bucket(self) -> bool:
        """Whether the user named an image that is in a bucket, not in the engine."""
        return self._options.image is not None and is_in_bucket(self._options.image)

    @contextmanager
    def _suggesting_native(self) -> Iterator[None]:
        """Add to the remedy of an error that the run needs no container, unless the user named an image.

        A rented machine is often a container itself, in which no engine runs.
        """
        try:
            yield
        except FlagbenchError as error:
            if self._options.image is None:
                error.remedy += "; or run it in this Python: --via native"
            raise

    def _plan(self, request: RunRequest) -> Container:
        """The container of a run, with the settings of this launcher.

        Raises UnknownNameError (USAGE) if the case has no image on the stack, and the user named none.
        """
        if self._options.image is None:
            require_image(request.case, request.stack)
        return plan_container(request, self._options, self._environment, this_host())


def _launch_result(request: RunRequest, container: Container, outcome: ContainerOutcome) -> LaunchResult:
    """The result of a container that has ended: the record that it printed, else one that states the error."""
    end = outcome.end
    several_nodes = request.options.nodes > 1
    if isinstance(end, RunEnd):
        signalled = end.signalled is not None
        if record := find_record(end.printed):
            return LaunchResult(record, choose_exit_code(record, end.code), signalled)
        if several_nodes and end.code in set(ExitCode) and end.killed_after is None:
            # Only node 0 prints a record; the image may know its node rank from the platform's variables alone.
            return LaunchResult(b"", int(end.code or 0))
        error = explain_missing_record(end)
    else:
        error = end
        signalled = error.code is ExitCode.INTERRUPTED
    if several_nodes and is_another_node(request.options.node_rank, container.environment):
        sys.stderr.write(redact(f"error: {error.message}\nfix: {error.remedy}\n"))
        return LaunchResult(b"", int(error.code))
    # The record has the run id of the container, which the request may leave open.
    with_run_id = replace(request, options=replace(request.options, run_id=container.run))
    record = record_of_killed(with_run_id, error, image=outcome.image)
    return LaunchResult(record, int(error.code), signalled)


def pulled_image(image: str, progress: Progress) -> str:
    """Pull an image from a bucket, unless the engine has the one that the bucket has now. Returns its id.

    Raises FlagbenchError as `images.pull.pull` does.
    """
    # Imported late: only an image in a bucket needs them.
    from flagbench.images.docker import open_engine
    from flagbench.images.pull import pull

    with closing(open_engine()) as engine:
        return pull(parse_bucket_image(image), engine, progress).image.id
