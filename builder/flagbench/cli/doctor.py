"""`flagbench doctor`: what this machine has and lacks."""

from __future__ import annotations

import typer

from flagbench.cli.options import JsonOption, StoreOption
from flagbench.console.output import echo_json, print_page
from flagbench.console.page import Lines, Table
from flagbench.machine.diagnosis import Level
from flagbench.runs.doctor import examine
from flagbench_core.exit_codes import ExitCode


def command(store: StoreOption = None, json: JsonOption = False) -> None:
    """Check this machine: installation, manifests, store, packages, hardware, container engine.

    Exits 0 unless something fails, then 2; a warning only says which runs are not possible here.
    --json prints {"ok": bool, "findings": [{name, level: ok|warn|fail, detail, remedy}]}.
    """
    findings = examine(store)
    failed = any(finding.level is Level.FAIL for finding in findings)
    if json:
        echo_json({"ok": not failed, "findings": [vars(finding) for finding in findings]})
    else:
        rows = [(finding.name, finding.level.value, finding.detail) for finding in findings]
        # One remedy may answer several findings.
        remedies: dict[str, list[str]] = {}
        for finding in findings:
            if finding.remedy is not None:
                remedies.setdefault(finding.remedy, []).append(finding.name)
        fixes = [f"fix: {', '.join(names)}: {remedy}" for remedy, names in remedies.items()]
        print_page(Table(("CHECK", "LEVEL", "DETAIL"), rows, wrap=("DETAIL",)), Lines(tuple(fixes)))
    if failed:
        raise typer.Exit(int(ExitCode.USAGE))
