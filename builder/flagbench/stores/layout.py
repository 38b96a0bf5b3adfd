"""Where a store keeps records: manifests/store-v1.json, which the image side reads too."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache

from flagbench.errors import ExitCode
from flagbench.record.model import RECORD_ID
from flagbench.record.read import date_fault
from flagbench.schema import shipped_manifests
from flagbench.stores.blobs import StoreError
from flagbench.terminal import brief

_RECORD_ID = re.compile(RECORD_ID)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


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
        return layout()["record"].format(**vars(self))

    @property
    def problem(self) -> str | None:
        """Why no record can belong there, or None."""
        if not _RECORD_ID.fullmatch(self.record_id):
            return "its name is not a record id"
        if not _DAY.fullmatch(self.day):
            return f"its folder {self.day!r} is not a date"
        return date_fault(f"{self.day}T00:00:00Z")


@cache
def layout() -> dict[str, str]:
    """The templates: `record`, the key of a record; `checksum`, the file beside it; `checksum_text`, its content."""
    text = (shipped_manifests() / "store-v1.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def parse_key(key: str) -> Place | None:
    """The parts of a key; None for one that is not of the layout."""
    match = _pattern().fullmatch(key)
    return None if match is None else Place(**match.groupdict())


def prefix(**known: str | None) -> str:
    """The folder, ending in a slash, of all records of `case`, or of `case` and `stack`; None is any."""
    parts = []
    for part in layout()["record"].split("/"):
        names = re.findall(r"{(\w+)}", part)
        if any(known.get(name) is None for name in names):
            break
        parts.append(part.format(**known))
    return "/".join(parts) + "/"


def checksum_name(name: str) -> str:
    """The name of the checksum beside the file `name`."""
    return layout()["checksum"].format(name=name)


def checksum_text(content: bytes, name: str) -> bytes:
    """The content of that checksum, as `sha256sum -c` reads it."""
    return layout()["checksum_text"].format(sha256=hashlib.sha256(content).hexdigest(), name=name).encode()


def check_record_id(record_id: str) -> str:
    """Return the id. Raises StoreError (USAGE) if it is not valid, such as a path."""
    if not _RECORD_ID.fullmatch(record_id):
        raise StoreError(
            f"'{brief(record_id)}' is not a record id",
            remedy="`flagbench results ls` shows the ids of the stored records",
            code=ExitCode.USAGE,
        )
    return record_id


@cache
def _pattern() -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]*)", re.escape(layout()["record"])))
