"""What a verification says: the verdict of the whole, of each metric, and what it rests on."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from msgspec import Struct, to_builtins

from flagbench.manifests.model import Anomaly
from flagbench.verdict.conditions import ConditionResult
from flagbench.verdict.interval import Estimate, Ratio
from flagbench_core.exit_codes import ExitCode


class Verdict(str, Enum):
    """A record compared with a claim or a baseline. Only a baseline gives FASTER, SAME and SLOWER."""

    REPRODUCED = "REPRODUCED"
    BELOW = "BELOW"
    ABOVE = "ABOVE"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    INVALID = "INVALID"
    FASTER = "FASTER"
    SAME = "SAME"
    SLOWER = "SLOWER"

    @property
    def exit_code(self) -> ExitCode:
        """The code `flagbench verify` ends with."""
        if self in (Verdict.REPRODUCED, Verdict.ABOVE, Verdict.FASTER, Verdict.SAME):
            return ExitCode.OK
        if self is Verdict.SLOWER:
            return ExitCode.BELOW
        return ExitCode[self.name]


class Against(Struct, frozen=True):
    """What the records are compared with; `chosen` if it was not named by the user."""

    kind: Literal["claim", "baseline"]
    id: str
    chosen: bool = False

    @property
    def side(self) -> str:
        """The word for a value on that side: `8 published`, `8 in the baseline`."""
        return "published" if self.kind == "claim" else "in the baseline"


class MetricResult(Struct, frozen=True, kw_only=True):
    """One metric compared with its expected value.

    `name` is the expected metric, `held_by` the measured one. `verdict` is None for a metric that is
    not a speed or was not measured; `reason` says so, or states the numbers behind the verdict.
    `ratio` above 1 is better; `difference` is measured less expected, in the metric's unit. Both are
    None where model or shapes are not equal; an accuracy has a difference only.
    """

    name: str
    held_by: str
    unit: str
    better: str
    measured: Estimate | None = None
    expected: Estimate
    ratio: Ratio | None = None
    difference: float | None = None
    comparable: bool = False
    verdict: Verdict | None = None
    reason: str


class LeftOutRun(Struct, frozen=True):
    """A run of a series that is no part of the sample, and why."""

    run: int
    run_id: str
    reason: str


class SeriesSummary(Struct, frozen=True):
    """A series whose runs were held, or are the baseline."""

    series_id: str
    side: Literal["runs", "baseline"]
    nonce: str
    nonce_by: str
    """`user` or `flagbench`."""
    seeds: str
    """`derived` from the nonce, or `given`."""
    requested: int
    held: int
    left_out: tuple[LeftOutRun, ...] = ()
    problems: tuple[str, ...] = ()
    """Where it contradicts itself or its records."""
    looks: tuple[int, ...] = ()
    """The numbers of runs after which it could end because its verdict was decided; none for a fixed number."""

    @property
    def text(self) -> str:
        """One line: how many runs count, and which do not, and why."""
        other = "; ".join(f"run {run.run}: {run.reason}" for run in self.left_out)
        left = f", {len(self.left_out)} left out ({other})" if self.left_out else ""
        by = "" if self.nonce_by == "user" else ", random"
        seeds = "seeds derived from it" if self.seeds == "derived" else "the seed was given, not derived from it"
        whole = self.held == self.requested and not self.left_out
        count = f"all {self.requested} runs" if whole else f"{self.held} of {self.requested} runs"
        if self.looks:
            count += f", looked at after {', '.join(map(str, self.looks))}"
        return f"series {self.series_id}: {count}{left}; nonce {self.nonce}{by}, {seeds}"


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
    self_reported: tuple[str, ...] = ()
    """Ids of records that nothing but themselves speaks for: no launcher's clock and no series."""
    not_compared: tuple[str, ...] = ()
    """Metrics, fields and checks that only one of the records and this version of flagbench has."""

    @property
    def differing(self) -> tuple[ConditionResult, ...]:
        """Conditions that differ or are unknown, software among them."""
        return tuple(c for c in self.conditions if c.forbids)

    @property
    def conclusion(self) -> str:
        """The whole in one line: verdict, qualifiers, reason."""
        qualified = f" ({', '.join(self.qualifiers)})" if self.qualifiers else ""
        return f"{self.verdict.value}{qualified}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the shape `flagbench verify --json` prints."""
        return {"schema": "verdict/v1", "exit_code": self.verdict.exit_code, **to_builtins(self)}
