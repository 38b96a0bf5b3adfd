"""The result of a verification: the verdict of the whole and of each metric, and what they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal

from msgspec import Struct, to_builtins

from flagbench.manifests.model import Case, MetricSpec
from flagbench.manifests.rows import Anomaly, Claim
from flagbench.records.model import Metric, SlowestDevice
from flagbench.records.runs_and_series import SeriesSummary
from flagbench.verdict.conditions import ConditionResult
from flagbench.verdict.early_end import EarlyEnd
from flagbench.verdict.stats.faster_or_slower import SessionRuns
from flagbench.verdict.subject import Subject
from flagbench_core.exit_codes import ExitCode


class Verdict(str, Enum):
    """A record compared with a claim or a baseline, or beside a row that is only cited.

    Only a baseline gives FASTER, SAME and SLOWER, and only a cited row REFERENCE.
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
        """The code `flagbench verify` ends with."""
        if self in (Verdict.REPRODUCED, Verdict.ABOVE, Verdict.FASTER, Verdict.SAME):
            return ExitCode.OK
        if self is Verdict.SLOWER:
            return ExitCode.BELOW
        if self is Verdict.REFERENCE:
            return ExitCode.INCONCLUSIVE
        return ExitCode[self.name]


class Estimate(Struct, frozen=True):
    """A metric over one or more runs, and its 95 % interval; `ci95` is None where the runs give none.

    A published value has no runs and no interval: it is taken as exact.
    """

    value: float
    runs: int
    ci95: tuple[float, float] | None = None
    ci_method: str | None = None

    @property
    def ends(self) -> tuple[float, float] | None:
        """The bounds of the value, or None if they are unknown."""
        if self.runs == 0:
            return self.value, self.value
        return self.ci95

    def text(self, unit: str = "") -> str:
        """`1510 samples/s [1490, 1530]`; a published value has every digit that its publisher printed."""
        if self.runs == 0:
            return f"{self.value:.15g}"
        text = f"{four_digits(self.value)} {unit}".rstrip()
        if self.ci95 is None:
            return text
        low, high = self.ci95
        return f"{text} [{four_digits(low)}, {four_digits(high)}]"


class Ratio(Struct, frozen=True):
    """A ratio of two estimates; `ci95` is None where either has no interval."""

    value: float
    ci95: tuple[float, float] | None = None
    ci_method: str | None = None

    def __str__(self) -> str:
        """`0.777 [0.767, 0.788]`: three decimals, the resolution that the limits 0.95 and 1.10 need."""
        if self.ci95 is None:
            return f"{self.value:.3f}"
        low, high = self.ci95
        return f"{self.value:.3f} [{low:.3f}, {high:.3f}]"


def four_digits(value: float) -> str:
    """A measured value to four significant digits; the integer part is never rounded away."""
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    if abs(value) >= 1_000:
        return f"{value:.0f}"
    return f"{value:#.4g}"


def number_text(value: float, digits: int = 4) -> str:
    """A number with at most `digits` significant digits, as people write it: `10,920`, `56,150`, `0.0024`."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.15g}"


def slowest_device(metrics: Iterable[Metric]) -> SlowestDevice | None:
    """Of one metric of several runs, the slowest device of the run in which it is farthest behind the others."""
    devices = [metric.slowest_device for metric in metrics if metric.slowest_device is not None]
    return min(devices, key=lambda device: device.share, default=None)


def slowest_text(device: SlowestDevice | None) -> str:
    """`rank 5: 1,402, 70.2% of the others`; `-` for none."""
    if device is None:
        return "-"
    return f"rank {device.rank}: {number_text(device.value)}, {device.share:.1%} of the others"


class Against(Struct, frozen=True):
    """What the records are compared with; `chosen` if it was not named by the user."""

    kind: Literal["claim", "baseline", "cited row"]
    id: str
    chosen: bool = False

    @property
    def side(self) -> str:
        """The word for a value on that side: `8 published`, `8 in the baseline`."""
        if self.kind == "baseline":
            return "in the baseline"
        return "published"


class CitedRow(Struct, frozen=True):
    """A published row that is only cited, and the ratio of what the runs measured to it."""

    id: str
    source: str
    """Project, file, section and commit."""
    value: float
    """Of the metric that decides."""
    unit: str
    ratio: Ratio | None


class MetricResult(Struct, frozen=True, kw_only=True):
    """One metric compared with its expected value.

    `name` is the expected metric, `held_by` the measured one. `verdict` is None for a metric that is
    not a speed or was not measured; `reason` says so, or states the numbers behind the verdict.
    `ratio` above 1 is better; `difference` is measured less expected, in the metric's unit. Both are
    None where model or shapes are not equal; an accuracy has a difference only. `slowest_device` is that of the
    run in which it is farthest behind the others.
    """

    name: str
    held_by: str
    unit: str
    better: str
    measured: Estimate | None = None
    slowest_device: SlowestDevice | None = None
    expected: Estimate
    ratio: Ratio | None = None
    difference: float | None = None
    comparable: bool = False
    verdict: Verdict | None = None
    reason: str


class Compared(Struct, frozen=True, kw_only=True):
    """A metric measured and expected, with the runs of both sides, before the verdict on it."""

    spec: MetricSpec
    result: MetricResult
    """Without a verdict; its reason says why the metric is not comparable, if it is not."""
    runs: tuple[Metric, ...]
    """The metric of each run."""
    session: float = 1.0
    """The share of a session's deviation in the mean of the runs."""
    strict: Ratio | None = None
    """The ratio with its interval at the level of a look, where the verdict is looked at more than once."""
    baseline: tuple[Metric, ...] = ()
    """The metric of each run of a baseline."""
    sides: tuple[SessionRuns, ...] = ()
    """The rates of the runs and of a baseline's, by session; empty where they are not compared."""


