"""Runs the image side's `prepare`, in this Python or in a container of the case's image that has no network."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flagbench.catalog.model import DockerNeeds
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.images import image_of
from flagbench.launchers import native
from flagbench.launchers.container import RUN_LABEL, Container
from flagbench.launchers.container_exit import Watched, explain
from flagbench.launchers.folders import Folder, host_path, output_folder
from flagbench.launchers.host import Host, this_host
from flagbench.launchers.signals import Forwarding
from flagbench.request import PrepareRequest

SOURCES = ("data", "weights", "vocabulary")
MOST_ENTRIES = 100_000
"""Entries of a source folder that are searched for links. Nothing that a case publishes has as many."""
# A conversion needs no device, whatever the stack's runs need.
_NOTHING = DockerNeeds(None, (), (), (), "64m", {}, False, (), ())


@dataclass(frozen=True)
class Prepared:
    """Outcome of a preparation: what was printed on stdout, and the exit code."""

    printed: bytes
    exit_code: int


def prepare_native(request: PrepareRequest) -> Prepared:
    """Prepare in this Python. Raises FlagbenchError (usage) where it lacks what the case imports."""
    native.require_modules(native.NEEDED, f"preparing {request.case.name}")
    environment = dict(os.environ, FLAGBENCH_STACK=request.stack.name)
    command = [sys.executable, "-m", "flagbench_cases", "prepare", request.case.name, *request.arguments()]
    ended = native.follow(command, environment)
    if ended.code in set(ExitCode):
        return Prepared(ended.printed, ended.code)
    raise ended.without_record()


def prepare_in_container(
    request: PrepareRequest,
    image: str | None = None,
    *,
    host: Host | None = None,
    connect: Callable[[], Any] | None = None,
) -> Prepared:
    """Prepare in a container, which is removed at the end.

    Raises FlagbenchError where nothing could be started: usage (2) for a missing image, data (3) for a missing
    source, engine (15) otherwise.
    """
    from flagbench.launchers.engine_container import connected, find_image, follow, is_rootless, made_container

    container = plan(request, image, host or this_host())
    with Forwarding() as forwarder, connected(connect) as api:
        found = find_image(api, container.image, request.case, request.stack)
        if is_rootless(api):
            container = container.of_rootless_engine()
        with output_folder(request.options.out), made_container(api, container, found, keep=False) as made:
            if forwarder.early is not None:
                raise FlagbenchError("interrupted before it began", remedy="run it again", code=ExitCode.INTERRUPTED)
            return _result(follow(api, made, forwarder))


def plan(request: PrepareRequest, image: str | None, host: Host) -> Container:
    """The container: the sources read-only, OUT writable, the caller's user, no network and no device.

    Raises FlagbenchError for a source that is not there or that a container would not see whole. Makes nothing: OUT
    need not be there yet.
    """
    folders = [Folder(str(host_path(request.options.out, "--out")), "/out", writable=True)]
    changed: dict[str, str] = {}
    for name in SOURCES:
        if (given := getattr(request.options, name)) is not None:
            source = _source(given, name)
            # A file keeps the name it was given by, which says what it is; a link may lead to a blob's.
            target = f"/sources/{name}" if source.is_dir() else f"/sources/{name}/{Path(given).name}"
            folders.append(Folder(str(source), target, writable=False))
            changed[name] = target
    options = replace(request.options, out="/out", **changed)  # type: ignore[arg-type]
    inside = replace(request, options=options, shown_as=request.shown_as or request.options.out)
    run = f"prepare-{secrets.token_hex(6)}"
    return Container(
        image=image_of(request.case.name, request.stack.name) if image is None else image,
        name=f"flagbench-{run}",
        run=run,
        arguments=("prepare", *inside.arguments()),  # the entry point names the case itself
        environment={},
        labels={RUN_LABEL: run},
        folders=tuple(folders),
        grants=_NOTHING,
        user=f"{host.uid}:{host.gid}",
        groups=tuple(str(group) for group in host.groups) if host.uid else (),
        network="none",
        memory=None,
    )


def _source(given: str, name: str) -> Path:
    path = host_path(given, f"--{name}")
    if not path.exists():
        raise FlagbenchError(
            f"--{name} {given!r} does not exist", remedy="give what was downloaded", code=ExitCode.DATA
        )
    if path.is_dir() and (link := next(_links_out(path), None)) is not None:
        raise FlagbenchError(
            f"--{name} {given!r} contains the link {link.name!r} to a file outside, which a container would not see",
            remedy="use --via native, or give a copy made with `cp -rL`",
            code=ExitCode.DATA,
        )
    return path


def _links_out(folder: Path) -> Iterator[Path]:
    """Links in a folder that lead out of it, as those of a Hugging Face cache do.

    A container has the folder at another path, so a link that returns into it, or is absolute, leads out as well.
    """
    seen = 0
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            seen += 1
            if seen > MOST_ENTRIES:
                return
            path = Path(root, name)
            if path.is_symlink() and _leads_out(path, folder):
                yield path


def _leads_out(link: Path, folder: Path) -> bool:
    """Whether a link of a folder leaves it anywhere on its way. Links that it leads over are looked at themselves."""
    target = link.readlink()
    if target.is_absolute():
        return True
    current = link.parent
    for part in target.parts:
        current = Path(os.path.realpath(current / part))
        if not current.is_relative_to(folder):
            return True
    return False


def _result(seen: Watched | None) -> Prepared:
    """What the container printed. Raises FlagbenchError where it was ended before it could say why."""
    if seen is None:
        raise FlagbenchError(
            "the connection to the container engine was lost during the conversion",
            remedy="check that the engine runs, then prepare again",
            code=ExitCode.ENGINE,
        )
    code = seen.exit_code
    if code is not None and code in set(ExitCode) and seen.overdue is None:
        return Prepared(seen.stdout, code)
    error = explain(seen)
    if error.code is ExitCode.OUT_OF_MEMORY:
        error.remedy = "give the engine more memory"
    raise error
