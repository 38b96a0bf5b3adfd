"""Records and bundles that wait until `flagbench results push` sends them, in one folder of the user.

`ID.json` and `ID.node-K-SHA256.tar.gz` wait there, each beside a file `.meant-for` with the address that it is meant
for; a ticket's URLs are credentials, and `ticket:RUN` stands for them. An image does the same, in the folder of its
`--out` if it has one. The name of the address is written first and removed last: what has none does not wait.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import platformdirs

from flagbench.files import reason
from flagbench.record.read import read_record
from flagbench.stores.blobs import StoreError
from flagbench.stores.layout import BundlePlace, bundles_prefix, parse_bundle_key

_MARK = ".meant-for"
_RUN = ".run-"
"""Begins the name of the folder of a run that has not ended."""


@dataclass(frozen=True)
class Waiting:
    """A record or a bundle that waits."""

    path: Path
    address: str
    """Where it is meant for."""
    record_id: str
    place: BundlePlace | None = None
    """None: it is a record."""

    def forget(self, *, keep: bool = False) -> None:
        """It is stored: remove it, or only what says that it waits. A failure leaves it to be stored again."""
        with suppress(OSError):
            if not keep:
                self.path.unlink(missing_ok=True)
            _mark(self.path).unlink(missing_ok=True)


def data_folder() -> Path:
    """The user's own folder."""
    return Path(platformdirs.user_data_dir("flagbench"))


def unsent_folder() -> Path:
    """Where things wait."""
    return data_folder() / "unsent"


def set_aside(record: bytes, address: str) -> Waiting:
    """Keep a record for `flagbench results push`. Raises FlagbenchError where that is not possible either."""
    record_id = read_record(record).record_id
    waits = Waiting(unsent_folder() / f"{record_id}.json", address, record_id)
    try:
        _write_mark(waits)
        _write(waits.path, record)
    except OSError as error:
        waits.forget()
        raise StoreError(f"the record was not set aside: {reason(error)}", remedy="free some space") from error
    return waits


def adopt_bundles(folder: Path, address: str) -> list[Waiting]:
    """Move the bundles that a run wrote to where they wait; what is not named as one is left. Raises OSError."""
    found = []
    for file in sorted((folder / bundles_prefix()).glob("*/*")):
        place = parse_bundle_key(file.relative_to(folder).as_posix())
        if place is None or not file.is_file() or file.resolve() != folder.resolve() / place.key:
            continue  # a link leads to what is not the run's
        waits = Waiting(unsent_folder() / _bundle_name(place), address, place.record_id, place)
        _write_mark(waits)
        file.replace(waits.path)
        found.append(waits)
    return found


def waiting(folder: Path) -> list[Waiting]:
    """What waits in a folder, the bundles of a record before it."""
    found = []
    for mark in folder.glob(f"*{_MARK}"):
        path = mark.with_name(mark.name[: -len(_MARK)])
        record_id, dash, rest = path.name.rpartition(".node-")
        place = parse_bundle_key(f"{bundles_prefix(record_id)}node-{rest}") if dash else None
        with suppress(OSError):  # it was sent meanwhile
            if path.is_file() and (place is not None or path.suffix == ".json"):
                address = mark.read_bytes().decode("utf-8", "surrogateescape").strip()
                found.append(Waiting(path, address, place.record_id if place else path.stem, place))
    return sorted(found, key=lambda each: (each.record_id, each.place is None, each.path))


@contextmanager
def bundle_folder() -> Iterator[Path]:
    """A folder for what one run writes, on the disk where it may have to wait; removed at the end.

    Removes those of runs that were killed, too. Raises OSError where it cannot be made.
    """
    unsent_folder().mkdir(parents=True, exist_ok=True)
    for left in unsent_folder().glob(f"{_RUN}*"):
        _remove_unused(left)
    folder = Path(mkdtemp(prefix=".new-", dir=unsent_folder()))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    folder = folder.rename(folder.with_name(f"{_RUN}{folder.name[5:]}"))  # only now: another run removes what is free
    try:
        yield folder
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unused(folder: Path) -> None:
    """Remove the folder of a run whose process has ended."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _bundle_name(place: BundlePlace) -> str:
    return place.key[len(bundles_prefix()) :].replace("/", ".")


def _mark(path: Path) -> Path:
    return path.with_name(path.name + _MARK)


def _write_mark(waits: Waiting) -> None:
    waits.path.parent.mkdir(parents=True, exist_ok=True)
    _write(_mark(waits.path), waits.address.encode("utf-8", "surrogateescape"))


def _write(path: Path, content: bytes) -> None:
    """Write a whole file, which a crash of the machine does not lose, or none. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
