"""What `flagbench reproduce` prints: the plan and the findings before the runs, the verdict and the bundle after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from flagbench.devices import Machine
from flagbench.manifests.model import Catalog
from flagbench.output import echo_json
from flagbench.report import verdict_table
from flagbench.runs.doctor import Diagnosis, Level
from flagbench.runs.launchers.estimate import Estimate, duration
from flagbench.runs.reproduce.limits import LimitOptions
from flagbench.runs.reproduce.nearest import SHOWN, machine_conditions, nearest_rows
from flagbench.runs.reproduce.plan import Plan
from flagbench.runs.reproduce.repeat import Measured
from flagbench.runs.target import Target
from flagbench.terminal import visible

_ENDINGS = {
    "decided": "the verdict is decided",
    "all runs": "all runs that were asked for are done",
    "time": "the limit is reached, and another run would not fit",
    "failed": "a run failed",
    "interrupted": "interrupted",
}


def announce(plan: Plan, target: Target, limits: LimitOptions, findings: Sequence[Diagnosis]) -> None:
    """On stderr: what will run, what is known to differ, what the row leaves open, and what is wrong here."""
    claim, options = plan.claim, plan.request.options
    _say(f"flagbench: {claim.id} ({claim.title}), {claim.source.project} {claim.source.file}@{claim.source.commit}")
    _say(f"flagbench: {target.name}, {target.via}, {' '.join(options.words())}")
    for text in plan.differs:
        _say(f"differs: {text}")
    if plan.unpublished:
        _say(f"not published, so not compared: {', '.join(plan.unpublished)}")
    if options.seed is None and limits.nonce is not None:
        _say("seeds: each run has its own, from --nonce; what depends on the row's seed is not compared")
    for finding in findings:
        if finding.level is not Level.OK:
            remedy = f"; {finding.remedy}" if finding.remedy else ""
            _say(f"{finding.level.value}: {finding.name}: {finding.detail}{remedy}")


def warn_of_limit(limits: LimitOptions, expected: Estimate | None) -> None:
    """On stderr: that the limit is too low for a single run, as far as is known."""
    if limits.minutes is not None and expected is not None and expected.seconds > 60 * limits.minutes:
        takes = f"{duration(expected.seconds)}, by {expected.basis}"
        _say(f"warn: limit: {limits.minutes:.4g} min end the first run; it should take about {takes}")


def dry_run(
    plan: Plan,
    target: Target,
    limits: LimitOptions,
    findings: Sequence[Diagnosis],
    expected: Estimate | None,
    *,
    as_json: bool,
) -> None:
    """Print what would run."""
    facts = {
        "claim": plan.claim.id,
        "runs": target.name,
        "via": target.via,
        "image": target.image,
        "arguments": plan.request.options.words(),
        "differs": list(plan.differs),
        "unpublished": list(plan.unpublished),
        "looks": list(limits.looks),
        "minutes": limits.minutes,
        "expected_seconds": None if expected is None else expected.seconds,
        "expected_basis": None if expected is None else expected.basis,
        "preflight": [asdict(finding) for finding in findings],
    }
    if as_json:
        echo_json(facts)
        return
    takes = "unknown" if expected is None else f"about {duration(expected.seconds)}, by {expected.basis}"
    rows = {
        "row": facts["claim"],
        "runs": f"{target.name}, {target.via}",
        "arguments": " ".join(plan.request.options.words()),
        "looks": f"after {', '.join(map(str, limits.looks))} runs",
        "limit": "none" if limits.minutes is None else f"{limits.minutes:.4g} min",
        "a run takes": takes,
        **{finding.name: f"{finding.level.value}: {finding.detail}" for finding in findings},
    }
    for name, value in rows.items():
        print(visible(f"{name:<{max(map(len, rows))}}  {value}"))


def show(
    plan: Plan,
    outcome: Measured,
    bundle: Path,
    digest: str | None,
    findings: Sequence[Diagnosis],
    *,
    wide: bool,
    as_json: bool,
) -> None:
    """Print the verdict, and where the bundle is. `digest`: its sha256; None where it could not be written."""
    result, clock = outcome.result, outcome.clock
    assert result is not None
    if as_json:
        answer: dict[str, Any] = {
            "schema": "reproduce/v1",
            "claim": plan.claim.id,
            "verdict": result.to_dict(),
            "ending": outcome.ending,
            "runs": len(outcome.records),
            "seconds": round(clock.seconds, 3),
            "cost": None if clock.cost is None else round(clock.cost, 4),
            "differs": list(plan.differs),
            "unpublished": list(plan.unpublished),
            "preflight": [asdict(finding) for finding in findings],
            "bundle": None if digest is None else str(bundle),
            "bundle_sha256": digest,
        }
        echo_json(answer)
        return
    print(verdict_table(outcome.records, result, wide=wide))
    print(f"{len(outcome.records)} run(s) in the verdict, {clock.text}: {_ENDINGS[outcome.ending]}")
    if digest is not None:
        print(visible(f"bundle {bundle}, sha256 {digest}"))
        print(visible(f"check it with: flagbench bundle verify {bundle}"))


def nearest_to_machine(case: str, machine: Machine, catalog: Catalog) -> list[str]:
    """The rows of a case, those first of which the least differs here; one line each."""
    claims = [claim for claim in catalog.claims.values() if claim.case == case]
    return [row.text for row in nearest_rows(claims, machine_conditions(machine, catalog))[: SHOWN * 2]]


def _say(text: str) -> None:
    typer.echo(visible(text), err=True)
