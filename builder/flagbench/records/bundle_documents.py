"""The documents of a bundle that a person passes on: records, and JSON documents about them; written whole or not at
all, and read without trust.

The contents of the documents are defined by `reproduce` and `accept`.
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
from typing import Any

import msgspec

from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.records.bundle_archive import BundleError, pack, unpacked
from flagbench.records.model import Record
from flagbench.records.read import MAX_RECORD_BYTES, read_record
from flagbench.system.checkout import commit
from flagbench.system.files import reason
from flagbench_core import __version__
from flagbench_core.environment import secret_values, variables_for_bundle
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact
from flagbench_core.s3 import sha256_of
from flagbench_core.scratch import scratch

ENVIRONMENT, PACKAGES = "environment.json", "packages.json"
RECORDS = "records"
"""The folder of the records."""
DOCUMENT_BYTES = 16 * 2**20
"""The size limit of a document."""


def this_flagbench() -> dict[str, Any]:
    """The version and commit of flagbench that writes a bundle."""
    return {"version": __version__, "commit": commit()}


def to_json(document: Mapping[str, Any]) -> bytes:
    """The bytes of a document's file."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


def environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """The host that launched the runs, and those of its variables that a measurement may depend on."""
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
    """The distributions that are installed in this Python, by name: what a run without a container consists of."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if isinstance(name, str) and name:
            versions.setdefault(name, distribution.version)
    listed = [{"name": name, "version": versions[name]} for name in sorted(versions, key=str.lower)]
    return {"schema": "packages/v1", "python": platform.python_version(), "packages": listed}


def record_path(record_id: str) -> str:
    """The path of a record in a bundle."""
    return f"{RECORDS}/{record_id}.json"


def write_bundle(target: Path, files: Mapping[str, bytes | Path]) -> str:
    """Write a bundle to a new file, whole or not at all; returns its sha256.

    Args:
        files: contents, or files to copy, by their paths in the bundle.

    Raises FlagbenchError (not stored) if it could not be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch(str(target.parent), ".bundle-") as folder:
            part = Path(folder) / "bundle.tar.gz"
            pack(files, part)
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, "it exists already")
            part.rename(target)
        return sha256_of(target)
    except OSError as error:
        raise FlagbenchError(
            f"the bundle could not be written to {target}: {reason(error)}",
            remedy="the records are in the store: free space or name another --out, and run it again",
            code=ExitCode.NOT_STORED,
        ) from error


@contextmanager
def opened(path: Path) -> Iterator[Mapping[str, Path]]:
    """The files of a bundle by their paths in it, each checked.

    Raises FlagbenchError (data) for anything that is not a whole bundle, or cannot be read or unpacked.
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
        why = str(error)
        if isinstance(error, OSError):
            why = reason(error)
        remedy = "name a file that `flagbench reproduce` or `accept` wrote"
        if not isinstance(error, FileNotFoundError):
            remedy += "; TMPDIR needs room for what is in it"
        raise FlagbenchError(
            f"the bundle {brief(str(path))} cannot be read: {why}", remedy=remedy, code=ExitCode.DATA
        ) from error


def read_document(files: Mapping[str, Path], name: str) -> dict[str, Any]:
    """A JSON document of a bundle. Raises BundleError if it is missing or not a JSON object."""
    if name not in files:
        raise BundleError(f"it has no {name}")
    try:
        document = msgspec.json.decode(read_part(files[name], DOCUMENT_BYTES, name))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BundleError(f"its {name} cannot be read: {brief(str(error))}") from error
    if not isinstance(document, dict):
        raise BundleError(f"its {name} is not an object")
    return document


def read_records(files: Mapping[str, Path]) -> dict[str, Record]:
    """The records of a bundle by their ids. Raises BundleError or FlagbenchError if one cannot be read."""
    records = {}
    for name in files:
        if not name.startswith(f"{RECORDS}/"):
            continue
        record = read_record(read_part(files[name], MAX_RECORD_BYTES, name), name)
        if record_path(record.record_id) != name:
            raise BundleError(f"its {name} is the record {record.record_id}")
        records[record.record_id] = record
    return records


def read_part(path: Path, limit: int, name: str) -> bytes:
    """The bytes of a file of a bundle, at most `limit`. Raises BundleError if there are more."""
    if path.stat().st_size > limit:
        raise BundleError(f"its {name} is larger than {limit:,} bytes")
    return path.read_bytes()


def unlike(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The paths of the fields in which two JSON objects differ, sorted."""
    return sorted({path for path, _, _ in differences(first, second)})


def differences(first: Any, second: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The path and both values of each field in which two JSON documents differ; None for a missing value."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        prefix = f"{path}." if path else ""
        for name in dict.fromkeys((*first, *second)):
            yield from differences(first.get(name), second.get(name), f"{prefix}{name}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, (left, right) in enumerate(zip(first, second, strict=True)):
            yield from differences(left, right, f"{path}[{number}]")
    elif first != second:
        yield path, first, second
