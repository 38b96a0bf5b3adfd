"""What the shell completes: images, stacks, claims, stored records and series. A broken setup completes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import typer

from flagbench.errors import FlagbenchError
from flagbench.manifests.load import manifests_root

if TYPE_CHECKING:
    from flagbench.records.store import Store

RECENT = 50
"""Records offered for completion: reading a large store would make the shell wait."""


def images(incomplete: str) -> list[str]:
    """Every `case:stack` that starts with what was typed."""

    def names() -> Iterable[str]:
        stack_names = _stacks()
        for case in _cases():
            for stack in stack_names:
                yield f"{case}:{stack}"

    return _matching(incomplete, names)


def cases(incomplete: str) -> list[str]:
    """Every case, and every `case:stack`, that starts with what was typed."""
    return [*_matching(incomplete, _cases), *images(incomplete)]


def stacks(incomplete: str) -> list[str]:
    """Every stack, alias and device that starts with what was typed."""
    return _matching(incomplete, _stacks)


def claims(incomplete: str) -> list[str]:
    """Every claim's id that starts with what was typed."""
    return _matching(incomplete, lambda: _names_in("claims", r"^  - id: (\S+)"))


def _cases() -> list[str]:
    return _names_in("cases", r"^name: (\S+)")


def _stacks() -> list[str]:
    aliases = ", ".join(_names_in("stacks", r"^aliases: \[(.+)\]"))
    names = _names_in("stacks", r"^name: (\S+)") + _names_in("devices", r"^id: (\S+)")
    return sorted({*names, *aliases.split(", ")} - {""})


def _names_in(folder: str, pattern: str) -> list[str]:
    """What `pattern` matches in the manifests of a folder: parsing them as YAML would make the shell wait."""
    names = []
    for file in sorted((manifests_root() / folder).glob("*.yaml")):
        names += re.findall(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    return names


def records(context: typer.Context, incomplete: str) -> list[str]:
    """`last` and the newest records' ids that start with what was typed, of the store that --store names."""

    def names() -> Iterable[str]:
        store = _folder(context)
        if store is None:
            return ()
        recent = islice((record.record_id for record in store.list() if record.problem is None), RECENT)
        # A copy in a wrong place has the id of its original.
        return dict.fromkeys(("last", *recent))

    return _matching(incomplete, names)


def series(context: typer.Context, incomplete: str) -> list[str]:
    """The ids of series that start with what was typed, of the store that --store names."""

    def names() -> Iterable[str]:
        from flagbench.records.series import series_ids

        store = _folder(context)
        if store is None:
            return ()
        return series_ids(store)

    return _matching(incomplete, names)


def runs(context: typer.Context, incomplete: str) -> list[str]:
    """What `records` and `series` offer."""
    return [*records(context, incomplete), *series(context, incomplete)]


def _folder(context: typer.Context) -> Store | None:
    """The store that --store names; None for a bucket, since completion must not wait for a server."""
    from flagbench.records.folder_blobs import FolderBlobs  # most commands need no store
    from flagbench.records.store import open_store

    store = open_store(context.params.get("store"))
    if not isinstance(store.blobs, FolderBlobs):
        return None
    return store


def _matching(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except (FlagbenchError, OSError, UnicodeDecodeError):
        return []
