"""Records made by an earlier version get the verdicts that it gave them, unless a rule was changed on purpose.

`records/run-*` were measured: runs of the tiny presets on a processor, with the machine's kernel, network cards and
host names left out. `records/row-*` are made up: what a published row says, as a record. All but `run-roofs-2` have
no evidence, as records of version 0.1.0 (commit afe978e) did not, so all are INCONCLUSIVE that are not invalid. Rows
of which a record with evidence can be made are in tests/unit/host/verdict/test_recompute.py. The replays of that
folder have evidence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.expect.rows import verify_nearest
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.verdict import Verdict, VerifyResult, verify_baseline, verify_claim

HERE = Path(__file__).parent
FOLDERS = (HERE / "records", HERE.parent / "unit" / "host" / "verdict" / "replays")
EXPECTED = json.loads((HERE / "verdicts.json").read_text(encoding="utf-8"))


def read(name: str) -> Record:
    return read_record(next(path for folder in FOLDERS if (path := folder / f"{name}.json").exists()))


def verify(words: list[str]) -> VerifyResult:
    """As `flagbench verify` with these arguments."""
    names, (option, against) = words, ("", "")
    if len(words) > 2 and words[-2].startswith("--"):
        names, (option, against) = words[:-2], words[-2:]
    records = [read(name) for name in names]
    case = CATALOG.cases[records[0].case]
    if option == "--baseline":
        return verify_baseline(records, read(against), case)
    if option == "--claim":
        return verify_claim(records, CATALOG.claims[against], case)
    result = verify_nearest(records, CATALOG)
    assert result is not None
    return result


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda expected: " ".join(expected["verify"]))
def test_a_record_keeps_its_verdict(expected: dict[str, Any]) -> None:
    result = json.loads(json.dumps(verify(expected["verify"]).to_dict()))
    assert {
        "verify": expected["verify"],
        "verdict": result["verdict"],
        "exit_code": result["exit_code"],
        "qualifiers": result["qualifiers"],
        "against": result["against"]["id"],
        "metrics": {metric["name"]: metric["verdict"] for metric in result["metrics"]},
    } == expected


def test_every_claim_without_a_stack_and_every_verdict() -> None:
    without = [claim for claim in CATALOG.claims.values() if claim.stack is None]
    # What a device reaches is held against rows of the same device alone, which these are not of.
    held = {claim.id for claim in without if CATALOG.cases[claim.case].kind != "measure"}
    assert {expected["against"] for expected in EXPECTED} >= held
    of_baselines = {Verdict.FASTER, Verdict.SAME, Verdict.SLOWER}  # one run on each side rarely tells
    of_cited_rows = {Verdict.REFERENCE}  # these need an accelerator: tests/golden has records of one
    assert {expected["verdict"] for expected in EXPECTED} >= set(Verdict) - of_baselines - of_cited_rows
