"""Makes and parses the keys of a store: the paths of its records, bundles and series below the store.

Their templates are in `flagbench_core.store_layout`, because an image that stores its own results needs them, too.
"""

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
_ANY_FILE_NAME = "[^/]*"
_PART_PATTERNS = {
    "record_id": RECORD_ID,
    "run_id": RUN_ID,
    "series_id": RUN_ID,
    "node": "0|[1-9][0-9]{0,5}",
    "sha256": "[0-9a-f]{64}",
}
"""The patterns of the parts of a key, by their names in the templates; another part may be any file name."""


@dataclass(frozen=True)
class Place:
    """The parts of a record's key, in which the record's fields of these names have the same values."""

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
        """Why no record can have this key, such as `its name is not a record id`; None for a valid one."""
        if not _RECORD_ID.fullmatch(self.record_id):
            return "its name is not a record id"
        if not _DAY.fullmatch(self.day):
            return f"its folder {self.day!r} is not a date"
        return date_fault(f"{self.day}T00:00:00Z")


@dataclass(frozen=True)
class BundlePlace:
    """The parts of a bundle's key, which names the content by its sha256."""

    record_id: str
    node: int
    sha256: str

    @property
    def key(self) -> str:
        """The path of the bundle below the store."""
        return store_layout.BUNDLE.format(**vars(self))


def parse_key(key: str) -> Place | None:
    """Return the parts of a record's key; None for a key that is not like the template.

    A part may still be invalid: `Place.problem` says so.
    """
    match = _pattern(store_layout.RECORD, record_id=_ANY_FILE_NAME).fullmatch(key)
    if match is None:
        return None
    return Place(**match.groupdict())


def parse_bundle_key(key: str) -> BundlePlace | None:
    """Return the parts of a bundle's key; None for a key that is not like the template."""
    match = _pattern(store_layout.BUNDLE).fullmatch(key)
    if match is None:
        return None
    return BundlePlace(match["record_id"], int(match["node"]), match["sha256"])


def bundles_prefix(record_id: str | None = None) -> str:
    """Return the folder of the bundles of a record, or of all bundles, ending in a slash."""
    return _folder(store_layout.BUNDLE, record_id=record_id)


def prefix(*, case: str | None = None, stack: str | None = None) -> str:
    """Return the folder of the records of a case, or of a case and a stack, ending in a slash.

    Without a case, it is the folder of all records: the folders of stacks are below those of cases.
    """
    names = {}
    if case is not None:
        names["case"] = case
    if stack is not None:
        names["stack"] = stack
    folders = []
    for template in store_layout.RECORD.split("/"):
        names_in_template = re.findall(r"{(\w+)}", template)
        if not names.keys() >= set(names_in_template):
            break  # the folders below could be any
        folders.append(template.format(**names))
    return "/".join(folders) + "/"


def checksum_name(name: str) -> str:
    """Return the name of the file next to the file `name` that has its checksum."""
    return store_layout.CHECKSUM.format(name=name)


def is_checksum_name(name: str) -> bool:
    """Return whether a file of this name has the checksum of another file, as `checksum_name` names it."""
    return name.endswith(checksum_name(""))


def checksum_text(content: bytes, name: str) -> bytes:
    """Return the content of the file with the checksum of the file `name`, as `sha256sum -c` reads it."""
    sha256 = hashlib.sha256(content).hexdigest()
    return store_layout.CHECKSUM_TEXT.format(sha256=sha256, name=name).encode()


def series_key(series_id: str, part: str | None = None) -> str:
    """Return the key of a series, or of a part of one that has not ended."""
    if part is None:
        return store_layout.SERIES.format(series_id=series_id)
    return store_layout.SERIES_PART.format(series_id=series_id, part=part)


def series_prefix(series_id: str | None = None) -> str:
    """Return the folder of the parts of a series that has not ended, or of all series, ending in a slash."""
    return _folder(store_layout.SERIES_PART, series_id=series_id)


def parse_series_key(key: str) -> str | None:
    """Return the id of the series that a key belongs to, ended or not; None for a key of something else."""
    match = _pattern(store_layout.SERIES).fullmatch(key) or _pattern(store_layout.SERIES_PART).fullmatch(key)
    if match is None:
        return None
    return match["series_id"]


def is_record_id(text: str) -> bool:
    """Return whether `text` has the form of a record's id; a path does not."""
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
    """Return the folder of a template, ending in a slash.

    `name` is the only name in the path of the folder; if it is None, the folder above is returned, which has all.
    """
    folder = template.rpartition("/")[0]
    if None in name.values():
        return folder.partition("{")[0].rstrip("/") + "/"
    return folder.format(**name) + "/"


@cache
def _pattern(template: str, **patterns: str) -> re.Pattern[str]:
    """Return the regular expression for the keys of a template, with a group for each of its names.

    `patterns` are used in place of those in _PART_PATTERNS.
    """
    all_patterns = {**_PART_PATTERNS, **patterns}

    def named_group(match: re.Match[str]) -> str:
        name = match[1]
        return f"(?P<{name}>{all_patterns.get(name, _ANY_FILE_NAME)})"

    return re.compile(re.sub(r"\\{(\w+)\\}", named_group, re.escape(template)))
