"""Writes and reads bundles that a person passes on: archives of records, and of JSON documents about them.

`flagbench reproduce` and `accept` write one and define its documents; `flagbench bundle` reads it without trust.
`bundle_archive` packs and unpacks the files.
"""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.records.bundle_archive import BundleError, pack, unpacked
from flagbench.records.model import Record
from flagbench.records.read import MAX_RECORD_BYTES, read_record
from flagbench.system.checkout import commit
from flagbench.system.files import expanded, reason
from flagbench_core import __version__
from flagbench_core.environment import secret_values, variables_for_bundle
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact
from flagbench_core.s3 import sha256_of
from flagbench_core.scratch import scratch

ENVIRONMENT = "environment.json"
"""The document of the host that launched the runs."""
PACKAGES = "packages.json"
"""The document of the packages that are installed on that host."""
RECORDS = "records"
"""The folder of the records."""
DOCUMENT_BYTES = 16 * 2**20
"""The size limit of a document."""


def this_flagbench() -> dict[str, Any]:
    """Return the version and commit of the flagbench that writes a bundle, as the documents have them."""
    return {"version": __version__, "commit": commit()}


def to_json(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of a document's file."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


def environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the document of the host that launched the runs: its system, and its environment variables.

    Of `variables`, those that a measurement may depend on are in it, with secrets redacted.
    """
    secrets = secret_values(variables)
    system = os.uname()
    return {
        "schema": "environment/v1",
        "flagbench": __version__,
        "python": platform.python_version(),
        "system": system.sysname,
        "kernel": system.release,
        "machine": system.machine,
        "processors": len(os.sched_getaffinity(0)),
        "variables": variables_for_bundle(variables, lambda text: redact(text, secrets)),
    }


def packages() -> dict[str, Any]:
    """Return the document of the packages that are installed in this Python, which a run without a container uses."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if isinstance(name, str) and name:
            versions.setdefault(name, distribution.version)
    listed = [{"name": name, "version": versions[name]} for name in sorted(versions, key=str.lower)]
    return {"schema": "packages/v1", "python": platform.python_version(), "packages": listed}


def record_path(record_id: str) -> str:
    """Return the path of a record in a bundle."""
    return f"{RECORDS}/{record_id}.json"


def write_bundle(target: Path, files: Mapping[str, bytes | Path]) -> str:
    """Write a bundle to a new file and return its sha256. The file appears only when it is complete.

    Args:
        files: contents, or files to copy, by their paths in the bundle.

    Raises FlagbenchError (NOT_STORED) if it could not be written, or the file exists.
    """
    target = expanded(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch(str(target.parent), ".bundle-") as folder:
            unfinished = Path(folder) / "bundle.tar.gz"
            pack(files, unfinished)
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, "it exists already")
            unfinished.rename(target)
        return sha256_of(target)
    except OSError as error:
        raise FlagbenchError(
            f"the bundle could not be written to {target}: {reason(error)}",
            remedy="the records are in the store: free space or name another --out, and run it again",
            code=ExitCode.NOT_STORED,
        ) from error


@contextmanager
def opened(path: Path) -> Iterator[Mapping[str, Path]]:
    """Unpack a bundle for as long as its files are used, and give the files by their paths in it, each checked.

    Raises FlagbenchError (DATA) for anything that is not a complete bundle, or cannot be read or unpacked. A
    BundleError that the caller raises about a document becomes such an error, too.
    """
    try:
        with unpacked(path) as files:
            yield files
    except BundleError as error:
        raise FlagbenchError(
            f"the bundle {brief(str(path))} is damaged: {error}",
            remedy="name the .tar.gz of `reproduce` or `accept`, or get it again from its author; compare its sha256",
            code=ExitCode.DATA,
        ) from error
    except (OSError, ValueError) as error:
        cause = str(error)
        if isinstance(error, OSError):
            cause = reason(error)
        remedy = "name a file that `flagbench reproduce` or `accept` wrote"
        if not isinstance(error, FileNotFoundError):
            remedy += "; TMPDIR needs room for what is in it"
        raise FlagbenchError(
            f"the bundle {brief(str(path))} cannot be read: {cause}", remedy=remedy, code=ExitCode.DATA
        ) from error


def read_document(files: Mapping[str, Path], name: str) -> dict[str, Any]:
    """Return a JSON document of a bundle. Raises BundleError if it is missing or not a JSON object."""
    if name not in files:
        raise BundleError(f"it has no {name}")
    content = read_part(files[name], DOCUMENT_BYTES, name)
    try:
        document = msgspec.json.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BundleError(f"its {name} cannot be read: {brief(str(error))}") from error
    if not isinstance(document, dict):
        raise BundleError(f"its {name} is not an object")
    return document


def read_records(files: Mapping[str, Path]) -> dict[str, Record]:
    """Return the records of a bundle by their ids. Raises BundleError or FlagbenchError if one cannot be read."""
    records = {}
    for name in files:
        if not name.startswith(f"{RECORDS}/"):
            continue
        content = read_part(files[name], MAX_RECORD_BYTES, name)
        record = read_record(content, name)
        if record_path(record.record_id) != name:
            raise BundleError(f"its {name} is the record {record.record_id}")
        records[record.record_id] = record
    return records


def read_part(path: Path, limit: int, name: str) -> bytes:
    """Return the bytes of a file of a bundle, at most `limit`. Raises BundleError if there are more."""
    if path.stat().st_size > limit:
        raise BundleError(f"its {name} is larger than {limit:,} bytes")
    return path.read_bytes()


class Difference(NamedTuple):
    """A field in which two JSON documents differ."""

    path: str
    """The names of the field and the objects around it, such as `config.layers[2].size`."""
    first: Any
    """The value in the first document; None if it is missing."""
    second: Any
    """The value in the second document; None if it is missing."""


def differing_paths(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the paths of the fields in which two JSON objects differ, sorted."""
    return sorted({difference.path for difference in differences(first, second)})


def differences(first: Any, second: Any, path: str = "") -> Iterator[Difference]:
    """Yield each field in which two JSON documents differ; `path` is that of the documents in larger ones."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        prefix = ""
        if path:
            prefix = f"{path}."
        for name in dict.fromkeys((*first, *second)):
            yield from differences(first.get(name), second.get(name), f"{prefix}{name}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (item_of_first, item_of_second) in enumerate(zip(first, second, strict=True)):
            yield from differences(item_of_first, item_of_second, f"{path}[{index}]")
    elif first != second:
        yield Difference(path, first, second)
