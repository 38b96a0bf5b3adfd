"""The store that the options name."""

from typing import Optional

from flagbench_cases.record.stores.folder import FolderStore, store_folder
from flagbench_cases.record.stores.store import Store
from flagbench_cases.record.stores.ticket import Ticket, TicketStore
from flagbench_cases.shared.errors import UsageError


def open_store(url: Optional[str], ticket: Optional[Ticket] = None) -> Optional[Store]:
    """The store of --store or a ticket; None without either. Touches no network. Raises UsageError."""
    if ticket is not None and url is not None:
        raise UsageError(
            "a store and a ticket exclude each other", "omit --store, or --ticket and the variable FLAGBENCH_TICKET"
        )
    if url is None and ticket is None:
        return None
    if url is not None and not _names_bucket(url):
        return FolderStore(store_folder(url))
    if ticket is not None:
        return TicketStore(ticket)
    # Imported here: the client takes time to import, and few runs use one.
    from flagbench_cases.record.stores.bucket import BucketStore

    return BucketStore(url or "")


def chosen_folder(url: Optional[str]) -> Optional[str]:
    """The folder that --store names; None for a bucket, or without it."""
    return None if url is None or _names_bucket(url) else store_folder(url)


def _names_bucket(url: str) -> bool:
    return url.lower().startswith("s3:")
