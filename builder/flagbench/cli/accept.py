"""`flagbench accept`: decides whether this machine works as it should, and writes a certificate.

The work is done in flagbench/accept; this module checks the options, and prints and writes the results.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from flagbench.accept.certificate import JUNIT, PAGE, certificate_of, files_of
from flagbench.accept.certificate_page import certificate_blocks
from flagbench.accept.check import Outcome
from flagbench.accept.document import Asked, Certificate
from flagbench.accept.from_records import accept_from_store
from flagbench.accept.options import AcceptOptions
from flagbench.accept.plan import AcceptanceClock, AcceptancePlan, plan_of
from flagbench.accept.run import AcceptanceResults, run_plan
from flagbench.cli.options import JunitOption, StoreOption, WideOption
from flagbench.console.output import (
    check_outputs,
    echo_json,
    print_error,
    print_note,
    print_page,
    write_output,
)
from flagbench.console.page import Lines
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.options import takes_options, words
from flagbench.price import price_here, price_of
from flagbench.records.bundle_documents import write_bundle
from flagbench.records.store import open_store
from flagbench.runs.keep import open_usable_store
from flagbench.runs.target import ViaOption
from flagbench.system.clock import utc_now
from flagbench_core.exit_codes import ExitCode
from flagbench_core.host_name import host_name

_EXIT_CODES = {
    Outcome.PASS: ExitCode.OK,
    Outcome.FAIL: ExitCode.BELOW,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}
"""The exit codes of the outcomes."""
_OUTCOMES = (
    "PASS: every check passes, and matmuls and memory were compared with a reference",
    "FAIL: a device is missing or computes wrongly, its driver is too old, or a number is below its limit with its"
    " whole interval",
    "INCONCLUSIVE: anything else. docs/accept.md has the limits",
)
"""What leads to each outcome, for --dry-run."""


@takes_options
def command(
    options: AcceptOptions,
    via: ViaOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE.tar.gz", help="The certificate. Default: accept-HOST-TIME.tar.gz here."
        ),
    ] = None,
    junit: JunitOption = None,
    store: StoreOption = None,
    from_store: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="Run nothing: judge the records of --host in this store."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --from: the node, as its records name it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; run nothing.")] = False,
    wide: WideOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate as JSON.")] = False,
) -> None:
    """Decide within minutes whether this machine works as it should: preflight, roofs and one case.

    Roofs are measurements without a model: matmuls, copies and all-reduces as fast as the devices can do them.

    Devices are compared with each other, and each number with claims, rows of the catalogue and earlier runs of this
    store, whichever exist. Fixed operations are computed twice on every device and compared bit by bit.

    PASS: every check passed; use the machine. FAIL: a result is wrong, a device is missing, its driver is too old, or
    a number is below its limit with its whole interval; drain the machine, or fix what it names. INCONCLUSIVE:
    anything else; fix what it names, or run it again. A check that nobody can make here is NOT_KNOWN, and does not
    keep a machine from passing.

    With --from, a node is judged off the node, from its newest record of each case; what only the node knows is
    NOT_KNOWN.

    Exits 0 for PASS, 9 for FAIL, 11 for INCONCLUSIVE, 7 where it was interrupted, 14 where something was not stored.
    The certificate, a page and JSON, is a bundle that `flagbench bundle verify` checks; --json prints it. With
    --dry-run, --json prints {"stack", "gpus", "minutes", "runs": [{"image", "via", "seconds", "why"}],
    "without_case"}.
    """
    if from_store is not None or host is not None:
        has_run_option = dry_run or via is not None or store is not None or bool(words(options))
        _check_from(from_store, host, has_run_option=has_run_option)
        code = _accept_from(from_store or "", host or "", out, junit, wide=wide, as_json=as_json)
        raise typer.Exit(int(code))
    options.check_minutes()
    clock = AcceptanceClock(
        options.total_minutes
    )  # reading the catalog and the store, and planning, are part of the time
    price_per_hour = _price_per_hour(options.price)
    outputs = _outputs(out, junit, host_name())
    catalog = load_catalog()
    records = open_usable_store(store)
    plan = plan_of(
        catalog, options.minutes, options.gpus, options.case, via, records, options.soak, serving=options.serving
    )
    asked = Asked(
        minutes=options.minutes,
        gpus=options.gpus,
        case=options.case,
        price_per_hour=price_per_hour,
        soak=options.soak,
        serving=options.serving,
    )
    if dry_run:
        _show_plan(plan, options.total_minutes, as_json=as_json)
        return
    for line in _plan_lines(plan, options.total_minutes):
        print_note(line)
    accepted = run_plan(plan, catalog, records, clock, asked)
    certificate = certificate_of(accepted, catalog, clock.seconds)
    code = _show(certificate, accepted, outputs, wide=wide, as_json=as_json)
    raise typer.Exit(int(code))


class _Outputs(NamedTuple):
    """The files that an acceptance writes."""

    bundle: Path
    """The certificate with its records."""
    page: Path
    junit: Path | None


def _outputs(out: Path | None, junit: Path | None, host: str) -> _Outputs:
    """The files to write, which can be written; `host` names the default. Raises FlagbenchError (usage)."""
    bundle = out or _default_bundle(host)
    page = bundle.parent / (bundle.name.removesuffix(".tar.gz") + ".html")
    outputs = {"--out": bundle, "the page of --out": page, "--junit": junit}
    check_outputs(outputs, new=("--out", "the page of --out"))
    return _Outputs(bundle, page, junit)


def _check_from(from_store: str | None, host: str | None, *, has_run_option: bool) -> None:
    """Raise FlagbenchError (usage) unless both --from and --host are given, and no option of a run."""
    if from_store is None or host is None:
        raise FlagbenchError(
            "--from and --host need each other",
            remedy="give both: --from URL --host NAME; `flagbench results ls --json` shows the hosts",
        )
    if has_run_option:
        raise FlagbenchError(
            "--from judges stored records and runs nothing",
            remedy="with --from, give only --host, --out, --junit, --wide and --json",
        )


def _accept_from(
    from_store: str, host: str, out: Path | None, junit: Path | None, *, wide: bool, as_json: bool
) -> ExitCode:
    """Judge the records of a node in a store; returns the exit code."""
    outputs = _outputs(out, junit, host)
    catalog = load_catalog()
    acceptance = accept_from_store(open_store(from_store), host, catalog)
    certificate = certificate_of(acceptance.accepted, catalog, acceptance.seconds, acceptance.created_at)
    return _show(certificate, acceptance.accepted, outputs, wide=wide, as_json=as_json)


def _show(
    certificate: Certificate, accepted: AcceptanceResults, outputs: _Outputs, *, wide: bool, as_json: bool
) -> ExitCode:
    """Write and print a certificate; returns the exit code."""
    files = files_of(certificate, accepted.records, os.environ)
    write_failure = None
    written: list[str] = []
    try:
        written.append(f"certificate {outputs.bundle}, sha256 {write_bundle(outputs.bundle, files)}")
        write_output(outputs.page, files[PAGE])
        written.append(f"page {outputs.page}")
        if outputs.junit is not None:
            write_output(outputs.junit, files[JUNIT])
            written.append(f"checks {outputs.junit}")
    except FlagbenchError as error:
        write_failure = error  # reported below: the certificate that could not be written is printed first
    if as_json:
        echo_json(certificate.to_dict())
        for line in written:
            print_note(f"flagbench: accept: {line}")
    else:
        print_page(*certificate_blocks(certificate), Lines(tuple(written)), wide=wide)
    sys.stdout.flush()
    if write_failure is not None:
        print_error(write_failure.message, write_failure.remedy)
    all_stored = accepted.stored and write_failure is None
    return _exit_code(certificate, all_stored=all_stored)


def _price_per_hour(price: float | None) -> float | None:
    """The price of this machine: that of --price, or else that of the environment."""
    if price is None:
        return price_here()
    return price_of(price, "--price")


def _exit_code(certificate: Certificate, *, all_stored: bool) -> ExitCode:
    """The exit code of a certificate. A machine that passes ends with another one if something was not stored."""
    if certificate.facts.ending == "interrupted":
        return ExitCode.INTERRUPTED
    code = _EXIT_CODES[certificate.outcome]
    if code is ExitCode.OK and not all_stored:
        return ExitCode.NOT_STORED
    return code


def _default_bundle(host: str) -> Path:
    """`accept-HOST-TIME.tar.gz` in this folder. Raises FlagbenchError (USAGE) if the host's name cannot be used."""
    stamp = utc_now().replace("-", "").replace(":", "")
    if "/" in host:
        raise FlagbenchError(
            f"no file can be named after this host, {host!r}", remedy="name the certificate: --out FILE.tar.gz"
        )
    return Path(f"accept-{host}-{stamp}.tar.gz")


def _plan_lines(plan: AcceptancePlan, minutes: float) -> list[str]:
    """What will run, a line for each run."""
    lines = [f"flagbench: accept: {plan.gpus} x {plan.stack.name}, at most {minutes:g} min"]
    for run in plan.runs:
        lines.append(f"  {run.target.name}, {run.target.via}, about {run.seconds:.0f} s: {run.why}")
    if plan.without_case:
        lines.append(f"  no case: {plan.without_case}; so the outcome is FAIL or INCONCLUSIVE")
    return lines


def _show_plan(plan: AcceptancePlan, minutes: float, *, as_json: bool) -> None:
    """Print what would run, and without `as_json` also what leads to each outcome."""
    if not as_json:
        print_page(Lines((*_plan_lines(plan, minutes), *_OUTCOMES)))
        return
    runs = [
        {
            "image": run.target.name,
            "via": str(run.target.via),
            "seconds": round(run.seconds),
            "why": run.why,
        }
        for run in plan.runs
    ]
    document = {"stack": plan.stack.name, "gpus": plan.gpus, "minutes": minutes, "runs": runs}
    echo_json({**document, "without_case": plan.without_case})
