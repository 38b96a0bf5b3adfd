"""Completion of arguments in the shell: images, stacks, claims, stored records and series.

Options of commands name these functions as `autocompletion`. Each returns the candidates that start with
`incomplete`, the text typed so far. A broken setup completes nothing: an error message would destroy the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import typer

from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog, load_catalog_without_claims

if TYPE_CHECKING:
    from flagbench.manifests.model import Catalog
    from flagbench.manifests.stack import Stack
    from flagbench.records.store import Store

RECENT = 50
"""The most records offered for completion: reading a large store would make the shell wait."""


def images(incomplete: str) -> list[str]:
    """The images, `case:stack`."""
    return _matching(incomplete, lambda: _images_of(load_catalog_without_claims()))


def cases(incomplete: str) -> list[str]:
    """The cases, and the images, `case:stack`."""

    def names() -> list[str]:
        catalog = load_catalog_without_claims()
        return [*catalog.cases, *_images_of(catalog)]

    return _matching(incomplete, names)


def stacks(incomplete: str) -> list[str]:
    """The stacks, their aliases, and the devices."""
    return _matching(incomplete, _stacks)


def claims(incomplete: str) -> list[str]:
    """The ids of the claims."""
    return _matching(incomplete, lambda: load_catalog().claims)


def _images_of(catalog: Catalog) -> list[str]:
    """Every case with the names, aliases and devices of the stacks that run it, sorted."""
    names: set[str] = set()
    for stack in catalog.stacks.values():
        for case in stack.runs:
            names.update(f"{case}:{name}" for name in _names_of(stack))
    return sorted(names)


def _stacks() -> list[str]:
    names: set[str] = set()
    for stack in load_catalog_without_claims().stacks.values():
        names.update(_names_of(stack))
    return sorted(names)


def _names_of(stack: Stack) -> list[str]:
    """What selects a stack: its name, its aliases, and the ids of its devices."""
    return [*stack.names, *(device.id for device in stack.accelerators)]


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
