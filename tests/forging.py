"""Records forged consistently: the evidence is edited, and every number computed again from it, with all digests.

Nothing that follows from the evidence gives such a record away; only what contradicts the evidence, or is impossible.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from catalogs import CATALOG
from flagbench.records.read import read_record
from flagbench.verdict import recompute
from flagbench_core.config import digest as config_digest
from flagbench_core.evidence import derive
from flagbench_core.evidence.columns import TIMES, decode, encode
from flagbench_core.evidence.derive import CURVE_POINTS
from flagbench_core.evidence.document import digest_of, read_evidence
from flagbench_core.stats import summary

Raw = dict[str, Any]


def sealed(raw: Raw) -> Raw:
    """The record with the digests of its evidence and of its configuration."""
    raw.update(evidence_digest=digest_of(raw["evidence"]), config_digest=config_digest(raw["config"]))
    return raw


def consistent(raw: Raw) -> Raw:
    """The record with all that follows from its evidence."""
    record = read_record(json.dumps(sealed(raw)).encode())
    evidence = read_evidence(raw["evidence"])
    case = CATALOG.cases[raw["case"]]
    found = derive(evidence, recompute.collect_facts(record, case, evidence))
    raw.update(metrics=found.metrics, window=found.window, work=found.work, timing=found.timing)
    ceiling = found.flops and found.flops["measured_ceiling"]
    raw["flops"].update({**(found.flops or {}), "measured_ceiling": ceiling and raw["flops"]["measured_ceiling"]})
    if ceiling:
        raw["flops"]["measured_ceiling"]["flops"] = ceiling
    for entry in raw["ranks"]:
        entry.update(found.ranks[entry["rank"]], steps=evidence.steps)
    return raw


def column(raw: Raw, name: str, change: Callable[[int], int], rank: int | None = None) -> None:
    """Change the numbers of a column, of one rank or of all."""
    for span in raw["evidence"]["spans"]:
        span["columns"][name] = [
            encode([change(number) if rank in (None, at) else number for number in own], [1] * len(own))
            for at, (own,) in enumerate(each(raw, span, name))
        ]


def each(raw: Raw, span: Raw, *names: str) -> list[tuple[list[int], ...]]:
    """The columns of each rank, by step."""
    sizes, ranks = [1] * span["steps"], raw["evidence"]["ranks"]
    own = [[value] * ranks if isinstance(value := span["columns"][name], int) else value for name in names]
    return [tuple(decode(column, sizes, "") for column in columns) for columns in zip(*own)]


def scale(raw: Raw, factor: float, *, phases: bool = True) -> None:
    """Make every step so many times as long, and the phases that it is part of."""
    evidence = raw["evidence"]
    for name in TIMES:
        column(raw, name, lambda micro: round(micro * factor))
    if phases:
        evidence["timing"] = {name: round(micro * factor) for name, micro in evidence["timing"].items()}
        for name, lasted in evidence["durations"].items():
            evidence["durations"][name] = [round(micro * factor) for micro in lasted]


def losses(raw: Raw, change: Callable[[int, float], float | None]) -> None:
    """Change the loss of each step, by its number, on all ranks and in the curve."""
    values = raw["quality"]["losses"]["values"]
    values[:] = [change(step, loss) for step, loss in enumerate(values)]
    for span in raw["evidence"]["spans"]:
        own = values[span["first_step"] : span["first_step"] + span["steps"]]
        span["loss"] = [of and own for of in span.get("loss", [])]
    points = map(int, summary.thin(range(len(values)), CURVE_POINTS))
    raw["quality"]["loss_curve"] = [[step, values[step]] for step in points if values[step] is not None]
