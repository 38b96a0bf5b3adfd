"""The data types of a verification, from the compared metrics and findings to the result with its verdict.

`interval` makes Compared, `rules` makes Findings, `judge` makes the VerifyResult that commands print and pages show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple

from msgspec import Struct, to_builtins

from flagbench.manifests.model import Case, MetricSpec
from flagbench.manifests.rows import Anomaly, Claim
from flagbench.records.model import Metric, SlowestDevice
from flagbench.records.runs_and_series import SeriesSummary
from flagbench.verdict.conditions import ConditionResult, describe_all
from flagbench.verdict.early_end import EarlyEnd
from flagbench.verdict.stats.faster_or_slower import SessionRuns
from flagbench.verdict.subject import Subject
from flagbench_core.exit_codes import ExitCode


class Verdict(str, Enum):
    """How records compare with a claim (a published row that a case repeats), a baseline, or a cited row.

    A comparison with a claim gives REPRODUCED, BELOW or ABOVE, one with a baseline FASTER, SAME or SLOWER, and one
    with a row that is only cited REFERENCE. Each of them may be INCONCLUSIVE, NOT_COMPARABLE or INVALID instead.
    """

    REPRODUCED = "REPRODUCED"
    BELOW = "BELOW"
    ABOVE = "ABOVE"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    INVALID = "INVALID"
    FASTER = "FASTER"
    SAME = "SAME"
    SLOWER = "SLOWER"
    REFERENCE = "REFERENCE"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of `flagbench verify`."""
        if self in (Verdict.REPRODUCED, Verdict.ABOVE, Verdict.FASTER, Verdict.SAME):
            return ExitCode.OK
        if self is Verdict.SLOWER:
            return ExitCode.BELOW
        if self is Verdict.REFERENCE:
            return ExitCode.INCONCLUSIVE
        return ExitCode[self.name]


class Estimate(Struct, frozen=True):
    """A metric over one or more runs with its interval, or a published value, which is taken as exact."""

    value: float
    """The mean over the runs, in the metric's unit."""
    runs: int
    """The number of runs; 0 for a published value."""
    ci95: tuple[float, float] | None = None
    """The 95 % interval of the value; None if the runs do not give one."""
    ci_method: str | None = None
    """How the interval was computed, in words."""

    @property
    def ends(self) -> tuple[float, float] | None:
        """The lowest and the highest value; None if the runs do not give an interval."""
        if self.runs == 0:
            return self.value, self.value
        return self.ci95

    def text(self, unit: str = "") -> str:
        """Return `1510 samples/s [1490, 1530]`; a published value keeps every digit that its publisher printed."""
        if self.runs == 0:
            return f"{self.value:.15g}"
        text = f"{four_digits(self.value)} {unit}".rstrip()
        if self.ci95 is None:
            return text
        low, high = self.ci95
        return f"{text} [{four_digits(low)}, {four_digits(high)}]"


class Ratio(Struct, frozen=True):
    """The ratio of two estimates."""

    value: float
    ci95: tuple[float, float] | None = None
    """The 95 % interval of the ratio; None if one of the estimates has no interval."""
    ci_method: str | None = None
    """How the interval was computed, in words."""

    def __str__(self) -> str:
        """`0.777 [0.767, 0.788]`: three decimals, the resolution that the limits 0.95 and 1.10 need."""
        if self.ci95 is None:
            return f"{self.value:.3f}"
        low, high = self.ci95
        return f"{self.value:.3f} [{low:.3f}, {high:.3f}]"


def four_digits(value: float) -> str:
    """Return a measured value with four significant digits; digits before the decimal point are never dropped."""
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    if abs(value) >= 1_000:
        return f"{value:.0f}"
    return f"{value:#.4g}"


