"""`flagbench reproduce`: run what a published row says until the verdict is decided, and bundle the evidence."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import StoreOption, WideOption
from flagbench.cli.run import usable_store
from flagbench.devices import this_machine, usage_now
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import catalog_get
from flagbench.manifests.model import Catalog, Claim
from flagbench.options import takes_options, words
from flagbench.output import print_error
from flagbench.records.store import open_store
from flagbench.runs import preview
from flagbench.runs.doctor import Diagnosis, Level
from flagbench.runs.launchers.container import DockerOptions
from flagbench.runs.launchers.describe import describe
from flagbench.runs.launchers.estimate import estimate
from flagbench.runs.reproduce import page as reproduce_page
from flagbench.runs.reproduce import repeat as reproduce_runs
from flagbench.runs.reproduce.bundle import check_target, write_bundle
from flagbench.runs.reproduce.gather import bundle_files
from flagbench.runs.reproduce.limits import LimitOptions
from flagbench.runs.reproduce.log import logged
from flagbench.runs.reproduce.plan import Plan, PlanOptions, plan_of
from flagbench.runs.reproduce.preflight import look, nearest
from flagbench.runs.series import SeriesOptions, plan_sides
from flagbench.runs.target import Via, choose_via, target_of, with_data
from flagbench.vendors import Usage
from flagbench_core.exit_codes import ExitCode


@takes_options
def command(
    claim_id: Annotated[
        str,
        typer.Argument(
            metavar="CLAIM",
            autocompletion=complete.claims,
            help="A claim of `flagbench list claims`; for the name of a case, its nearest claims are listed.",
        ),
    ],
    options: PlanOptions,
    container: DockerOptions,
    limits: LimitOptions,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="STACK", autocompletion=complete.stacks, help="Run it on this stack instead of the row's own."
        ),
    ] = None,
    via: Annotated[
        Via | None,
        typer.Option(help="In a container, or in this Python. Default: native for the stack cpu, else docker."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE.tar.gz", help="The bundle. Default: CLAIM-NONCE.tar.gz in this folder."
        ),
    ] = None,
    store: StoreOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and what preflight finds; run nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Run the reference preset on a processor without asking.")
    ] = False,
    wide: WideOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Run what a published row says until the verdict is decided, and bundle all evidence of it.

    First it looks at the machine: other hardware than the row's ends it with 13, unless --on names the stack to run
    on. Then it runs, until the verdict is definite at one of the looks fixed in advance or a limit is reached, and
    writes one bundle, which `flagbench bundle verify` checks without a network. Records are kept in the store, too.

    Exits by verdict: 0 REPRODUCED or ABOVE, 9 BELOW, 10 NOT_COMPARABLE, 11 INCONCLUSIVE, 12 INVALID. A run that
    fails ends it with its own code, Ctrl-C with 7; what was measured is bundled. 13 wrong hardware, 14 not stored.
    """
    catalog = load_catalog()
    limits.check()
    claim = _claim(claim_id, catalog)
    plan = plan_of(claim, catalog, on, options, fresh=limits.nonce is not None)
    nonce = limits.nonce or secrets.token_hex(8)
    target_file = out or Path(f"{claim.id.replace('/', '-')}-{nonce}.tar.gz")
    check_target(target_file)
    only_docker = [word.partition("=")[0] for word in words(container)]
    target = target_of(plan.request, choose_via(via, plan.request.stack, only_docker), container)
    records = usable_store(open_store(store))
    findings = _preflight(plan, catalog, store)
    reproduce_page.announce(plan, target, limits, findings)
    forbidden = _forbidden(findings)
    if not dry_run:
        _refuse(plan, catalog, findings)
    described = None if forbidden else describe(plan.request, container=target.via == "docker")
    expected = estimate(described, plan.request.stack, records, catalog.claims.values())
    reproduce_page.warn_of_limit(limits, expected)
    if dry_run:
        reproduce_page.dry_run(plan, target, limits, findings, expected, as_json=as_json)
        raise typer.Exit(int(forbidden or ExitCode.OK))
    if preview.asks(plan.request, yes=yes):
        preview.confirm(expected)
    target.launcher.command(target.request)  # for its errors: what it needs is not installed
    line = ["reproduce", claim.id, *([] if on is None else [f"--on={on}"]), *words(options), *words(limits)]
    series = SeriesOptions(repeat=limits.looks[-1], nonce=nonce)
    (side,) = plan_sides(
        series, [with_data(target)], records, line, [None if described is None else described.digest]
    )
    with logged() as log:
        outcome = reproduce_runs.run_all(side, plan, limits, records, given=limits.nonce is not None)
    if outcome.series is None or outcome.result is None:
        raise typer.Exit(outcome.code or int(ExitCode.INTERRUPTED))
    failure = digest = None
    try:
        with bundle_files(plan, limits, target, findings, line, outcome, records, log.text) as files:
            digest = write_bundle(target_file, files)
    except FlagbenchError as error:
        failure = error
    reproduce_page.show(plan, outcome, target_file, digest, findings, wide=wide, as_json=as_json)
    sys.stdout.flush()
    if failure is not None:
        print_error(failure.message, failure.remedy)
    code = outcome.code or (int(failure.code) if failure else 0) or int(outcome.result.verdict.exit_code)
    raise typer.Exit(code)


def _claim(name: str, catalog: Catalog) -> Claim:
    """The row of that name. For the name of a case, FlagbenchError (usage) with the rows nearest to this machine."""
    if name not in catalog.cases:
        return catalog_get(catalog.claims, name, kind="claim")
    lines = reproduce_page.nearest_to_machine(name, this_machine(), catalog)
    raise FlagbenchError(
        f"'{name}' is a case, not a row of it",
        remedy="\n  ".join(["name one of its rows, the nearest first:", *lines]),
    )


def _preflight(plan: Plan, catalog: Catalog, store: str | None) -> list[Diagnosis]:
    usage = Usage() if plan.request.stack.device_kind == "cpu" else usage_now()
    return look(plan, catalog, this_machine(), usage, store)


def _forbidden(findings: list[Diagnosis]) -> ExitCode | None:
    return ExitCode.WRONG_HARDWARE if any(finding.level is Level.FAIL for finding in findings) else None


def _refuse(plan: Plan, catalog: Catalog, findings: list[Diagnosis]) -> None:
    """Raise FlagbenchError (wrong hardware) for what forbids a run, with the rows that come closest."""
    wrong = [finding for finding in findings if finding.level is Level.FAIL]
    if not wrong:
        return
    rows = nearest(plan, catalog, this_machine())
    closest = (
        f"\nrows that come closest to this machine:{''.join(f'{chr(10)}  {row}' for row in rows)}" if rows else ""
    )
    raise FlagbenchError(
        f"this machine cannot reproduce {plan.claim.id}: "
        + "; ".join(f"{finding.name}: {finding.detail}" for finding in wrong)
        + closest,
        remedy="; ".join(dict.fromkeys(finding.remedy for finding in wrong if finding.remedy)),
        code=ExitCode.WRONG_HARDWARE,
    )
