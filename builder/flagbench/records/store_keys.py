"""The keys of a store, made and read by the templates of flagbench_core.store_layout."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache

from flagbench.console.terminal import brief
from flagbench.records.blobs import StoreError
from flagbench.records.read import date_fault
from flagbench.records.scalars import RECORD_ID, RUN_ID
from flagbench_core import store_layout
from flagbench_core.exit_codes import ExitCode

_RECORD_ID = re.compile(RECORD_ID)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ANY = "[^/]*"
_PARTS = {
    "record_id": RECORD_ID,
    "run_id": RUN_ID,
    "series_id": RUN_ID,
    "node": "0|[1-9][0-9]{0,5}",
    "sha256": "[0-9a-f]{64}",
}
"""The patterns of the parts of a key; any other part may be any file name."""


@dataclass(frozen=True)
class Place:
    """The parts of a record's key."""

    case: str
    stack: str
    day: str
    record_id: str

    @property
    def key(self) -> str:
        """The path of the record below the store."""
        return store_layout.RECORD.format(**vars(self))

    @property
    def problem(self) -> str | None:
        """Why no record can belong there, or None."""
        if not _RECORD_ID.fullmatch(self.record_id):
            return "its name is not a record id"
        if not _DAY.fullmatch(self.day):
            return f"its folder {self.day!r} is not a date"
        return date_fault(f"{self.day}T00:00:00Z")


@dataclass(frozen=True)
class BundlePlace:
    """The parts of a bundle's key: the key names its content."""

    record_id: str
    node: int
    sha256: str

    @property
    def key(self) -> str:
        """The path of the bundle below the store."""
        return store_layout.BUNDLE.format(**vars(self))


def parse_key(key: str) -> Place | None:
    """The parts of a key; None for one that is not of the layout. What is wrong with one of them is its `problem`."""
    match = _pattern(store_layout.RECORD, record_id=_ANY).fullmatch(key)
    if match is None:
        return None
    return Place(**match.groupdict())


def parse_bundle_key(key: str) -> BundlePlace | None:
    """The parts of a bundle's key; None for one that is not of the layout."""
    match = _pattern(store_layout.BUNDLE).fullmatch(key)
    if match is None:
        return None
    return BundlePlace(match["record_id"], int(match["node"]), match["sha256"])


def bundles_prefix(record_id: str | None = None) -> str:
    """The folder, ending in a slash, of the bundles of a record, or of all."""
    return _folder(store_layout.BUNDLE, record_id=record_id)


def prefix(*, case: str | None = None, stack: str | None = None) -> str:
    """The folder, ending in a slash, of all records of `case`, or of `case` and `stack`; None is any."""
    names = {}
    if case is not None:
        names["case"] = case
    if stack is not None:
        names["stack"] = stack
    folders = []
    for part in store_layout.RECORD.split("/"):
        if not names.keys() >= {*re.findall(r"{(\w+)}", part)}:
            break
        folders.append(part.format(**names))
    return "/".join(folders) + "/"


def checksum_name(name: str) -> str:
    """The name of the checksum beside the file `name`."""
    return store_layout.CHECKSUM.format(name=name)


def checksum_text(content: bytes, name: str) -> bytes:
    """The content of that checksum, as `sha256sum -c` reads it."""
    return store_layout.CHECKSUM_TEXT.format(sha256=hashlib.sha256(content).hexdigest(), name=name).encode()


def series_key(series_id: str, part: str | None = None) -> str:
    """The path below the store of a series, or of a part of one that has not ended."""
    if part is None:
        return store_layout.SERIES.format(series_id=series_id)
    return store_layout.SERIES_PART.format(series_id=series_id, part=part)


def series_prefix(series_id: str | None = None) -> str:
    """The folder, ending in a slash, of all series, or of the parts of one that has not ended."""
    return _folder(store_layout.SERIES_PART, series_id=series_id)


def parse_series_key(key: str) -> str | None:
    """The id of the series that a key belongs to, ended or not; None for a key outside the layout."""
    match = _pattern(store_layout.SERIES).fullmatch(key) or _pattern(store_layout.SERIES_PART).fullmatch(key)
    if match is None:
        return None
    return match["series_id"]


def is_record_id(text: str) -> bool:
    """Whether `text` can be the id of a record, and so is no path."""
    return _RECORD_ID.fullmatch(text) is not None


def check_record_id(record_id: str) -> str:
    """Return the id. Raises StoreError (USAGE) if it is not valid, such as a path."""
    if not is_record_id(record_id):
        raise StoreError(
            f"'{brief(record_id)}' is not a record id",
            remedy="`flagbench results ls` shows the ids of the stored records",
            code=ExitCode.USAGE,
        )
    return record_id


def _folder(template: str, **name: str | None) -> str:
    """The folder of a template, ending in a slash; if the name is None, the folder of all names."""
    folder = template.rpartition("/")[0]
    if None in name.values():
        return folder.partition("{")[0].rstrip("/") + "/"
    return folder.format(**name) + "/"


@cache
def _pattern(template: str, **parts: str) -> re.Pattern[str]:
    """The regular expression for the keys of a template. `parts` replaces patterns of _PARTS."""
    patterns = {**_PARTS, **parts}

    def named_group(match: re.Match[str]) -> str:
        name = match[1]
        return f"(?P<{name}>{patterns.get(name, _ANY)})"

    return re.compile(re.sub(r"\\{(\w+)\\}", named_group, re.escape(template)))
