"""Where the time of a slow run went, as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

from flagbench.console.page import Block, Lines, Table, render
from flagbench.report.verdict_page import NOTHING, with_slowest
from flagbench.verdict.explain import Cause, Explanation
from flagbench.verdict.roofs import MachineJudgement


def explanation_page(explanation: Explanation, *, wide: bool = False) -> str:
    """`explanation_blocks` as text, after an empty line."""
    return "\n" + render(explanation_blocks(explanation), wide=wide)


def explanation_blocks(explanation: Explanation) -> list[Block]:
    """The causes, then what to do."""
    rows = []
    actions = []
    for cause in explanation.causes:
        rows.append((cause.title, _share(cause, cause.gap), _share(cause, cause.time), cause.seen))
        actions.append(f"{cause.title}: {cause.action}")
    columns = ("cause", "of the gap", "of the time", "seen")
    return [
        Lines((_heading(explanation),)),
        Table(columns, rows, right=frozenset({"of the gap", "of the time"}), wrap=("seen",)),
        Lines(tuple(actions)),
        *_machine_blocks(explanation),
    ]


def _machine_blocks(explanation: Explanation) -> Sequence[Block]:
    """The roofs of the runs beside those expected of the machine, or how to measure them for a slow run."""
    if explanation.machine is not None:
        return [_roof_table(explanation.machine), Lines((explanation.machine.reason,))]
    if explanation.gap and explanation.reason is None:
        return [Lines(("run with --roofs to tell a slow machine from slow software",))]
    return []


def _roof_table(machine: MachineJudgement) -> Table:
    """What the devices reached without the model, and what is expected of them."""
    rows = []
    devices = []
    for roof in machine.roofs:
        expected, ratio, source = NOTHING, NOTHING, "nothing is published"
        if roof.expected and roof.ratio and roof.source:
            expected, ratio, source = f"{roof.expected:.4g}", f"{roof.ratio:.2f}", roof.source
        rows.append((roof.metric, f"{roof.here:.4g}", expected, roof.unit, ratio, source))
        devices.append(roof.slowest_device)
    columns = ("without the model", "here", "expected", "unit", "ratio", "by")
    table = Table(columns, rows, right=frozenset({"here", "expected", "ratio"}), wrap=("by",))
    return with_slowest(table, devices, "slowest device", place=5)


def _heading(explanation: Explanation) -> str:
    """One line: the gap, and how much of it is unexplained."""
    if explanation.reason is not None or explanation.gap is None or explanation.ratio is None:
        return f"where the time went: {explanation.reason}"
    left = explanation.unexplained or 0.0
    return (
        f"{explanation.metric} is at {explanation.ratio:.3f}, so {explanation.gap:.1%} of its time is lost: "
        f"{1 - left:.0%} of that was measured, {left:.0%} is unexplained"
    )


def _share(cause: Cause, share: float | None) -> str:
    if share is None:
        return NOTHING
    if cause.at_most:
        return f"at most {share:.0%}"
    return f"{share:.0%}"
