"""Runs the image side's `prepare`, in this Python or in a container of the case's image that has no network."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.image_reference import image_of
from flagbench.images.bucket import is_in_bucket
from flagbench.manifests.stack import DockerNeeds, MultiNodeNeeds
from flagbench.options import words
from flagbench.runs.launchers import native
from flagbench.runs.launchers.container_exit import explain
from flagbench.runs.launchers.docker import pulled_image
from flagbench.runs.launchers.docker_command import Container, Host, this_host
from flagbench.runs.launchers.folders import Folder, host_path
from flagbench.runs.prepare_request import PrepareRequest
from flagbench_core.exit_codes import ExitCode

SOURCES = ("data", "weights", "vocabulary")
MOST_ENTRIES = 100_000
"""Entries of a source folder that are searched for links. Nothing that a case publishes has as many."""
# A conversion needs no device, whatever the stack's runs need.
_NOTHING = DockerNeeds(None, (), (), (), "64m", {}, False, MultiNodeNeeds((), ()))

Prepared: TypeAlias = tuple[bytes, int]
"""Outcome of a preparation: what was printed on stdout, and the exit code."""


def prepare_native(request: PrepareRequest) -> Prepared:
    """Prepare in this Python. Raises FlagbenchError (usage) where it lacks what the case imports."""
    needed: tuple[str, ...] = native.NEEDED
    if request.options.check:
        needed = native.NEEDED[:1]  # checksums need no framework
    native.require_modules(needed, f"preparing {request.case.name}")
    ended = native.follow(["prepare", request.case.name, *words(request.options)], request.stack, {})
    if ended.code in set(ExitCode):
        return ended.printed, int(ended.code or 0)
    raise native.explain(ended)


def prepare_in_container(
    request: PrepareRequest,
    image: str | None = None,
    *,
    progress: Progress | None = None,
) -> Prepared:
    """Prepare in a container, which is removed at the end. An image in a bucket is pulled first.

    Raises FlagbenchError where nothing could be started: usage (2) for a missing image, data (3) for a missing
    source, engine (15) otherwise.
    """
    from flagbench.runs.launchers.engine_container import run_container

    if image is not None and is_in_bucket(image):
        image = pulled_image(image, progress or Progress(quiet=True))
    container = plan(request, image, this_host())
    _, ended = run_container(container, request)
    if isinstance(ended, FlagbenchError):
        raise ended
    if ended.code in set(ExitCode) and ended.overdue is None:
        return ended.printed, int(ended.code or 0)
    error = explain(ended)
    if error.code is ExitCode.OUT_OF_MEMORY:
        error.remedy = "give the engine more memory"
    raise error


def plan(request: PrepareRequest, image: str | None, host: Host) -> Container:
    """The container: the sources read-only, OUT writable, the caller's user, no network and no device.

    Raises FlagbenchError for a source that is not there or that a container would not see whole. Makes nothing: OUT
    need not be there yet.
    """
    folders = [Folder(str(host_path(request.options.out or "", "--out")), "/out", writable=True)]
    changed: dict[str, str] = {}
    for name in SOURCES:
        text = getattr(request.options, name)
        if text is None:
            continue
        source = _source(text, name)
        target = f"/sources/{name}"
        if not source.is_dir():
            # A file keeps the name that the user wrote, which says what it is; a link may lead to a blob's.
            target += f"/{Path(text).name}"
        folders.append(Folder(str(source), target, writable=False))
        changed[name] = target
    options = replace(request.options, out="/out", **changed)  # type: ignore[arg-type]
    if image is None:
        image = image_of(request.case.name, request.stack.name)
    run = f"prepare-{secrets.token_hex(6)}"
    groups: tuple[str, ...] = ()
    if host.uid:
        groups = tuple(str(group) for group in host.groups)
    return Container(
        image=image,
        name=f"flagbench-{run}",
        run=run,
        # The entry point names the case itself; OUT is shown as the user named it.
        arguments=("prepare", *words(options), f"--shown-as={request.options.out}"),
        environment={},
        folders=tuple(folders),
        grants=_NOTHING,
        user=f"{host.uid}:{host.gid}",
        groups=groups,
        network="none",
    )


def _source(text: str, name: str) -> Path:
    path = host_path(text, f"--{name}")
    if not path.exists():
        raise FlagbenchError(
            f"--{name} {text!r} does not exist", remedy="give what was downloaded", code=ExitCode.DATA
        )
    if not path.is_dir():
        return path
    # A container has the folder at another path, so a link that returns into it, or is absolute, leads out as well.
    for inner in islice(path.rglob("*"), MOST_ENTRIES):
        if inner.is_symlink() and _leads_out(inner, path):
            raise FlagbenchError(
                f"--{name} {text!r} contains the link {inner.name!r} to a file outside, which a container would not "
                "see",
                remedy="use --via native, or give a copy made with `cp -rL`",
                code=ExitCode.DATA,
            )
    return path


def _leads_out(link: Path, folder: Path) -> bool:
    """Whether a link of a folder leaves it anywhere on its way. Links that it leads over are looked at themselves."""
    current = link.parent
    for part in link.readlink().parts:  # the first part of an absolute target is the root
        current = Path(os.path.realpath(current / part))
        if not current.is_relative_to(folder):
            return True
    return False