def number_text(value: float, digits: int = 4) -> str:
    """Return a number with at most `digits` significant digits, as people write it: `10,920`, `56,150`, `0.0024`."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.15g}"


def slowest_device(metrics: Iterable[Metric]) -> SlowestDevice | None:
    """Return the slowest device of the run in which it is farthest behind the other devices; None if none is known.

    `metrics` is one metric in several runs.
    """
    devices = [metric.slowest_device for metric in metrics if metric.slowest_device is not None]
    return min(devices, key=lambda device: device.share, default=None)


def slowest_text(device: SlowestDevice | None) -> str:
    """Return `rank 5: 1,402, 70.2% of the others`; `-` for None."""
    if device is None:
        return "-"
    return f"rank {device.rank}: {number_text(device.value)}, {device.share:.1%} of the others"


class Against(Struct, frozen=True):
    """The claim, baseline or cited row that the records are compared with."""

    kind: Literal["claim", "baseline", "cited row"]
    id: str
    """The id of the row, or the ids of the baseline's records, joined by commas."""
    chosen: bool = False
    """Whether flagbench chose it; False if the user named it."""

    @property
    def side(self) -> str:
        """The words after a value of that side, as in `8 published` or `8 in the baseline`."""
        if self.kind == "baseline":
            return "in the baseline"
        return "published"


class CitedRow(Struct, frozen=True):
    """A published row that no case repeats, with its value of the gate (the metric that decides a verdict)."""

    id: str
    source: str
    """The project, file, section and commit of the row."""
    value: float
    """The published value of the gate, in `unit`."""
    unit: str
    ratio: Ratio | None
    """The measured value over the published one, or of a time the inverse, so that above 1 is better; None if it is
    not comparable."""


class MetricResult(Struct, frozen=True, kw_only=True):
    """One metric compared with its expected value."""

    name: str
    """The name of the expected metric."""
    held_by: str
    """The name of the measured metric that is compared with it, such as `p_core_host` for `p_core`."""
    unit: str
    better: str
    """`higher` or `lower`."""
    measured: Estimate | None = None
    """None if a run did not measure the metric."""
    slowest_device: SlowestDevice | None = None
    """The slowest device of the run in which it is farthest behind the others."""
    expected: Estimate
    ratio: Ratio | None = None
    """Measured over expected, or the inverse for `lower`, so that above 1 is better.

    None for an accuracy, and if the model or the shapes of its batches are not equal on both sides.
    """
    difference: float | None = None
    """Measured minus expected, in `unit`; None if the model or the shapes of its batches are not equal."""
    comparable: bool = False
    """Whether the conditions that the metric depends on allow a verdict."""
    verdict: Verdict | None = None
    """None for a metric that is not a speed or was not measured."""
    reason: str
    """The numbers behind the verdict, or why there is no verdict."""


class Compared(Struct, frozen=True, kw_only=True):
    """A metric measured and expected, with the runs of both sides, before the verdict on it."""

    spec: MetricSpec
    result: MetricResult
    """The result so far: it has no verdict yet, and a reason only if the metric is not comparable."""
    runs: tuple[Metric, ...]
    """The metric of each run; empty if a run did not measure it."""
    session: float = 1.0
    """How much of a session's deviation is left in the mean of the runs: 1 for one session, less for several."""
    strict: Ratio | None = None
    """The ratio with its wider interval, if the verdict is looked at more than once; else None."""
    baseline: tuple[Metric, ...] = ()
    """The metric of each run of a baseline."""
    sides: tuple[SessionRuns, ...] = ()
    """The rates of the runs and of the baseline's runs, by session; empty if there is no baseline to compare with."""
    forbidding: tuple[ConditionResult, ...] = ()
    """The conditions whose difference forbids to compare the metric."""


class Verification(Struct, frozen=True, kw_only=True):
    """The records of both sides with their compared conditions and metrics: the input of the rules and of `judge`."""

    case: Case
    against: Against
    subjects: Sequence[Subject]
    """The records that the verdict is on."""
    conditions: tuple[ConditionResult, ...]
    metrics: tuple[Compared, ...]
    claim: Claim | None = None
    """The claim that the records are compared with; None for a baseline or a cited row."""
    baseline: Sequence[Subject] = ()
    """The records of the baseline; empty for a claim or a cited row."""

    @property
    def software(self) -> tuple[ConditionResult, ...]:
        """The conditions that are versions of software."""
        return tuple(condition for condition in self.conditions if condition.name in self.case.software_conditions)


