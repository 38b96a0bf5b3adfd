"""What the shell completes: images, stacks, claims, stored records and series. A broken setup completes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import typer

from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import image_names

if TYPE_CHECKING:
    from flagbench.records.store import Store

RECENT = 50
"""Records offered for completion: reading a large store would make the shell wait."""


def images(incomplete: str) -> list[str]:
    """Every `case:stack` that starts with what was typed."""
    return _matching(incomplete, lambda: image_names(load_catalog(claims=False)))


def cases(incomplete: str) -> list[str]:
    """Every case, and every `case:stack`, that starts with what was typed."""

    def names() -> Iterable[str]:
        catalog = load_catalog(claims=False)
        return [*catalog.cases, *image_names(catalog)]

    return _matching(incomplete, names)


def stacks(incomplete: str) -> list[str]:
    """Every stack and alias that starts with what was typed."""

    def names() -> Iterable[str]:
        found = load_catalog(claims=False).stacks.values()
        return sorted({name for stack in found for name in (stack.name, *stack.aliases)})

    return _matching(incomplete, names)


def claims(incomplete: str) -> list[str]:
    """Every claim's id that starts with what was typed."""
    return _matching(incomplete, lambda: load_catalog().claims)


def records(context: typer.Context, incomplete: str) -> list[str]:
    """`last` and the newest records' ids that start with what was typed, of the store that --store names."""

    def names() -> Iterable[str]:
        if (store := _folder(context)) is None:
            return ()
        recent = islice((entry.record_id for entry in store.list() if entry.problem is None), RECENT)
        # A copy in a wrong place has the id of its original.
        return dict.fromkeys(("last", *recent))

    return _matching(incomplete, names)


def series(context: typer.Context, incomplete: str) -> list[str]:
    """The ids of the series in the store that --store names that start with what was typed."""

    def names() -> Iterable[str]:
        from flagbench.records.series import series_ids

        store = _folder(context)
        return () if store is None else series_ids(store)

    return _matching(incomplete, names)


def runs(context: typer.Context, incomplete: str) -> list[str]:
    """What `records` and `series` offer."""
    return [*records(context, incomplete), *series(context, incomplete)]


def _folder(context: typer.Context) -> Store | None:
    """The store that --store names; None for a bucket, since completion must not wait for a server."""
    from flagbench.records.folder_blobs import FolderBlobs  # most commands need no store
    from flagbench.records.store import open_store

    store = open_store(context.params.get("store"))
    return store if isinstance(store.blobs, FolderBlobs) else None


def _matching(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except FlagbenchError:
        return []
