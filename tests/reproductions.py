"""Bundles of a reproduction for tests: sound ones, and edits of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bundles import bundle as raw_bundle
from catalogs import CATALOG
from flagbench.records.bundle_documents import record_path, this_flagbench, to_json, write_bundle
from flagbench.records.model import Builder
from flagbench.records.series import with_records
from flagbench.records.series_document import SeriesDocument, SeriesRequest, SeriesRun
from flagbench.runs.reproduce import bundle
from flagbench.verdict.series import series_verdict
from honest import honest_record

CLAIM = CATALOG.claims["distilbert/a100-1x8-fp32"]
CASE = CATALOG.cases["distilbert"]
RAW = raw_bundle(record_id="record-of-mine-1", run_id="mine-1", node=0)
_MADE = json.dumps(honest_record(CLAIM))
Files = dict[str, bytes]


def record(**changes: Any) -> bytes:
    """The record of the one run."""
    made = json.loads(_MADE)
    made.update(record_id="record-of-mine-1", run_id="mine-1")
    made["bundle"] = {"node": 0, "sha256": hashlib.sha256(RAW).hexdigest(), "bytes": len(RAW)}
    return json.dumps({**made, **changes}).encode() + b"\n"


def bundle_files(content: bytes) -> Files:
    """The files of a sound bundle of one run."""
    raw = json.loads(content)
    run = SeriesRun(
        *(1, "mine-1", 0, "ok", 0, raw["record_id"]),
        sha256=hashlib.sha256(content).hexdigest(),
        created_at=raw["created_at"],
        config_digest=raw["config_digest"],
        started_at="2026-01-01T11:53:30Z",
        seconds=400.0,
    )
    series = SeriesDocument(
        *("mine", "mine", "user", "given", "0123456789abcdef", Builder("0.1.0")),
        request=SeriesRequest(("reproduce", CLAIM.id), "distilbert", "a100-cuda11.6", "docker"),
        requested=1,
        runs=(run,),
        started_at="2026-01-01T11:53:00Z",
        ended_at="2026-01-01T12:01:00Z",
        looks=(1,),
    )
    _, result = series_verdict(with_records(series, lambda _: content), CLAIM, CASE)
    return {
        bundle.CLAIM: to_json(bundle.claim_document(CLAIM)),
        bundle.VERDICT: to_json(result.to_dict()),
        bundle.REPRODUCTION: to_json({"claim": CLAIM.id, "flagbench": this_flagbench()}),
        bundle.series_path("mine"): series.to_json(),
        record_path(raw["record_id"]): content,
        bundle.raw_path(raw["record_id"], "node-0.tar.gz"): RAW,
        bundle.LOG: b"flagbench: done\n",
    }


def written(target: Path, files: Files) -> str:
    return write_bundle(target, {**files})


def changed(files: Files, name: str, edit: Callable[[Any], object]) -> Files:
    document = json.loads(files[name])
    edit(document)
    return {**files, name: to_json(document)}
