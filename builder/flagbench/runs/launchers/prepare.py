"""Runs the image side's `prepare` for `flagbench prepare`.

It runs in this Python, or in a container of the case's image that has no network.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.image_reference import image_of
from flagbench.images.bucket import is_in_bucket
from flagbench.manifests.stack import DockerNeeds, MultiNodeNeeds
from flagbench.options import words
from flagbench.runs.launchers import native
from flagbench.runs.launchers.container_exit import explain_missing_record
from flagbench.runs.launchers.docker import pulled_image
from flagbench.runs.launchers.docker_command import Container, Host, this_host
from flagbench.runs.launchers.folders import Folder, host_path
from flagbench.runs.prepare_request import PrepareRequest
from flagbench_core.exit_codes import ExitCode

SOURCES = ("data", "weights", "vocabulary")
"""The options that name something that was downloaded."""
MOST_ENTRIES = 100_000
"""Entries of a source folder that are searched for links. No published data set has as many."""
_NO_NEEDS = DockerNeeds(None, (), (), (), "64m", {}, False, MultiNodeNeeds((), ()))
"""The needs of a conversion, which uses no device. 64m is docker's default for shared memory."""
_NAME_BYTES = 6
"""Random bytes in the name of a container."""


class PrepareResult(NamedTuple):
    """The outcome of a preparation."""

    printed: bytes
    """Everything that was printed on stdout."""
    exit_code: int


def prepare_native(request: PrepareRequest) -> PrepareResult:
    """Prepare in this Python. Raises FlagbenchError (USAGE) if a module that the case imports is not installed."""
    needed: tuple[str, ...] = native.NEEDED
    if request.options.check:
        needed = native.NEEDED[:1]  # checksums need no framework
    native.require_modules(needed, f"preparing {request.case.name}")
    end = native.run_image_side(["prepare", request.case.name, *words(request.options)], request.stack, {})
    if end.code in set(ExitCode):
        return PrepareResult(end.printed, int(end.code or 0))
    raise native.explain_missing_output(end)


def prepare_in_container(
    request: PrepareRequest,
    image: str | None = None,
    *,
    progress: Progress | None = None,
) -> PrepareResult:
    """Prepare in a container, which is removed at the end. An image in a bucket is pulled first.

    Raises FlagbenchError if nothing could be started: USAGE for a missing image, DATA for a missing
    source, ENGINE otherwise.
    """
    from flagbench.runs.launchers.engine_container import run_container

    if image is not None and is_in_bucket(image):
        image = pulled_image(image, progress or Progress(quiet=True))
    container = plan_prepare_container(request, image, this_host())
    end = run_container(container, request).end
    if isinstance(end, FlagbenchError):
        raise end
    if end.code in set(ExitCode) and end.killed_after is None:
        return PrepareResult(end.printed, int(end.code or 0))
    error = explain_missing_record(end)
    if error.code is ExitCode.OUT_OF_MEMORY:
        error.remedy = "give the engine more memory"
    raise error


def plan_prepare_container(request: PrepareRequest, image: str | None, host: Host) -> Container:
    """The container: the sources read-only, OUT writable, the caller's user, no network and no device.

    OUT need not exist yet, and is not made. Raises FlagbenchError for a source that does not exist, or that a
    container would not see as a whole.
    """
    folders = [Folder(str(host_path(request.options.out or "", "--out")), "/out", writable=True)]
    changed: dict[str, str] = {}
    for name in SOURCES:
        text = getattr(request.options, name)
        if text is None:
            continue
        source = _find_source(text, name)
        target = f"/sources/{name}"
        if not source.is_dir():
            # A file keeps the name that the user wrote, by which its kind is known. If it is a link, as in a download
            # cache, the file that it leads to may be named by a hash.
            target += f"/{Path(text).name}"
        folders.append(Folder(str(source), target, writable=False))
        changed[name] = target
    options = replace(request.options, out="/out", **changed)  # type: ignore[arg-type]
    if image is None:
        image = image_of(request.case.name, request.stack.name)
    run = f"prepare-{secrets.token_hex(_NAME_BYTES)}"
    groups: tuple[str, ...] = ()
    if host.uid:
        groups = tuple(str(group) for group in host.groups)
    return Container(
        image=image,
        name=f"flagbench-{run}",
        run=run,
        # The entry point adds the case. Messages show OUT as the user named it.
        arguments=("prepare", *words(options), f"--shown-as={request.options.out}"),
        environment={},
        folders=tuple(folders),
        grants=_NO_NEEDS,
        user=f"{host.uid}:{host.gid}",
        groups=groups,
        network="none",
    )


def _find_source(text: str, name: str) -> Path:
    """The path of what the option `name` names. Raises FlagbenchError (DATA) if a container could not read it all."""
    path = host_path(text, f"--{name}")
    if not path.exists():
        raise FlagbenchError(
            f"--{name} {text!r} does not exist", remedy="give what was downloaded", code=ExitCode.DATA
        )
    if not path.is_dir():
        return path
    for entry in islice(path.rglob("*"), MOST_ENTRIES):
        if entry.is_symlink() and _leads_out(entry, path):
            raise FlagbenchError(
                f"--{name} {text!r} contains the link {entry.name!r} to a file outside, which a container would not "
                "see",
                remedy="use --via native, or give a copy made with `cp -rL`",
                code=ExitCode.DATA,
            )
    return path


def _leads_out(link: Path, folder: Path) -> bool:
    """Whether the target of a link in a folder leaves the folder anywhere on its way, even if it returns to it.

    A container sees the folder at another path, so such a link would not work there. Other links on the way are not
    followed, because the caller checks each link of the folder.
    """
    current = link.parent
    for part in link.readlink().parts:  # the first part of an absolute target is the root
        current = Path(os.path.realpath(current / part))
        if not current.is_relative_to(folder):
            return True
    return False
