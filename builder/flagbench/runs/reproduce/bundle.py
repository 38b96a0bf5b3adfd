"""The bundle of a reproduction: the paths of its files, reading it back, and checking its verdict.

`flagbench bundle verify` reads a bundle with `read_contents`, and `check_bundle` computes its verdict again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import Claim, ClaimRow
from flagbench.records.bundle_archive import BundleError, read_origin, unpacked
from flagbench.records.bundle_documents import (
    DOCUMENT_BYTES,
    differing_paths,
    read_document,
    read_part,
    read_records,
    record_path,
    this_flagbench,
    to_json,
)
from flagbench.records.model import Record
from flagbench.records.series import with_records
from flagbench.records.series_document import SeriesDocument, parse_series
from flagbench.verdict import VerifyResult
from flagbench.verdict.series import series_verdict
from flagbench_core import __version__
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import sha256_of

CLAIM = "claim.json"
"""The path of the published row that was reproduced."""
VERDICT = "verdict.json"
"""The path of the verdict on that claim, as `flagbench verify --json` prints it."""
REPRODUCTION = "reproduction.json"
"""The path of the document about the reproduction: its command, machine and image, and the flagbench that ran it."""
LOCK = "pylock.toml"
"""The path of the lockfile of the image's Python packages."""
LOG = "logs/run.log"
"""The path of the log of the runs."""
SERIES = "series"
"""The folder of the series document."""
RAW = "raw"
"""The folder of raw events: for each record, an archive of the events that each node wrote."""
_MOST_NAMED = 5
"""Most fields that a message names."""


def claim_document(claim: Claim) -> dict[str, Any]:
    """The document `claim.json`: a published row with its source."""
    names = [field.name for field in fields(ClaimRow)]
    document = {name: msgspec.to_builtins(getattr(claim, name)) for name in (*names, "case")}
    return {"schema": "claim/v1", **document}


def series_path(series_id: str) -> str:
    """The path of a series in a bundle."""
    return f"{SERIES}/{series_id}.json"


def raw_path(record_id: str, name: str) -> str:
    """The path in a bundle of the raw events of a run; `name` is the file name of a node's archive."""
    return f"{RAW}/{record_id}/{name}"


@dataclass(frozen=True)
class BundleContents:
    """The parsed files of a complete bundle."""

    claim: Mapping[str, Any]
    verdict: Mapping[str, Any]
    reproduction: Mapping[str, Any]
    series: SeriesDocument
    record_bytes: Mapping[str, bytes]
    """The JSON of each record by the record's id."""
    without_raw: tuple[str, ...]
    """The ids of the records whose raw events are not in the bundle."""

    @property
    def writer_version(self) -> str:
        """The version of flagbench that wrote the bundle; `unknown` for some bundles of 0.1.0."""
        writer = self.reproduction.get("flagbench")
        if not isinstance(writer, dict):
            return "unknown"
        return str(writer.get("version", "unknown"))


def read_contents(files: Mapping[str, Path]) -> BundleContents:
    """Read the bundle of a reproduction. `files`: the unpacked files by their paths in the bundle.

    Raises BundleError for documents that are missing, malformed, or do not belong together.
    """
    claim = read_document(files, CLAIM)
    verdict = read_document(files, VERDICT)
    reproduction = read_document(files, REPRODUCTION)
    _require_one_claim(claim, verdict, reproduction)
    try:
        series = _read_series(files)
        records = read_records(files)
    except FlagbenchError as error:
        raise BundleError(error.message) from error
    named = {run.record_id for run in series.runs if run.record_id is not None}
    unnamed = sorted(records.keys() - named)
    if unnamed:
        raise BundleError(f"its series does not name the record {unnamed[0]}")
    without_raw = []
    record_bytes = {}
    for record_id, record in records.items():
        if not _check_raw_events(files, record):
            without_raw.append(record_id)
        record_bytes[record_id] = files[record_path(record_id)].read_bytes()
    return BundleContents(
        claim=claim,
        verdict=verdict,
        reproduction=reproduction,
        series=series,
        record_bytes=record_bytes,
        without_raw=tuple(sorted(without_raw)),
    )


def _require_one_claim(claim: Mapping[str, Any], verdict: Mapping[str, Any], reproduction: Mapping[str, Any]) -> None:
    """Raise BundleError if the documents do not name the same claim.

    Its id is in the claim's `id`, the verdict's `against.id` and the reproduction's `claim`.
    """
    against = verdict.get("against")
    claim_of_verdict = None
    if isinstance(against, dict):
        claim_of_verdict = against.get("id")
    claim_id = claim.get("id")
    claim_ids = [str(claim_id), str(reproduction.get("claim")), str(claim_of_verdict)]
    if not isinstance(claim_id, str) or len(set(claim_ids)) > 1:
        raise BundleError(f"its documents are about {' and about '.join(map(brief, claim_ids))}")


