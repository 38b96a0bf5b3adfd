"""Completion of arguments in the shell: images, stacks, claims, stored records and series.

Options of commands name these functions as `autocompletion`. Each returns the candidates that start with
`incomplete`, the text typed so far. A broken setup completes nothing: an error message would destroy the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import typer

from flagbench.errors import FlagbenchError
from flagbench.manifests.load import manifests_root

if TYPE_CHECKING:
    from flagbench.records.store import Store

RECENT = 50
"""The most records offered for completion: reading a large store would make the shell wait."""


def images(incomplete: str) -> list[str]:
    """The images, `case:stack`."""
    return _matching(incomplete, _images)


def cases(incomplete: str) -> list[str]:
    """The cases, and the images, `case:stack`."""
    return [*_matching(incomplete, _cases), *images(incomplete)]


def stacks(incomplete: str) -> list[str]:
    """The stacks, their aliases, and the devices."""
    return _matching(incomplete, _stacks)


def claims(incomplete: str) -> list[str]:
    """The ids of the claims."""
    return _matching(incomplete, _claims)


def _images() -> Iterator[str]:
    """Every combination of a case and a stack, though some stacks do not run every case."""
    stack_names = _stacks()
    for case in _cases():
        for stack in stack_names:
            yield f"{case}:{stack}"


def _cases() -> list[str]:
    return _find_in_manifests("cases", r"^name: (\S+)")


def _claims() -> list[str]:
    return _find_in_manifests("claims", r"^  - id: (\S+)")


def _stacks() -> list[str]:
    """The names and aliases of stacks, and the ids of devices, sorted."""
    names = set(_find_in_manifests("stacks", r"^name: (\S+)"))
    names.update(_find_in_manifests("devices", r"^id: (\S+)"))
    for aliases in _find_in_manifests("stacks", r"^aliases: \[(.+)\]"):
        names.update(aliases.split(", "))
    return sorted(names)


def _find_in_manifests(folder: str, pattern: str) -> list[str]:
    """The matches of `pattern` in the manifests of a folder. Parsing them as YAML would make the shell wait."""
    names = []
    for file in sorted((manifests_root() / folder).glob("*.yaml")):
        names += re.findall(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    return names


def records(context: typer.Context, incomplete: str) -> list[str]:
    """`last`, and the ids of the newest records in the store that --store names."""

    def names() -> Iterable[str]:
        store = _open_folder_store(context)
        if store is None:
            return ()
        readable = (record.record_id for record in store.list_records() if record.problem is None)
        # Each id once: a copy in a wrong place has the id of its original.
        return dict.fromkeys(("last", *islice(readable, RECENT)))

    return _matching(incomplete, names)


def series(context: typer.Context, incomplete: str) -> list[str]:
    """The ids of the series of runs in the store that --store names."""

    def names() -> Iterable[str]:
        from flagbench.records.series import series_ids

        store = _open_folder_store(context)
        if store is None:
            return ()
        return series_ids(store)

    return _matching(incomplete, names)


def runs(context: typer.Context, incomplete: str) -> list[str]:
    """The ids of records and of series."""
    return [*records(context, incomplete), *series(context, incomplete)]


def _open_folder_store(context: typer.Context) -> Store | None:
    """The store that --store names; None if it is a bucket, since completion must not wait for a server."""
    from flagbench.records.folder_blobs import FolderBlobs  # most commands need no store
    from flagbench.records.store import open_store

    store = open_store(context.params.get("store"))
    if not isinstance(store.blobs, FolderBlobs):
        return None
    return store


def _matching(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    """The names that start with `incomplete`; empty if they cannot be read."""
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except (FlagbenchError, OSError, UnicodeDecodeError):
        return []
