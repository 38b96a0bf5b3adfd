"""`flagbench fleet`: judges the nodes of a store together, and says which to drain, to look at, or to look for.

The work is done in flagbench/fleet; this module checks the options, and prints and writes the results.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from flagbench import complete
from flagbench.accept.from_records import JUDGED_DAYS
from flagbench.cli.options import JsonOption, JunitOption, StoreOption, WideOption
from flagbench.console.output import check_outputs, echo_json, print_note, print_page, write_output
from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.fleet.hosts import read_hosts
from flagbench.fleet.judge import judge_fleet
from flagbench.fleet.outputs import (
    DrainTool,
    drain_commands,
    junit_of_fleet,
    openmetrics_of_fleet,
    unusable_names,
)
from flagbench.fleet.read import EXPECTED_DAYS, read_fleet
from flagbench.fleet.table import fleet_blocks
from flagbench.history.selection import names, parse_time
from flagbench.manifests.load import load_catalog
from flagbench.records.store import open_store


def command(
    hosts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|-",
            help="The nodes that should have answered, a name a line; others are judged, too. Default: those with a "
            f"record in the {EXPECTED_DAYS} days before --since.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="AGE|DATE",
            help=f"Judge records since an age or a date. Default: {JUDGED_DAYS} days before the newest record.",
        ),
    ] = None,
    case: Annotated[
        str | None, typer.Option(autocompletion=complete.cases, help="Only records of this case.")
    ] = None,
    print_for: Annotated[
        DrainTool | None,
        typer.Option("--print", help="Print only the commands that drain nodes; nothing runs them."),
    ] = None,
    junit: JunitOption = None,
    openmetrics: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the state of each node for Prometheus' textfile collector, too."),
    ] = None,
    store: StoreOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Judge the nodes of a store together: which to drain, to look at, or to look for.

    Reads the records of runs on one node, such as those of `flagbench accept` or of a job on each node. Each node is
    judged by the checks of an acceptance first. Nodes of the same device model, case, stack and settings are then
    compared with each other if there are at least eight: their speed, software and hardware, and their change since
    their own last run before --since. The last table shows the smallest difference that could be detected.

    drain: a device computes wrongly or is missing, or is slower than the spread of the other nodes or any
    disturbance can explain. look: slow or different, as sound nodes can be. missing: no record.

    Exits 0 if there is nothing to do, 9 to drain a node, 11 if one is missing or to be looked at.

    --json prints {"store", "since", "nodes": [{"host", "action", "reason", "findings": [{"action", "source",
    "reason", "run", "value"}], "slowest": {"metric", "kind", "share", "spreads", "rank"}, "last_run_at"}],
    "differences": [{"run", "device", "name", "values": [{"value", "nodes", "hosts"}]}], "compared": [{"run",
    "device", "source", "metric", "kind", "nodes", "middle", "spread", "limit", "least_difference",
    "drain_difference"}], "notes"}, the worst node first.
    """
    if print_for is not None and json:
        raise FlagbenchError("--print and --json both say what is printed", remedy="give one of them")
    check_outputs({"--junit": junit, "--openmetrics": openmetrics})
    expected: tuple[str, ...] = ()
    if hosts is not None:
        expected = read_hosts(hosts, "--hosts")
    case_name, _ = names(case, None)
    catalog = load_catalog()
    place = open_store(store)
    runs = read_fleet(place, catalog, case=case_name, since=parse_time(since, "--since"), hosts=expected)
    fleet = judge_fleet(runs, catalog.fleet_limits)
    if junit is not None:
        write_output(junit, junit_of_fleet(fleet))
    if openmetrics is not None:
        write_output(openmetrics, openmetrics_of_fleet(fleet))
    if print_for is not None:
        for line in drain_commands(fleet, print_for):
            print(line)
        for name in unusable_names(fleet):
            print_note(f"flagbench: fleet: to drain, but no node can have this name: {brief(name)!r}")
    elif json:
        echo_json(msgspec.to_builtins(fleet))
    else:
        print_page(*fleet_blocks(fleet, wide=wide), wide=wide)
    sys.stdout.flush()
    raise typer.Exit(int(fleet.exit_code))
