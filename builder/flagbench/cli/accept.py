"""`flagbench accept`: is this machine what it should be, and a certificate of it."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from flagbench import complete
from flagbench.accept.certificate import JUNIT, PAGE, certificate_of, files_of
from flagbench.accept.plan import LEAST_LAPS, AcceptanceClock, AcceptancePlan, plan_of
from flagbench.accept.run import run_plan
from flagbench.cli.options import JunitOption, StoreOption, WideOption
from flagbench.console.output import (
    check_new_file,
    check_output,
    echo_json,
    print_error,
    print_note,
    print_page,
    write_output,
)
from flagbench.console.page import Lines
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.price import PRICE, price_here, price_of
from flagbench.records.bundle_documents import write_bundle
from flagbench.report.certificate_page import certificate_blocks
from flagbench.runs.keep import open_usable_store
from flagbench.runs.target import ViaOption
from flagbench.system.clock import utc_now
from flagbench_core.exit_codes import ExitCode

_LEAST, _MOST = 0.5, 24 * 60
"""Minutes."""
_CODES = {"PASS": ExitCode.OK, "FAIL": ExitCode.BELOW, "INCONCLUSIVE": ExitCode.INCONCLUSIVE}


_OUTCOMES = (
    "PASS: every check passes, and products and memory were compared with something",
    "FAIL: a device is missing or computes wrongly, its driver is too old, or a number is below its limit with its"
    " whole interval",
    "INCONCLUSIVE: anything else. docs/accept.md has the limits",
)


def command(
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="MINUTES", help=f"End after that time, from {_LEAST:g} on.")
    ] = 10.0,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Devices there must be; on cpu, ranks. Default: all, or 2.")
    ] = None,
    case: Annotated[
        str | None,
        typer.Option(
            metavar="CASE[:STACK]",
            autocompletion=complete.cases,
            help="The case to run after the roofs. Default: the largest that fits, with rows of this device first.",
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option(metavar="AMOUNT", help=f"What this machine costs per hour. Default: {PRICE}.")
    ] = None,
    soak: Annotated[
        int | None,
        typer.Option(
            "--soak",
            metavar="MINUTES",
            min=LEAST_LAPS,
            max=24 * 60,
            help="After that, measure the roofs of all devices in laps for so many minutes, beside --minutes.",
        ),
    ] = None,
    via: ViaOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE.tar.gz", help="The certificate. Default: accept-HOST-TIME.tar.gz here."
        ),
    ] = None,
    junit: JunitOption = None,
    store: StoreOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; run nothing.")] = False,
    wide: WideOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate as JSON.")] = False,
) -> None:
    """Say whether this machine is what it should be: preflight, roofs and one case within minutes.

    Devices are compared with each other, and each number with claims, rows of the catalogue and earlier runs of this
    store, whichever exist. Fixed operations are computed twice on every device and compared bit by bit.

    PASS: every check passed; use the machine. FAIL: a result is wrong, a device is missing, its driver is too old, or
    a number is below its limit with its whole interval; drain the machine, or fix what it names. INCONCLUSIVE:
    anything else; fix what it names, or run it again. A check that nobody can make here is NOT_KNOWN, and does not
    keep a machine from passing.

    Exits 0 for PASS, 9 for FAIL, 11 for INCONCLUSIVE, 7 where it was interrupted, 14 where something was not stored.
    The certificate, a page and JSON, is a bundle that `flagbench bundle verify` checks; --json prints it.
    """
    clock = AcceptanceClock(minutes + (soak or 0))
    if not _LEAST <= minutes <= _MOST:
        raise FlagbenchError(f"--minutes {minutes:g} is out of range", remedy=f"give {_LEAST:g} to {_MOST}")
    price = price_here() if price is None else price_of(price, "--price")
    stamp = utc_now().replace("-", "").replace(":", "")
    target = out or _default_target(stamp)
    check_new_file(target)
    shown = target.with_name(target.name.removesuffix(".tar.gz") + ".html")
    check_new_file(shown, "the page of --out")
    if junit is not None:
        _check_junit(junit, target, shown)
    catalog = load_catalog()
    records = open_usable_store(store)
    plan = plan_of(catalog, minutes, gpus, case, via, records, soak)
    asked = {"minutes": minutes, "gpus": gpus, "case": case, "price_per_hour": price, "soak": soak}
    _announce(plan, minutes + (soak or 0))
    if dry_run:
        _announce_outcomes()
        return
    accepted = run_plan(plan, catalog, records, clock, asked)
    certificate = certificate_of(accepted, catalog, clock.seconds)
    files = files_of(certificate, accepted.records, os.environ)
    failure, where = None, []
    try:
        where.append(f"certificate {target}, sha256 {write_bundle(target, files)}")
        write_output(shown, files[PAGE])
        where.append(f"page {shown}")
        if junit is not None:
            write_output(junit, files[JUNIT])
    except FlagbenchError as error:
        failure = error
    if as_json:
        echo_json(certificate)
        for line in where:
            print_note(f"flagbench: accept: {line}")
    else:
        print_page(*certificate_blocks(certificate), Lines(tuple(where)), wide=wide)
    sys.stdout.flush()
    if failure is not None:
        print_error(failure.message, failure.remedy)
    code = ExitCode.INTERRUPTED if accepted.facts["ending"] == "interrupted" else _CODES[certificate["outcome"]]
    if code is ExitCode.OK and (failure is not None or not accepted.stored):
        code = ExitCode.NOT_STORED
    raise typer.Exit(int(code))


def _default_target(stamp: str) -> Path:
    host = os.uname().nodename
    if "/" in host:
        raise FlagbenchError(
            f"no file can be named after this host, {host!r}", remedy="name the certificate: --out FILE.tar.gz"
        )
    return Path(f"accept-{host}-{stamp}.tar.gz")


def _check_junit(junit: Path, target: Path, shown: Path) -> None:
    """Raise FlagbenchError (usage) where `--junit` cannot be written, or is another file of the certificate."""
    check_output(junit, "--junit")
    for other in (target, shown):
        if os.path.realpath(junit) == os.path.realpath(other):
            raise FlagbenchError(f"--junit is {str(other)!r}, which is the certificate", remedy="name another file")


def _announce(plan: AcceptancePlan, minutes: float) -> None:
    """On stderr: what will run."""
    print_note(f"flagbench: accept: {plan.gpus} x {plan.stack.name}, at most {minutes:g} min")
    for part in plan.parts:
        print_note(f"  {part.target.name}, {part.target.via}, about {part.seconds:.0f} s: {part.why}")
    if plan.without_case:
        print_note(f"  no case: {plan.without_case}; so the outcome is FAIL or INCONCLUSIVE")


def _announce_outcomes() -> None:
    """On stderr: what bounds each outcome."""
    for outcome in _OUTCOMES:
        for line in textwrap.wrap(outcome, 100, initial_indent="  ", subsequent_indent="    "):
            print_note(line)
