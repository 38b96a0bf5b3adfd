"""The bundle of a reproduction: its files, written whole or not at all, read back and its verdict computed again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

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

CLAIM, VERDICT, REPRODUCTION = "claim.json", "verdict.json", "reproduction.json"
LOCK, LOG = "pylock.toml", "logs/run.log"
SERIES, RAW = "series", "raw"
"""The folders of the series, and of what each node kept of a run."""


def claim_document(claim: Claim) -> dict[str, Any]:
    """A published row as it is bundled, with its source."""
    names = [field.name for field in fields(ClaimRow)]
    document = {name: msgspec.to_builtins(getattr(claim, name)) for name in (*names, "case")}
    return {"schema": "claim/v1", **document}


def series_path(series_id: str) -> str:
    """The path of a series in a bundle."""
    return f"{SERIES}/{series_id}.json"


def raw_path(record_id: str, name: str) -> str:
    """The path in a bundle of what a node kept of a run, `name` being that of its file."""
    return f"{RAW}/{record_id}/{name}"


@dataclass(frozen=True)
class Contents:
    """Contents of a complete bundle."""

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
        if not isinstance(author, dict):
            return "unknown"
        return str(author.get("version"))


def read_contents(files: Mapping[str, Path]) -> Contents:
    """The contents of the bundle of a reproduction, by the files' paths in it.

    Raises BundleError for documents that are missing, are not what they should be, or do not belong together.
    """
    claim = read_document(files, CLAIM)
    verdict = read_document(files, VERDICT)
    reproduction = read_document(files, REPRODUCTION)
    against = verdict.get("against")
    claim_of_verdict = against.get("id") if isinstance(against, dict) else None
    claim_ids = [str(claim_id) for claim_id in (claim.get("id"), reproduction.get("claim"), claim_of_verdict)]
    if not isinstance(claim.get("id"), str) or len(set(claim_ids)) > 1:
        raise BundleError(f"its documents are about {' and about '.join(map(brief, claim_ids))}")
    try:
        series, records = _series(files), read_records(files)
    except FlagbenchError as error:
        raise BundleError(error.message) from error
    named = {run.record_id for run in series.runs if run.record_id is not None}
    unnamed = sorted(records.keys() - named)
    if unnamed:
        raise BundleError(f"its series does not name the record {unnamed[0]}")
    without_raw = [record_id for record_id, record in records.items() if not _has_raw_events(files, record)]
    contents = {record_id: files[record_path(record_id)].read_bytes() for record_id in records}
    return Contents(claim, verdict, reproduction, series, contents, tuple(sorted(without_raw)))


def _series(files: Mapping[str, Path]) -> SeriesDocument:
    names = [name for name in files if name.startswith(f"{SERIES}/")]
    if len(names) != 1:
        raise BundleError(f"it has {len(names)} series, and needs one")
    series = parse_series(read_part(files[names[0]], DOCUMENT_BYTES, names[0]), names[0])
    if series_path(series.series_id) != names[0]:
        raise BundleError(f"its {names[0]} is the series {series.series_id}")
    return series


def _has_raw_events(files: Mapping[str, Path], record: Record) -> bool:
    """Whether the raw events of a record are in the bundle. Raises BundleError for those of another run."""
    has_events = False
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
        has_events = True
    return has_events


@dataclass(frozen=True)
class BundleCheck:
    """The verdict on the records of a bundle, and whether the bundle agrees with it."""

    records: list[Record]
    result: VerifyResult
    problems: list[str]
    """Contradictions between the bundle and this verdict."""
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
    published = differing_paths(contents.claim, _plain(claim_document(claim)))
    if published:
        notes.append(f"the claim has changed since: {', '.join(published[:5])}; the verdict is on the present one")
    # What a version does not know changes with every version, and no number with it.
    differing = [path for path in differing_paths(contents.verdict, fresh) if path != "not_compared"]
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