class Verification(Struct, frozen=True, kw_only=True):
    """What rules and the judge look at: the records of both sides, their conditions and what was measured."""

    case: Case
    against: Against
    subjects: Sequence[Subject]
    conditions: tuple[ConditionResult, ...]
    metrics: tuple[Compared, ...]
    claim: Claim | None = None
    baseline: Sequence[Subject] = ()

    @property
    def software(self) -> tuple[ConditionResult, ...]:
        """The conditions that are versions."""
        return tuple(condition for condition in self.conditions if condition.name in self.case.software_conditions)


class Finding(Struct, frozen=True):
    """What a rule found: its message has both values. `record`: the id of the record that it concerns."""

    rule: str
    message: str
    record: str | None = None


class Findings(Struct, frozen=True):
    """What all rules found."""

    invalid: tuple[Finding, ...]
    invalid_baseline: tuple[Finding, ...]
    doubts: Mapping[str, tuple[tuple[Finding, ...], tuple[Finding, ...]]]
    """By metric: about the runs, and about the baseline."""
    qualifiers: tuple[Finding, ...]


class VerifyResult(Struct, frozen=True):
    """The verdict on one or more records of the same conditions. `reason` is one sentence or clause."""

    verdict: Verdict
    qualifiers: tuple[str, ...]
    reason: str
    gate: str
    against: Against
    records: tuple[str, ...]
    """Their ids."""
    metrics: tuple[MetricResult, ...]
    conditions: tuple[ConditionResult, ...]
    anomalies: tuple[Anomaly, ...] = ()
    series: tuple[SeriesSummary, ...] = ()
    """The series that the records are of."""
    not_compared: tuple[str, ...] = ()
    """Metrics, fields and checks that only one of the records and this version of flagbench has."""
    findings: tuple[Finding, ...] = ()
    """By which rules a record is invalid, the verdict in doubt or qualified."""
    cited: tuple[CitedRow, ...] = ()
    """Of a REFERENCE: the rows that state nothing else than the runs did, the nearest first."""
    ended: EarlyEnd | None = None
    """Of an INVALID: how the run ended, where it did not end by itself."""

    @property
    def outcome(self) -> str:
        """What a person reads first: the verdict, or how the run ended early, `FAILED (exit 4)`."""
        if self.ended is None:
            return self.verdict.value
        return str(self.ended)

    @property
    def style(self) -> str:
        """The word by which the outcome is styled: the verdict, or the state of a run that ended early."""
        if self.ended is None:
            return self.verdict.value
        return self.ended.state.value

    @property
    def differing(self) -> tuple[ConditionResult, ...]:
        """Conditions that differ, or are unknown on one side, software among them."""
        differing = []
        for condition in self.conditions:
            unknown = condition.here is None and condition.expected is None
            if condition.forbids and not unknown:
                differing.append(condition)
        return tuple(differing)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the shape `flagbench verify --json` prints."""
        document = {"schema": "verdict/v1", "exit_code": self.verdict.exit_code, **to_builtins(self)}
        if not self.cited:
            del document["cited"]
        if self.ended is None:
            del document["ended"]
        return document
