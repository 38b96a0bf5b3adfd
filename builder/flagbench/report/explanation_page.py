"""The explanation of a slow run as a person reads it: where its time went, and whether the machine is slow.

`flagbench verify --explain` prints it after the verdict, and a report has it as a section. `verdict.explain` computes
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from flagbench.console.page import Block, Lines, Table, render
from flagbench.report.verdict_page import NOTHING, with_slowest
from flagbench.verdict.explain import Cause, Explanation
from flagbench.verdict.roofs import MachineJudgement


def explanation_page(explanation: Explanation, *, wide: bool = False) -> str:
    """Return `explanation_blocks` as text, after an empty line."""
    return "\n" + render(explanation_blocks(explanation), wide=wide)


def explanation_blocks(explanation: Explanation) -> list[Block]:
    """Return a heading, a table of the causes, what to do about each, and the roofs of the machine."""
    rows = []
    actions = []
    for cause in explanation.causes:
        of_gap = _share_text(cause, cause.gap)
        of_time = _share_text(cause, cause.time)
        rows.append((cause.title, of_gap, of_time, cause.seen))
        actions.append(f"{cause.title}: {cause.action}")
    columns = ("cause", "of the gap", "of the time", "seen")
    return [
        Lines((_heading(explanation),)),
        Table(columns, rows, right=frozenset({"of the gap", "of the time"}), wrap=("seen",)),
        Lines(tuple(actions)),
        *_machine_blocks(explanation),
    ]


def _machine_blocks(explanation: Explanation) -> Sequence[Block]:
    """Return the roofs of the machine compared with the expected ones, or how to measure them for a slow run.

    A roof is the rate of one operation, such as a matmul or a copy, that the devices reached without the model.
    """
    if explanation.machine is not None:
        return [_roof_table(explanation.machine), Lines((explanation.machine.reason,))]
    if explanation.gap and explanation.reason is None:
        return [Lines(("run with --roofs to tell a slow machine from slow software",))]
    return []


def _roof_table(machine: MachineJudgement) -> Table:
    """Return a table of the roofs: what was measured, what is expected, and according to which source."""
    rows = []
    slowest_devices = []
    for roof in machine.roofs:
        expected = NOTHING
        ratio = NOTHING
        source = "nothing is published"
        if roof.expected and roof.ratio and roof.source:
            expected = f"{roof.expected:.4g}"
            ratio = f"{roof.ratio:.2f}"
            source = roof.source
        rows.append((roof.metric, f"{roof.here:.4g}", expected, roof.unit, ratio, source))
        slowest_devices.append(roof.slowest_device)
    columns = ("without the model", "here", "expected", "unit", "ratio", "by")
    table = Table(columns, rows, right=frozenset({"here", "expected", "ratio"}), wrap=("by",))
    return with_slowest(table, slowest_devices, "slowest device", place=columns.index("by"))


def _heading(explanation: Explanation) -> str:
    """Return one line: how much of the time is lost, and how much of that is explained; else why it is not known."""
    if explanation.reason is not None or explanation.gap is None or explanation.ratio is None:
        return f"where the time went: {explanation.reason}"
    unexplained = explanation.unexplained or 0.0
    return (
        f"{explanation.metric} is at {explanation.ratio:.3f}, so {explanation.gap:.1%} of its time is lost: "
        f"{1 - unexplained:.0%} of that was measured, {unexplained:.0%} is unexplained"
    )


def _share_text(cause: Cause, share: float | None) -> str:
    """Return a share of the gap or of the time as a percentage; `-` if it is not known."""
    if share is None:
        return NOTHING
    if cause.at_most:
        return f"at most {share:.0%}"
    return f"{share:.0%}"