class Finding(Struct, frozen=True):
    """One problem that a rule found."""

    rule: str
    """The id of the rule."""
    message: str
    """The problem with both values, as a clause."""
    record: str | None = None
    """The id of the record that it concerns; None if it concerns several."""


class Doubts(NamedTuple):
    """The findings about one metric that leave room for a slower run than the records show."""

    about_runs: tuple[Finding, ...]
    about_baseline: tuple[Finding, ...]


class Findings(Struct, frozen=True):
    """The findings of all rules, by what they do to the verdict."""

    invalid: tuple[Finding, ...]
    """Why records that the verdict is on are INVALID."""
    invalid_baseline: tuple[Finding, ...]
    """Why records of the baseline are INVALID."""
    doubts: Mapping[str, Doubts]
    """The doubts about each comparable metric, by its name."""
    qualifiers: tuple[Finding, ...]
    """What a reader of the verdict should know, although it does not change the verdict."""


class VerifyResult(Struct, frozen=True):
    """The verdict on one or more records of the same conditions."""

    verdict: Verdict
    qualifiers: tuple[str, ...]
    """Notes that stand after the verdict, such as `software differs`."""
    reason: str
    """Why the verdict is what it is, as one sentence or clause."""
    gate: str
    """The name of the metric that decides."""
    against: Against
    records: tuple[str, ...]
    """The ids of the records that the verdict is on."""
    metrics: tuple[MetricResult, ...]
    conditions: tuple[ConditionResult, ...]
    anomalies: tuple[Anomaly, ...] = ()
    """Known oddities of the published row, in the metrics and conditions that were compared."""
    series: tuple[SeriesSummary, ...] = ()
    """The series (repeated runs of one request) to which the records belong."""
    not_compared: tuple[str, ...] = ()
    """Metrics, fields and checks that either the records or this version of flagbench does not have."""
    findings: tuple[Finding, ...] = ()
    """The findings that made a record INVALID, or the verdict INCONCLUSIVE or qualified."""
    cited: tuple[CitedRow, ...] = ()
    """For REFERENCE, the rows whose stated conditions do not contradict the runs, the nearest first; else empty."""
    ended: EarlyEnd | None = None
    """For INVALID, how the run ended early; None if it ended by itself."""
    forbidding: tuple[ConditionResult, ...] = ()
    """For NOT_COMPARABLE, the conditions whose difference forbids to compare the gate."""

    @property
    def only_conditions_differ(self) -> bool:
        """Whether `forbidding` is all that the reason states."""
        return bool(self.forbidding) and self.reason == describe_all(self.forbidding, side=self.against.side)

    @property
    def outcome(self) -> str:
        """The words that a person reads first: the verdict, or how the run ended early, as in `FAILED (exit 4)`."""
        if self.ended is None:
            return self.verdict.value
        return str(self.ended)

    @property
    def style(self) -> str:
        """The word that selects the outcome's colour: the verdict, or the state of a run that ended early."""
        if self.ended is None:
            return self.verdict.value
        return self.ended.state.value

    @property
    def differing(self) -> tuple[ConditionResult, ...]:
        """The conditions, software included, that differ or that only one side knows."""
        differing = []
        for condition in self.conditions:
            unknown_to_both = condition.here is None and condition.expected is None
            if condition.forbids and not unknown_to_both:
                differing.append(condition)
        return tuple(differing)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document that `flagbench verify --json` prints."""
        document = {"schema": "verdict/v1", "exit_code": self.verdict.exit_code, **to_builtins(self)}
        del document["forbidding"]
        if not self.cited:
            del document["cited"]
        if self.ended is None:
            del document["ended"]
        return document
