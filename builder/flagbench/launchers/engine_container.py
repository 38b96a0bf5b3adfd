"""One container of the Docker Engine: its image found, made, started, followed to its end, removed.

Imports docker-py, which takes 0.15 s: only what starts a container imports this module, when it does so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from docker.errors import APIError, DockerException, ImageNotFound, NotFound  # type: ignore[import-untyped]

from flagbench.catalog.model import Case, Stack
from flagbench.engines.connect import engine_errors, open_client
from flagbench.errors import FlagbenchError
from flagbench.images import image_of
from flagbench.launchers.container import RUN_LABEL, Container, Image
from flagbench.launchers.container_exit import Watched
from flagbench.launchers.docker_args import engine_config
from flagbench.launchers.engine_errors import engine_refusal, missing_image
from flagbench.launchers.signals import Forwarding
from flagbench.launchers.watch import Watch

ANSWER_SECONDS = 60.0
"""For the engine's answer to anything but waiting: starting a container with eight devices takes seconds."""


def find_image(api: Any, name: str, case: Case, stack: Stack) -> Image:
    """The image of that name. Raises FlagbenchError (usage) for none, and for one of another case or stack."""
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
def connected(connect: Callable[[], Any] | None) -> Iterator[Any]:
    """The engine's low-level client, made by `connect` if given; its unexpected exceptions are engine errors (15)."""
    client = (connect or open_client)()
    client.api.timeout = ANSWER_SECONDS
    try:
        with engine_errors("run a container"):
            yield client.api
    finally:
        client.close()


def is_rootless(api: Any) -> bool:
    """Whether the engine runs without root."""
    return any("name=rootless" in option for option in api.info().get("SecurityOptions") or ())


@contextmanager
def made_container(api: Any, container: Container, image: Image, *, keep: bool) -> Iterator[str]:
    """Make the container; remove it at the end in any case, or report that it is left."""
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


def follow(api: Any, made: str, forwarder: Forwarding) -> Watched | None:
    """Start the container and wait until it has ended; None if the connection to the engine is lost.

    Raises FlagbenchError where the engine does not start it.
    """
    watch = Watch(api, made)
    try:
        watch.start()
    except APIError as error:
        raise engine_refusal(str(error.explanation or error)) from None
    forwarder.to(watch.forward)
    try:
        return watch.follow()
    except (DockerException, OSError, ValueError):
        return None


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
