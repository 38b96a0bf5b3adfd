"""The bundle of a reproduction: its files, written whole or not at all, read back and its verdict computed again."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import Claim
from flagbench.records.bundle_archive import BundleError, pack, read_origin, unpacked
from flagbench.records.model import Record
from flagbench.records.read import MAX_BYTES, read_record
from flagbench.records.series import with_records
from flagbench.records.series_document import SeriesDocument, parse_series
from flagbench.system.checkout import commit
from flagbench.system.files import reason
from flagbench.verdict import VerifyResult
from flagbench.verdict.series import series_verdict
from flagbench_core import __version__
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import sha256_of
from flagbench_core.scratch import scratch

CLAIM, VERDICT, REPRODUCTION = "claim.json", "verdict.json", "reproduction.json"
ENVIRONMENT, PACKAGES, LOCK, LOG = "environment.json", "packages.json", "pylock.toml", "logs/run.log"
SERIES, RECORDS, RAW = "series", "records", "raw"
"""The folders of the series, of the records, and of what each node kept of a run."""
_DOCUMENT_BYTES = 16 * 2**20


def claim_document(claim: Claim) -> dict[str, Any]:
    """A published row as it is bundled, with its source."""
    document: dict[str, Any] = msgspec.to_builtins(claim, enc_hook=str)
    del document["path"]  # of this machine
    return {"schema": "claim/v1", **document}


def this_flagbench() -> dict[str, Any]:
    """The version and commit that a bundle is written by."""
    return {"version": __version__, "commit": commit()}


def to_json(document: Mapping[str, Any]) -> bytes:
    """A document as its file has it."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


def series_path(series_id: str) -> str:
    """The path of a series in a bundle."""
    return f"{SERIES}/{series_id}.json"


def record_path(record_id: str) -> str:
    """The path of a record in a bundle."""
    return f"{RECORDS}/{record_id}.json"


def raw_path(record_id: str, name: str) -> str:
    """The path in a bundle of what a node kept of a run, `name` being that of its file."""
    return f"{RAW}/{record_id}/{name}"


@dataclass(frozen=True)
class Contents:
    """What a whole bundle holds."""

    claim: Mapping[str, Any]
    verdict: Mapping[str, Any]
    reproduction: Mapping[str, Any]
    series: SeriesDocument
    records: Mapping[str, bytes]
    """The bytes of each record by its id."""
    without_raw: tuple[str, ...]
    """Ids of the records whose raw events are not in it."""

    @property
    def stated_by(self) -> str:
        """The version of the flagbench that wrote it; bundles of 0.1.0 may not say it."""
        author = self.reproduction.get("flagbench")
        return str(author.get("version")) if isinstance(author, dict) else "unknown"


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
        why = reason(error) if isinstance(error, OSError) else str(error)
        room = "" if isinstance(error, FileNotFoundError) else "; TMPDIR needs room for what is in it"
        raise FlagbenchError(
            f"the bundle {brief(str(path))} cannot be read: {why}",
            remedy=f"name a file that `flagbench reproduce` or `accept` wrote{room}",
            code=ExitCode.DATA,
        ) from error


def read_contents(files: Mapping[str, Path]) -> Contents:
    """The contents of the bundle of a reproduction, by the files' paths in it.

    Raises BundleError for documents that are missing, are not what they should be, or do not belong together.
    """
    claim, verdict, told = (read_document(files, name) for name in (CLAIM, VERDICT, REPRODUCTION))
    against = verdict.get("against")
    names = (claim.get("id"), told.get("claim"), against.get("id") if isinstance(against, dict) else None)
    if not isinstance(names[0], str) or len(set(map(str, names))) > 1:
        raise BundleError(f"its documents are about {' and about '.join(brief(str(name)) for name in names)}")
    try:
        series, records = _series(files), read_records(files)
    except FlagbenchError as error:
        raise BundleError(error.message) from error
    named = {run.record_id for run in series.runs if run.record_id is not None}
    if other := sorted(records.keys() - named):
        raise BundleError(f"its series does not name the record {other[0]}")
    without_raw = [record_id for record_id, record in records.items() if not _has_raw_events(files, record)]
    contents = {record_id: files[record_path(record_id)].read_bytes() for record_id in records}
    return Contents(claim, verdict, told, series, contents, tuple(sorted(without_raw)))


def read_document(files: Mapping[str, Path], name: str) -> dict[str, Any]:
    """A JSON document of a bundle. Raises BundleError where it is none."""
    if name not in files:
        raise BundleError(f"it has no {name}")
    try:
        document = msgspec.json.decode(_content(files[name], _DOCUMENT_BYTES, name))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BundleError(f"its {name} cannot be read: {brief(str(error))}") from error
    if not isinstance(document, dict):
        raise BundleError(f"its {name} is not an object")
    return document


