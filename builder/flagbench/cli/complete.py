"""What the shell completes: images, claims and stored records. A broken setup completes nothing."""

from __future__ import annotations

from itertools import islice

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import image_names
from flagbench.errors import FlagbenchError
from flagbench.stores import open_store

RECENT = 50
"""Records offered for completion: reading a large store would make the shell wait."""


def images(incomplete: str) -> list[str]:
    """Every `case:stack` that starts with what was typed."""
    try:
        return [name for name in image_names(load_catalog(claims=False)) if name.startswith(incomplete)]
    except FlagbenchError:
        return []


def claims(incomplete: str) -> list[str]:
    """Every claim's id that starts with what was typed."""
    try:
        return [claim_id for claim_id in load_catalog().claims if claim_id.startswith(incomplete)]
    except FlagbenchError:
        return []


def records(incomplete: str) -> list[str]:
    """`last` and the newest records' ids that start with what was typed."""
    try:
        stored = (entry.record_id for entry in open_store().list() if entry.problem is None)
        recent = list(islice(stored, RECENT))
    except FlagbenchError:
        return []
    # A copy in a wrong place has the id of its original.
    return [name for name in dict.fromkeys(("last", *recent)) if name.startswith(incomplete)]
