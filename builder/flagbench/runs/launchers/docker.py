"""Runs a case's image in a container of the Docker Engine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace

from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.images.bucket import is_in_bucket, parse_bucket_image
from flagbench.machine.diagnosis import Diagnosis, Level
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.launchers.container_environment import is_another_node
from flagbench.runs.launchers.container_exit import exit_code, explain, record_in, record_of_killed
from flagbench.runs.launchers.docker_command import Container, DockerOptions, plan, this_host
from flagbench.runs.request import RunRequest
from flagbench_core.environment import LAUNCHER
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact


class DockerLauncher:
    """The launcher of `--via docker`. Nothing is built, and nothing pulled but an image that is named in a bucket."""

    def __init__(
        self,
        options: DockerOptions | None = None,
        *,
        environment: Mapping[str, str] = os.environ,
        shows: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`shows`: variables for the container that only decide how progress is drawn. `progress`: shows a pull."""
        self._options = options or DockerOptions()
        self._environment = environment
        self._shows = shows or {}
        self._progress = progress or Progress(quiet=True)

    def health(self) -> Diagnosis:
        """Whether a container engine answers, and a docker command is installed; their versions."""
        from flagbench.images.docker import open_engine  # a command that is only shown needs neither
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

        Raises FlagbenchError (usage) for options that cannot be used, or (data) for missing folders.
        """
        return shlex.join(self._plan(request).command("--rm"))

    def check(self, request: RunRequest) -> None:
        """Raise FlagbenchError as `launch` does, where no engine answers or it lacks the image; asks no bucket."""
        from flagbench.runs.launchers.engine_container import check_image

        container = self._plan(request)
        if self._options.image is None or not is_in_bucket(self._options.image):
            with self._advising():
                check_image(container.image, request)

    def launch(self, request: RunRequest) -> LaunchResult:
        """Run the image; its progress goes to this process's stderr. The container is removed at the end.

        Raises FlagbenchError where nothing could be started: usage (2) for a missing image, data (3) for a missing
        folder or a damaged image in a bucket, wrong hardware (13) for a missing device, engine (15) otherwise.
        """
        from flagbench.runs.launchers.engine_container import run_container

        container = self._plan(request)
        if self._options.image is not None and is_in_bucket(self._options.image):
            pulled = pulled_image(self._options.image, self._progress)
            container = replace(container, image=pulled)
        with self._advising():
            image, ended = run_container(
                replace(container, environment={**container.environment, **self._shows, LAUNCHER: "docker"}),
                request,
                keep=self._options.keep_container,
            )
        several = request.options.nodes > 1
        if isinstance(ended, FlagbenchError):
            error, signalled = ended, ended.code is ExitCode.INTERRUPTED
        else:
            signalled = ended.signalled is not None
            if record := record_in(ended.printed):
                return LaunchResult(record, exit_code(record, ended.code), signalled)
            if several and ended.code in set(ExitCode) and ended.overdue is None:
                # Only node 0 prints a record; the image may know its node rank from the platform's variables alone.
                return LaunchResult(b"", int(ended.code or 0))
            error = explain(ended)
        if several and is_another_node(request.options.node_rank, container.environment):
            sys.stderr.write(redact(f"error: {error.message}\nfix: {error.remedy}\n"))
            return LaunchResult(b"", int(error.code))
        named = replace(request, options=replace(request.options, run_id=container.run))
        return LaunchResult(record_of_killed(named, error, image=image), int(error.code), signalled)

    @contextmanager
    def _advising(self) -> Iterator[None]:
        """A refusal of the usual image names the other way: a rented machine is often a container itself."""
        try:
            yield
        except FlagbenchError as refused:
            if self._options.image is None:
                refused.remedy += "; or run it in this Python: --via native"
            raise

    def _plan(self, request: RunRequest) -> Container:
        return plan(request, self._options, self._environment, this_host())


def pulled_image(image: str, progress: Progress) -> str:
    """The id of an image in a bucket, which is pulled if the engine lacks it; the bucket is asked in any case.

    Raises FlagbenchError as `pull` does.
    """
    # What runs an image that is here needs neither.
    from flagbench.images.docker import open_engine
    from flagbench.images.pull import pull

    with closing(open_engine()) as engine:
        return pull(parse_bucket_image(image), engine, progress).image.id
