"""`flagbench doctor`: shows what this machine has and lacks."""

from __future__ import annotations

import typer

from flagbench.cli.options import JsonOption, StoreOption
from flagbench.console.output import echo_json, print_page
from flagbench.console.page import Lines, Table
from flagbench.machine.diagnosis import Level
from flagbench.report.health import health_table
from flagbench.runs.doctor import examine
from flagbench_core.exit_codes import ExitCode


def command(store: StoreOption = None, json: JsonOption = False) -> None:
    """Check this machine: installation, manifests, store, packages, hardware, container engine.

    Exits 0 unless something fails, then 2; a warning only says which runs are not possible here.
    --json prints {"ok": bool, "findings": [{name, level: ok|warn|fail, detail, remedy}], "health": {devices, source,
    problem, xids}}: what was read of each device, with the reason for what was not.
    """
    examination = examine(store)
    findings = examination.findings
    failed = any(finding.level is Level.FAIL for finding in findings)
    if json:
        values = [vars(finding) for finding in findings]
        echo_json({"ok": not failed, "findings": values, "health": examination.health.to_dict()})
    else:
        rows = [(finding.name, finding.level.value, finding.detail) for finding in findings]
        # One remedy may answer several findings.
        remedies: dict[str, list[str]] = {}
        for finding in findings:
            if finding.remedy is not None:
                remedies.setdefault(finding.remedy, []).append(finding.name)
        fixes = [f"fix: {', '.join(names)}: {remedy}" for remedy, names in remedies.items()]
        checks = Table(("CHECK", "LEVEL", "DETAIL"), rows, wrap=("DETAIL",))
        print_page(checks, Lines(tuple(fixes)), health_table(examination.health.devices))
    if failed:
        raise typer.Exit(int(ExitCode.USAGE))
