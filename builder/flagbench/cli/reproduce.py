"""`flagbench reproduce`: runs what a published row says until the verdict is decided, and bundles the evidence.

The work is done in flagbench/runs/reproduce; this module checks the options and connects the steps.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import StoreOption, WideOption
from flagbench.console.output import check_outputs, print_error
from flagbench.errors import FlagbenchError
from flagbench.machine.diagnosis import Diagnosis
from flagbench.machine.look import look_at_machine
from flagbench.manifests.load import load_catalog
from flagbench.options import takes_options, words
from flagbench.price import check_price
from flagbench.records.bundle_documents import write_bundle
from flagbench.runs import preview
from flagbench.runs.keep import open_usable_store
from flagbench.runs.launchers.docker_command import DockerOptions
from flagbench.runs.launchers.estimate import estimate
from flagbench.runs.reproduce import page
from flagbench.runs.reproduce.budget import LimitOptions
from flagbench.runs.reproduce.bundle_files import bundle_files
from flagbench.runs.reproduce.log import logged
from flagbench.runs.reproduce.nearest import find_claim
from flagbench.runs.reproduce.plan import PlanOptions, plan_of
from flagbench.runs.reproduce.preflight import check_image, check_layout, check_machine, wrong_machine_error
from flagbench.runs.reproduce.repeat import Reproduction, run_all
from flagbench.runs.series import SeriesOptions, plan_sides
from flagbench.runs.target import ViaOption, choose_via, target_of
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
    via: ViaOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE.tar.gz", help="The bundle. Default: CLAIM-NAME.tar.gz in this folder."
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
    on. Then it repeats the run until the verdict is decided or a limit is reached; after how many runs it looks at
    the verdict is fixed in advance. It writes one bundle, which `flagbench bundle verify` checks without a network.
    Records are kept in the store, too.

    Exits by verdict: 0 REPRODUCED or ABOVE, 9 BELOW, 10 NOT_COMPARABLE, 11 INCONCLUSIVE, 12 INVALID. A run that
    fails ends it with its own code, Ctrl-C with 7; what was measured is bundled. 13 wrong hardware, 14 not stored.

    --json prints {"schema", "claim", "via", "image", "differs", "unpublished", "preflight": [{"name", "level",
    "detail", "remedy"}], "ending", "seconds", "cost", "verdict", "runs", "bundle", "bundle_sha256"}; verdict is as
    `flagbench verify --json` prints it.
    """
    check_price()
    catalog = load_catalog()
    limits.check()
    claim = find_claim(claim_id, catalog)
    plan = plan_of(claim, catalog, on, options)
    name = plan.name or secrets.token_hex(8)
    bundle = out or Path(f"{claim.id.replace('/', '-')}-{name}.tar.gz")
    check_outputs({"--out": bundle}, new=("--out",))
    docker_options = [word.partition("=")[0] for word in words(container)]
    chosen_via = choose_via(via, plan.request.stack, docker_options)
    target = target_of(plan.request, chosen_via, container)
    records = open_usable_store(store)
    in_container = target.via == "docker"
    findings: list[Diagnosis] = []
    layout = check_layout(plan, container=in_container)
    if layout.finding is not None:
        findings.append(layout.finding)
    facts = look_at_machine(plan.request.options.gpus)
    findings += check_machine(plan, catalog, facts, store, container=in_container)
    if dry_run:
        findings += check_image(target, catalog)
    line = _command_line(claim.id, on, options, limits)
    reproduction = Reproduction(plan, limits, target, line, findings)
    if not dry_run:
        page.announce(reproduction)
        if reproduction.forbidden:
            raise wrong_machine_error(plan, catalog, facts, reproduction.forbidden)
    expected = estimate(layout.described, plan.request.stack, records, catalog.claims.values())
    page.warn_of_limit(limits, expected)
    if dry_run:
        page.dry_run(reproduction, expected, as_json=as_json)
        if reproduction.forbidden:
            raise typer.Exit(int(ExitCode.WRONG_HARDWARE))
        return
    if preview.needs_confirmation(plan.request, yes=yes):
        preview.confirm(expected)
    target.launcher.command(target.request)  # raises an error if something that the launcher needs is not installed
    series = SeriesOptions(repeat=limits.looks[-1], name=name)
    digest = None
    if layout.described is not None:
        digest = layout.described.digest
    (side,) = plan_sides(series, [target], records, line, [digest])
    with logged() as log:
        outcome = run_all(side, reproduction, records)
    if outcome.series is None or outcome.result is None:
        raise typer.Exit(outcome.code or int(ExitCode.INTERRUPTED))
    failure: FlagbenchError | None = None
    sha256: str | None = None
    try:
        with bundle_files(reproduction, outcome, records, catalog, log.text) as files:
            sha256 = write_bundle(bundle, files)
    except FlagbenchError as error:
        failure = error  # reported below: the verdict is printed first
    page.show(reproduction, outcome, bundle, sha256, wide=wide, as_json=as_json)
    sys.stdout.flush()
    code = outcome.code
    if failure is not None:
        print_error(failure.message, failure.remedy)
        code = code or int(failure.code)
    raise typer.Exit(code or int(outcome.result.verdict.exit_code))


def _command_line(claim_id: str, stack: str | None, options: PlanOptions, limits: LimitOptions) -> list[str]:
    """The words of a command line that repeats this reproduction."""
    line = ["reproduce", claim_id]
    if stack is not None:
        line.append(f"--on={stack}")
    return [*line, *words(options), *words(limits)]
