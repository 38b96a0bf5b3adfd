"""The files of a bundle by their meaning: written from what was measured, and read back with every type checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from flagbench.catalog.model import Claim
from flagbench.errors import FlagbenchError
from flagbench.record.model import Record
from flagbench.record.read import MAX_BYTES, read_record
from flagbench.reproduce.manifest import Manifest
from flagbench.reproduce.raw_events import compared, has_steps
from flagbench.stores.bundle_check import BundleError, check_bundle
from flagbench.stores.series_document import SeriesDocument, parse_series
from flagbench.terminal import brief

CLAIM, VERDICT, REPRODUCTION = "claim.json", "verdict.json", "reproduction.json"
ENVIRONMENT, PACKAGES, SBOM, LOG = "environment.json", "packages.json", "sbom.cdx.json", "logs/run.log"
SERIES, RECORDS, RAW = "series", "records", "raw"
"""The folders of the series, of the records, and of what each node kept of a run."""
_DOCUMENT_BYTES = 16 * 2**20


def claim_document(claim: Claim) -> dict[str, Any]:
    """A published row as it is bundled, with its source."""
    document: dict[str, Any] = msgspec.to_builtins(claim, enc_hook=str)
    del document["path"]  # of this machine
    return {"schema": "claim/v1", **document}


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
    """A clause for each record whose raw events, or those of some ranks, are missing.

    Nothing shows where the evidence of such a record comes from.
    """
    contradicted: tuple[str, ...] = ()
    """Where the evidence of a record is not that of its raw events."""


def read_contents(folder: Path, manifest: Manifest) -> Contents:
    """The contents of an unpacked bundle whose files are as its manifest says.

    Raises BundleError for documents that are missing, are not what they should be, or do not belong together.
    """
    documents = {name: _document(folder, name) for name in (CLAIM, VERDICT, REPRODUCTION)}
    against = documents[VERDICT].get("against")
    held = against.get("id") if isinstance(against, dict) else None
    for claim in (documents[CLAIM].get("id"), documents[REPRODUCTION].get("claim"), held):
        if claim != manifest.claim:
            raise BundleError(f"its documents are about {brief(manifest.claim)} and about {brief(str(claim))}")
    if documents[VERDICT].get("verdict") != manifest.verdict:
        raise BundleError(f"its manifest says {brief(manifest.verdict)}, and its {VERDICT} does not")
    try:
        series, records = _series(folder, manifest), _records(folder, manifest)
    except FlagbenchError as error:
        raise BundleError(error.message) from error
    named = {run.record_id for run in series.runs if run.record_id is not None}
    if other := sorted(records.keys() - named):
        raise BundleError(f"its series does not name the record {other[0]}")
    wrong: list[str] = []
    without = [clause for record in records.values() for clause in _without_raw(folder, manifest, record, wrong)]
    contents = {key: (folder / record_path(key)).read_bytes() for key in records}
    claim, verdict, told = (documents[name] for name in (CLAIM, VERDICT, REPRODUCTION))
    return Contents(claim, verdict, told, series, contents, tuple(sorted(without)), tuple(wrong))


def _document(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise BundleError(f"it has no {name}")
    if path.stat().st_size > _DOCUMENT_BYTES:
        raise BundleError(f"its {name} is larger than {_DOCUMENT_BYTES:,} bytes")
    try:
        document = msgspec.json.decode(path.read_bytes())
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BundleError(f"its {name} cannot be read: {brief(str(error))}") from error
    if not isinstance(document, dict):
        raise BundleError(f"its {name} is not an object")
    return document


def _series(folder: Path, manifest: Manifest) -> SeriesDocument:
    names = [entry for entry in manifest.files if entry.path.startswith(f"{SERIES}/")]
    if len(names) != 1:
        raise BundleError(f"it has {len(names)} series, and needs one")
    if names[0].size > _DOCUMENT_BYTES:
        raise BundleError(f"its {names[0].path} is larger than {_DOCUMENT_BYTES:,} bytes")
    series = parse_series((folder / names[0].path).read_bytes(), names[0].path)
    if series_path(series.series_id) != names[0].path:
        raise BundleError(f"its {names[0].path} is the series {series.series_id}")
    return series


def _records(folder: Path, manifest: Manifest) -> dict[str, Record]:
    found = {}
    for entry in manifest.files:
        if not entry.path.startswith(f"{RECORDS}/"):
            continue
        if entry.size > MAX_BYTES:
            raise BundleError(f"its {entry.path} has {entry.size:,} bytes, more than a record")
        record = read_record((folder / entry.path).read_bytes(), entry.path)
        if record_path(record.record_id) != entry.path:
            raise BundleError(f"its {entry.path} is the record {record.record_id}")
        found[record.record_id] = record
    return found


def _without_raw(folder: Path, manifest: Manifest, record: Record, wrong: list[str]) -> Iterator[str]:
    """Whose raw events are not there; adds to `wrong` where the record's evidence is not that of those that are.

    Raises BundleError for those of another run.
    """
    here = f"{RAW}/{record.record_id}/"
    named, ranks = record.bundle is None, set[int]()
    for entry in manifest.files:
        if not entry.path.startswith(here):
            continue
        raw = check_bundle(folder / entry.path)
        if raw.manifest.record_id != record.record_id or raw.manifest.run_id != record.run_id:
            raise BundleError(f"{entry.path} is not of the record {record.record_id}")
        if raw.manifest.node == (record.bundle.node if record.bundle else None):
            if record.bundle is None or raw.sha256 != record.bundle.sha256:
                raise BundleError(f"{entry.path} does not have the sha256 that the record {record.record_id} names")
            named = True
        found, clauses = compared(folder / entry.path, record, raw.manifest.node)
        ranks |= found
        wrong += clauses
    lacking = len(record.ranks) - len(ranks) if has_steps(record) else 0
    if lacking and ranks:
        of = f"{lacking} of {len(record.ranks)} ranks"
        yield f"the raw events of {of} of the record {record.record_id} are not in it"
    elif lacking or not named:
        yield f"the raw events of the record {record.record_id} are not in it"
