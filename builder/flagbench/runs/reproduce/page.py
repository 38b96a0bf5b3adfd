"""Prints the plan and the findings of `flagbench reproduce` before the runs, and the verdict and the bundle after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flagbench.console.output import echo_json, print_note
from flagbench.console.terminal import visible
from flagbench.machine.diagnosis import Diagnosis, Level
from flagbench.manifests.rows import Claim
from flagbench.report import verdict_table
from flagbench.runs.launchers.estimate import DurationEstimate
from flagbench.runs.preview import print_rows, time_of_run
from flagbench.runs.reproduce.budget import LimitOptions
from flagbench.runs.reproduce.repeat import Reproduction, ReproductionOutcome
from flagbench.verdict import Verdict

_ENDINGS = {
    "decided": "the verdict is decided",
    "all runs": "all runs that were asked for are done",
    "time": "the limit is reached, and another run would not fit",
    "failed": "a run failed",
    "interrupted": "interrupted",
}
"""The sentence printed for each `Ending`."""


def announce(reproduction: Reproduction, *, dry_run: bool = False) -> None:
    """Print on stderr what will run, how it differs from the row, what the row does not state, and all problems.

    A dry run prints what will run and the problems on stdout instead: see `dry_run`.
    """
    plan, options = reproduction.plan, reproduction.plan.request.options
    if not dry_run:
        print_note(f"flagbench: {_row_text(plan.claim)}")
        print_note(
            f"flagbench: {reproduction.target.name}, {reproduction.target.via}, {' '.join(options.command_line())}"
        )
        print_note(f"possible verdicts: {_list_verdicts(reproduction.possible)}")
    for text in plan.differs:
        print_note(f"differs: {text}")
    if plan.unpublished:
        print_note(f"not published, so not compared: {', '.join(plan.unpublished)}")
    if plan.name is not None:
        print_note("seeds: each run has its own, from --name; what depends on the row's seed is not compared")
    if dry_run:
        return
    for finding in reproduction.findings:
        if finding.level is not Level.OK:
            print_note(f"{finding.name}: {_finding_text(finding)}")


def warn_of_limit(limits: LimitOptions, expected: DurationEstimate | None) -> None:
    """Warn on stderr if the time limit is too low for a single run, as far as its duration is known."""
    if limits.minutes is None or expected is None:
        return
    if expected.seconds > 60 * limits.minutes:
        print_note(f"warn: limit: {limits.minutes:.4g} min end the first run; it should take {expected.text}")


def dry_run(reproduction: Reproduction, expected: DurationEstimate | None, *, as_json: bool) -> None:
    """Print what would run, as a table or as JSON."""
    plan = reproduction.plan
    target = reproduction.target
    limits = reproduction.limits
    expected_seconds = expected_basis = None
    if expected is not None:
        expected_seconds = expected.seconds
        expected_basis = expected.basis
    facts = {
        **reproduction.facts,
        "runs": target.name,
        "arguments": plan.request.options.command_line(),
        "verdicts": [verdict.value for verdict in reproduction.possible],
        "looks": list(limits.looks),
        "minutes": limits.minutes,
        "expected_seconds": expected_seconds,
        "expected_basis": expected_basis,
    }
    if not as_json:
        print(visible(_answer(reproduction)), flush=True)
    announce(reproduction, dry_run=True)
    if as_json:
        echo_json(facts)
        return
    limit = "none"
    if limits.minutes is not None:
        limit = f"{limits.minutes:.4g} min"
    rows = {
        "row": _row_text(plan.claim),
        "runs": f"{target.name}, {target.via}",
        "arguments": " ".join(plan.request.options.command_line()),
        "looks": f"after {', '.join(map(str, limits.looks))} runs",
        "limit": limit,
        "a run takes": time_of_run(expected),
    }
    for finding in reproduction.findings:
        rows[finding.name] = _finding_text(finding)
    print_rows(rows)


def _answer(reproduction: Reproduction) -> str:
    """A sentence that says whether this machine can run the row, and with which verdicts."""
    name = reproduction.plan.claim.id
    if reproduction.forbidden:
        problems = "; ".join(f"{finding.name}: {finding.detail}" for finding in reproduction.forbidden)
        return f"this machine cannot reproduce {name}: {problems}"
    if len(reproduction.possible) == 1:
        return f"{name}: the verdict can only be {reproduction.possible[0].value}"
    return f"{name}: possible verdicts: {_list_verdicts(reproduction.possible)}"


def _row_text(claim: Claim) -> str:
    """The id and title of a row, with its source."""
    return f"{claim.id} ({claim.title}), {claim.source.project} {claim.source.file}@{claim.source.commit}"


def _list_verdicts(verdicts: Sequence[Verdict]) -> str:
    """`A, B or C`; `only A` for one."""
    names = [verdict.value for verdict in verdicts]
    if len(names) == 1:
        return f"only {names[0]}"
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _finding_text(finding: Diagnosis) -> str:
    """The level and detail of a finding, and its remedy unless all is well."""
    text = f"{finding.level.value}: {finding.detail}"
    if finding.level is Level.OK or not finding.remedy:
        return text
    return f"{text}; {finding.remedy}"


def show(
    reproduction: Reproduction,
    outcome: ReproductionOutcome,
    bundle: Path,
    digest: str | None,
    *,
    wide: bool,
    as_json: bool,
) -> None:
    """Print the verdict, and the path of the bundle with its sha256 `digest`; None: it could not be written."""
    result, clock = outcome.result, outcome.clock
    assert result is not None
    if as_json:
        echo_json(
            {
                "schema": "reproduce/v1",
                **reproduction.facts,
                **outcome.facts,
                "verdict": result.to_dict(),
                "runs": len(outcome.records),
                "bundle": None if digest is None else str(bundle),
                "bundle_sha256": digest,
            }
        )
        return
    print(verdict_table(outcome.records, result, wide=wide))
    # The records of failed runs are on the page with their reasons, but not in the verdict.
    ended_well = sum(record.status.state == "ok" for record in outcome.records)
    print(f"{ended_well} run(s) in the verdict, {clock.text}: {_ENDINGS[outcome.ending]}")
    if digest is not None:
        print(visible(f"bundle {bundle}, sha256 {digest}"))
        print(visible(f"check it with: flagbench bundle verify {bundle}"))