def _series(files: Mapping[str, Path]) -> SeriesDocument:
    names = [name for name in files if name.startswith(f"{SERIES}/")]
    if len(names) != 1:
        raise BundleError(f"it has {len(names)} series, and needs one")
    series = parse_series(_content(files[names[0]], _DOCUMENT_BYTES, names[0]), names[0])
    if series_path(series.series_id) != names[0]:
        raise BundleError(f"its {names[0]} is the series {series.series_id}")
    return series


def read_records(files: Mapping[str, Path]) -> dict[str, Record]:
    """The records of a bundle by their ids. Raises BundleError or FlagbenchError where one cannot be read."""
    found = {}
    for name in files:
        if name.startswith(f"{RECORDS}/"):
            record = read_record(_content(files[name], MAX_BYTES, name), name)
            if record_path(record.record_id) != name:
                raise BundleError(f"its {name} is the record {record.record_id}")
            found[record.record_id] = record
    return found


def _content(path: Path, limit: int, name: str) -> bytes:
    if path.stat().st_size > limit:
        raise BundleError(f"its {name} is larger than {limit:,} bytes")
    return path.read_bytes()


def _has_raw_events(files: Mapping[str, Path], record: Record) -> bool:
    """Whether the raw events of a record are in the bundle. Raises BundleError for those of another run."""
    found = False
    for name in files:
        if not name.startswith(raw_path(record.record_id, "")):
            continue
        with unpacked(files[name]) as raw:
            origin = read_origin(raw)
        if (origin.record_id, origin.run_id) != (record.record_id, record.run_id):
            raise BundleError(f"{name} is not of the record {record.record_id}")
        named = record.bundle
        if named is not None and origin.node == named.node and sha256_of(files[name]) != named.sha256:
            raise BundleError(f"{name} does not have the sha256 that the record {record.record_id} names")
        found = True
    return found


def write_bundle(target: Path, files: Mapping[str, bytes | Path]) -> str:
    """Write a bundle to a new file, whole or not at all; returns its sha256.

    Args:
        files: contents, or files to copy, by their paths in the bundle.

    Raises FlagbenchError (not stored) where it could not be written.
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


@dataclass(frozen=True)
class BundleCheck:
    """The verdict on the records of a bundle, and what is to be said of the bundle."""

    records: list[Record]
    result: VerifyResult
    problems: list[str]
    """Where the bundle contradicts it."""
    notes: list[str]


def check(contents: Contents, catalog: Catalog) -> BundleCheck:
    """The verdict computed again. Raises FlagbenchError (data) where this flagbench does not have the claim."""
    name, author = contents.claim["id"], brief(contents.stated_by)
    claim = catalog.claims.get(name)
    if claim is None:
        raise FlagbenchError(
            f"the bundle is of the claim '{brief(name)}', which this flagbench {__version__} does not have",
            remedy=f"use the flagbench that wrote it, {author}, or a newer one; for a row that its author added, set "
            "FLAGBENCH_MANIFESTS to the author's manifests",
            code=ExitCode.DATA,
        )
    notes: list[str] = []
    problems: list[str] = []
    series = with_records(contents.series, lambda run: contents.records.get(run.record_id or ""))
    records, result = series_verdict(series, claim, catalog.cases[claim.case])
    fresh = _plain(result.to_dict())
    published = unlike(contents.claim, _plain(claim_document(claim)))
    if published:
        notes.append(f"the claim has changed since: {', '.join(published[:5])}; the verdict is on the present one")
    # What a version does not know changes with every version, and no number with it.
    differing = [path for path in unlike(contents.verdict, fresh) if path != "not_compared"]
    if contents.verdict.get("verdict") != fresh["verdict"]:
        problems.append(
            f"its verdict is {brief(str(contents.verdict.get('verdict')))} by flagbench {author}, and "
            f"{fresh['verdict']} computed again by {__version__}: {result.reason}"
        )
    elif differing and not published and contents.reproduction.get("flagbench") == this_flagbench():
        problems.append(f"its verdict does not follow from its records in {', '.join(differing[:5])}")
    elif differing:
        notes.append(f"computed again by flagbench {__version__}, the verdict differs in {', '.join(differing[:5])}")
    notes += [f"the raw events of the record {record_id} are not in it" for record_id in contents.without_raw]
    return BundleCheck(records, result, problems, notes)


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """A document as it is read from its file."""
    plain: dict[str, Any] = json.loads(to_json(document))
    return plain


def unlike(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """The paths of the fields in which two JSON objects differ, sorted."""
    return sorted({path for path, _, _ in differences(first, second)})


def differences(first: Any, second: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The path and both values of each field in which two JSON documents differ; None for a missing value."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for name in dict.fromkeys((*first, *second)):
            yield from differences(first.get(name), second.get(name), f"{path}.{name}" if path else name)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif first != second:
        yield path, first, second
