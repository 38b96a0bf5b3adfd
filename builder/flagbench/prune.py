"""What can be removed to free space, each with its size: records, images that flagbench made, and its cache."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.files import reason
from flagbench.image_reference import REPOSITORY, is_ours
from flagbench.manifests.lookup import image_names
from flagbench.manifests.model import Catalog
from flagbench.records.bundles import StoredBundle
from flagbench.records.store import Store, StoredRecord
from flagbench.report.results import state_of
from flagbench.user_folders import cache_folder
from flagbench_core.exit_codes import ExitCode

IMAGE_LABEL = "dev.flagbench.context"
"""Every image that flagbench builds has it."""
_INDEX = "prepared.json"
_CACHED = re.compile(r"(?P<case>.+)-(?P<kind>data|weights)-[0-9a-f]{32}")
"""The name that a folder of the cache has."""


@dataclass(frozen=True)
class Removable:
    """Something that can be removed."""

    kind: str
    """record, image or cached."""
    name: str
    detail: str
    size: int
    """Bytes; of an image all its layers, also those that other images share."""
    remove: Callable[[], None]
    """Raises FlagbenchError where that is not possible."""


def records(store: Store, selected: Iterable[StoredRecord], keep: int = 0) -> list[Removable]:
    """The selected records except the newest `keep`.

    Never files that the store did not put there, nor records that it did not return and that may be sound.
    """
    found = (entry for entry in selected if entry.problem is None and not entry.unread)
    chosen = list(islice(found, keep, None))
    if not chosen:
        return []
    bundles = store.bundles.all()  # one listing for all of them
    return [stored_record(store, entry, bundles.get(entry.record_id, ())) for entry in chosen]


def stored_record(store: Store, entry: StoredRecord, bundles: Iterable[StoredBundle] | None = None) -> Removable:
    """A listed record with its bundles, which the store is asked for where they are not given."""
    if bundles is None:
        bundles = store.bundles.find(entry.record_id) if entry.problem is None else ()
    bundles = [*bundles]
    detail = f"{entry.case}:{entry.stack}, {state_of(entry).value}, {entry.created_at}"
    if bundles:
        detail += f", {len(bundles)} bundle(s)"
    size = entry.blob.size + sum(bundle.size for bundle in bundles)
    return Removable("record", entry.record_id, detail, size, partial(_remove_record, store, entry, bundles))


def _remove_record(store: Store, entry: StoredRecord, bundles: Iterable[StoredBundle]) -> None:
    """Bundles first: while the record is there, they can be found again."""
    for bundle in bundles:
        store.bundles.remove(bundle)
    store.remove(entry)


def images(client: Any, catalog: Catalog) -> list[Removable]:
    """flagbench's own images that no current name or alias refers to, dangling ones included.

    An image with any other name, such as one for a registry, is kept.

    Args:
        client: a `docker.DockerClient`.
    """
    current = {f"{REPOSITORY}/{name}" for name in image_names(catalog)}
    current |= {f"{REPOSITORY}/stack:{name}" for name in catalog.stacks}
    found = []
    # As listed: a look at each would fail for one that somebody else removes meanwhile.
    for image in client.api.images(filters={"label": IMAGE_LABEL}):
        tags = [tag for tag in image["RepoTags"] or () if tag != "<none>:<none>"]
        if all(map(is_ours, tags)) and current.isdisjoint(tags):
            title = image["Labels"].get("org.opencontainers.image.title", "")
            remove = partial(_remove_image, client, tags or [image["Id"]])
            found.append(Removable("image", tags[0] if tags else image["Id"], title, image["Size"], remove))
    return found


def cached() -> list[Removable]:
    """The data and weights of buckets that this user's cache keeps."""
    found = []
    for folder in _folders(cache_folder() / "prepared"):
        if name := _CACHED.fullmatch(folder.name):
            state = "fetched" if (folder / _INDEX).is_file() else "fetched in part"
            detail = f"{name['case']} {name['kind']}, {state}"
            found.append(Removable("cached", str(folder), detail, _used(folder), partial(_remove_cached, folder)))
    return found


def _folders(place: Path) -> list[Path]:
    """The folders in a folder, without links."""
    found = sorted(place.iterdir()) if place.is_dir() else []
    return [folder for folder in found if folder.is_dir() and not folder.is_symlink()]


def _used(folder: Path) -> int:
    """Bytes on the disk: of a file that is fetched in part, only what is there."""
    used = 0
    for path in folder.iterdir():
        with suppress(OSError):
            used += path.lstat().st_blocks * 512
    return used


def _remove_cached(folder: Path) -> None:
    """Remove a folder of the cache under its lock, which a process that is fetching it holds."""
    lock = folder.with_name(f".{folder.name}.lock")
    with _removing(folder):
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # First what makes it complete: nobody may use it while it disappears.
            (folder / _INDEX).unlink(missing_ok=True)
            shutil.rmtree(folder)
            lock.unlink()
        finally:
            os.close(handle)


@contextmanager
def _removing(folder: Path) -> Iterator[None]:
    """Raises FlagbenchError where a folder cannot be removed, or another process holds its lock."""
    try:
        yield
    except BlockingIOError:
        raise FlagbenchError(f"{folder} is being fetched", remedy="prune again when that has ended") from None
    except OSError as error:
        raise FlagbenchError(
            f"{folder} was not removed: {reason(error)}", remedy="make it writable for you", code=ExitCode.NOT_STORED
        ) from error


def _remove_image(client: Any, names: Iterable[str]) -> None:
    from docker.errors import DockerException  # type: ignore[import-untyped]

    for name in names:
        try:
            client.images.remove(name)
        except (DockerException, OSError) as error:
            raise FlagbenchError(
                f"the image {name} was not removed: {getattr(error, 'explanation', None) or error}",
                remedy="remove the containers that use it (`docker ps --all --filter ancestor=IMAGE`)",
                code=ExitCode.ENGINE,
            ) from None
