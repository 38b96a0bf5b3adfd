"""What a verification says: the verdict of the whole, of each metric, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from flagbench.catalog.model import Anomaly
from flagbench.errors import ExitCode
from flagbench.verify import numbers
from flagbench.verify.conditions import ConditionResult
from flagbench.verify.interval import Estimate, Ratio


class Verdict(str, Enum):
    """A record held against a claim or a baseline."""

    REPRODUCED = "REPRODUCED"
    BELOW = "BELOW"
    ABOVE = "ABOVE"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    INVALID = "INVALID"

    @property
    def exit_code(self) -> ExitCode:
        """The code `flagbench verify` ends with."""
        if self in (Verdict.REPRODUCED, Verdict.ABOVE):
            return ExitCode.OK
        return ExitCode[self.name]


class AgainstKind(str, Enum):
    """What a record is held against."""

    CLAIM = "claim"
    BASELINE = "baseline"


@dataclass(frozen=True)
class Against:
    """What the records are held against; `chosen` if it was not named by the user."""

    kind: AgainstKind
    id: str
    chosen: bool = False

    @property
    def side(self) -> str:
        """The word for a value on that side: `8 published`, `8 in the baseline`."""
        return "published" if self.kind is AgainstKind.CLAIM else "in the baseline"

    @property
    def column(self) -> str:
        """The heading of that side in a table."""
        return "published" if self.kind is AgainstKind.CLAIM else "baseline"


@dataclass(frozen=True)
class MetricResult:
    """One metric held against its expected value.

    `name` is the expected metric, `held_by` the measured one. `verdict` is None for a metric that is
    not a speed or was not measured; `reason` says so, or states the numbers behind the verdict.
    `ratio` above 1 is better; `difference` is measured less expected, in the metric's unit. Both are
    None where model or shapes are not equal; an accuracy has a difference only.
    """

    name: str
    held_by: str
    unit: str
    better: str
    measured: Estimate | None
    expected: Estimate
    ratio: Ratio | None
    difference: float | None
    comparable: bool
    verdict: Verdict | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "held_by": self.held_by,
            "unit": self.unit,
            "better": self.better,
            "measured": None if self.measured is None else estimate_dict(self.measured),
            "expected": estimate_dict(self.expected),
            "ratio": ratio_dict(self.ratio),
            "difference": self.difference,
            "comparable": self.comparable,
            "verdict": None if self.verdict is None else self.verdict.value,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class VerifyResult:
    """The verdict on one or more records of the same conditions. `reason` is one sentence or clause."""

    verdict: Verdict
    reason: str
    qualifiers: tuple[str, ...]
    gate: str
    against: Against
    record_ids: tuple[str, ...]
    conditions: tuple[ConditionResult, ...]
    metrics: tuple[MetricResult, ...]
    anomalies: tuple[Anomaly, ...]

    @property
    def differing(self) -> tuple[ConditionResult, ...]:
        """Conditions that differ or are unknown, software among them."""
        return tuple(c for c in self.conditions if c.forbids)

    def metric(self, name: str) -> MetricResult | None:
        """The line of an expected metric, or None."""
        return next((m for m in self.metrics if m.name == name), None)

    @property
    def conclusion(self) -> str:
        """The whole in one line: verdict, qualifiers, reason."""
        qualified = f" ({', '.join(self.qualifiers)})" if self.qualifiers else ""
        return f"{self.verdict.value}{qualified}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the shape `flagbench verify --json` prints."""
        return {
            "schema": "verdict/v1",
            "verdict": self.verdict.value,
            "qualifiers": list(self.qualifiers),
            "reason": self.reason,
            "exit_code": int(self.verdict.exit_code),
            "gate": self.gate,
            "against": {
                "kind": self.against.kind.value,
                "id": self.against.id,
                "chosen": self.against.chosen,
            },
            "records": list(self.record_ids),
            "metrics": [m.to_dict() for m in self.metrics],
            "conditions": [c.to_dict() for c in self.conditions],
            "anomalies": [{"id": a.id, "field": a.field, "note": a.note} for a in self.anomalies],
        }


def estimate_dict(estimate: Estimate) -> dict[str, Any]:
    """An estimate as JSON; `ci95` and `ci_method` as in a record, null where there is no interval."""
    # A published value is exact to the arithmetic, which is no interval that anyone measured.
    interval = estimate.interval if estimate.runs else None
    return {
        "value": estimate.value,
        "runs": estimate.runs,
        "ci95": None if interval is None else [interval.low, interval.high],
        "ci_method": None if interval is None else interval.method,
    }


def ratio_dict(ratio: Ratio | None) -> dict[str, Any] | None:
    """A ratio as JSON."""
    if ratio is None:
        return None
    ci95 = None if ratio.low is None or ratio.high is None else [ratio.low, ratio.high]
    return {"value": ratio.value, "ci95": ci95}


def estimate_text(estimate: Estimate, unit: str = "") -> str:
    """`1510 samples/s [1490, 1530]`."""
    text = f"{numbers.measured(estimate.value)} {unit}".rstrip()
    if (ends := estimate.interval) is None:
        return text
    return f"{text} [{numbers.measured(ends.low)}, {numbers.measured(ends.high)}]"


def ratio_text(ratio: Ratio) -> str:
    """`0.777 [0.767, 0.788]`."""
    text = numbers.ratio(ratio.value)
    if ratio.low is None or ratio.high is None:
        return text
    return f"{text} [{numbers.ratio(ratio.low)}, {numbers.ratio(ratio.high)}]"