def _read_series(files: Mapping[str, Path]) -> SeriesDocument:
    """The one series of a bundle. Raises BundleError if there is not exactly one, or its name is not its file's."""
    names = [name for name in files if name.startswith(f"{SERIES}/")]
    if len(names) != 1:
        raise BundleError(f"it has {len(names)} series, and needs one")
    name = names[0]
    series = parse_series(read_part(files[name], DOCUMENT_BYTES, name), name)
    if series_path(series.series_id) != name:
        raise BundleError(f"its {name} is the series {series.series_id}")
    return series


def _check_raw_events(files: Mapping[str, Path], record: Record) -> bool:
    """Check the raw events of a record, and return whether there are any in the bundle.

    Raises BundleError if an archive in the record's folder is of another run, or if the archive whose sha256 is in
    the record does not have it.
    """
    has_events = False
    for name in files:
        if not name.startswith(raw_path(record.record_id, "")):
            continue
        with unpacked(files[name]) as raw:
            origin = read_origin(raw)
        if origin.record_id != record.record_id or origin.run_id != record.run_id:
            raise BundleError(f"{name} is not of the record {record.record_id}")
        has_events = True
        # The record has the sha256 of one archive: that of the node that wrote the record.
        archive = record.bundle
        if archive is None or archive.node != origin.node:
            continue
        if sha256_of(files[name]) != archive.sha256:
            raise BundleError(f"{name} does not have the sha256 that the record {record.record_id} names")
    return has_events


@dataclass(frozen=True)
class BundleCheck:
    """The verdict computed again from the records of a bundle, and whether the bundle agrees with it."""

    records: list[Record]
    result: VerifyResult
    problems: list[str]
    """Contradictions between the bundle and this verdict; empty for a valid bundle."""
    notes: list[str]
    """Remarks that do not make the bundle invalid."""


def check_bundle(contents: BundleContents, catalog: Catalog) -> BundleCheck:
    """Compute the verdict of a bundle again from its records and compare it with the verdict in the bundle.

    Raises FlagbenchError (DATA) if this flagbench does not have the claim.
    """
    claim = _find_claim(contents, catalog)
    series = with_records(contents.series, lambda run: contents.record_bytes.get(run.record_id or ""))
    records, result = series_verdict(series, claim, catalog.cases[claim.case])
    changed_claim_fields = differing_paths(contents.claim, _as_read(claim_document(claim)))
    notes: list[str] = []
    if changed_claim_fields:
        names = ", ".join(changed_claim_fields[:_MOST_NAMED])
        notes.append(f"the claim has changed since: {names}; the verdict is on the present one")
    difference = _compare_verdicts(contents, result, claim_has_changed=bool(changed_claim_fields))
    notes += difference.notes
    notes += [f"the raw events of the record {record_id} are not in it" for record_id in contents.without_raw]
    return BundleCheck(records, result, difference.problems, notes)


class _VerdictDifference(NamedTuple):
    """The differences between the verdict in a bundle and the one computed again, as sentences."""

    problems: list[str]
    notes: list[str]


def _compare_verdicts(
    contents: BundleContents, result: VerifyResult, *, claim_has_changed: bool
) -> _VerdictDifference:
    """Compare the verdict in a bundle with `result`, which was computed again.

    Another verdict is a problem. Other details, such as a number, are a problem only if this version wrote the bundle
    and the claim is unchanged: then the records must give the same details. Otherwise they are a note, because
    versions compute details differently.
    """
    fresh = _as_read(result.to_dict())
    # `not_compared` lists what this version does not know. It changes with every version, and no number with it.
    differing = [path for path in differing_paths(contents.verdict, fresh) if path != "not_compared"]
    differing_names = ", ".join(differing[:_MOST_NAMED])
    stated = contents.verdict.get("verdict")
    written_by_this_version = contents.reproduction.get("flagbench") == this_flagbench()
    if stated != fresh["verdict"]:
        problem = (
            f"its verdict is {brief(str(stated))} by flagbench {brief(contents.writer_version)}, and "
            f"{fresh['verdict']} computed again by {__version__}: {result.reason}"
        )
        return _VerdictDifference([problem], [])
    if not differing:
        return _VerdictDifference([], [])
    if written_by_this_version and not claim_has_changed:
        problem = f"its verdict does not follow from its records in {differing_names}"
        return _VerdictDifference([problem], [])
    note = f"computed again by flagbench {__version__}, the verdict differs in {differing_names}"
    return _VerdictDifference([], [note])


def _find_claim(contents: BundleContents, catalog: Catalog) -> Claim:
    """The claim of a bundle in this catalog. Raises FlagbenchError (DATA) if it has none of that id."""
    name = contents.claim["id"]
    claim = catalog.claims.get(name)
    if claim is None:
        raise FlagbenchError(
            f"the bundle is of the claim '{brief(name)}', which this flagbench {__version__} does not have",
            remedy=f"use the flagbench that wrote it, {brief(contents.writer_version)}, or a newer one; for a row "
            "that its author added, set FLAGBENCH_MANIFESTS to the author's manifests",
            code=ExitCode.DATA,
        )
    return claim


def _as_read(document: dict[str, Any]) -> dict[str, Any]:
    """The document as it would be read back from a file: with lists in place of tuples, and numbers as JSON."""
    parsed: dict[str, Any] = json.loads(to_json(document))
    return parsed
