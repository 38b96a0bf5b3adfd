"""Published utilisations: whether each follows from the throughput of its own row, by its publisher's formula.

A publisher's utilisation is `throughput of a device x FLOPs it counts for a unit / peak it divides by`; all three are
its own choice, and a case's manifest has them under `flops.published`. A row fits where the result, rounded to the
nearest or cut off, gives the printed digits. One that fits only when rounded up, or not at all, is an anomaly.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from enum import Enum
from typing import Any

from flagbench.manifests.catalogue import peak_of
from flagbench.manifests.fields import Number
from flagbench.manifests.model import Case, Catalog, Claim, ClaimMetric, PublishedFormula
from flagbench.manifests.printed import printed_number

UTILISATION = "mfu"


class Fit(str, Enum):
    """How a printed utilisation comes from the computed one."""

    ROUNDED = "rounded"
    TRUNCATED = "truncated"
    ROUNDED_UP = "rounded up"
    NONE = "does not fit"


ANOMALIES = {Fit.ROUNDED_UP: "mfu-rounding", Fit.NONE: "mfu-does-not-fit"}
"""The anomaly that a row with such a utilisation must list."""


def fit(printed: Decimal, unit: float, computed: float) -> Fit:
    """Which rounding of a computed value to `unit` gives the printed one."""
    # A float's last bits are not the publisher's: 0.3605 must not read as 0.36049999.
    exact, last = Decimal(f"{computed:.12g}"), Decimal(f"{unit:.6g}")
    if exact.quantize(last, ROUND_HALF_UP) == printed:
        return Fit.ROUNDED
    if exact.quantize(last, ROUND_DOWN) == printed:
        return Fit.TRUNCATED
    return Fit.ROUNDED_UP if abs(printed - exact) < last else Fit.NONE


@dataclass(frozen=True)
class Reproduction:
    """A printed utilisation beside the one its row's throughput gives; both are fractions."""

    claim: str
    formula: PublishedFormula
    peak: Number
    """What the publisher divided by, FLOP/s."""
    throughput: ClaimMetric
    devices: int
    printed: Decimal
    computed: float
    listed: tuple[str, ...]
    """Which of ANOMALIES the claim has."""

    @property
    def fit(self) -> Fit:
        """Which rounding of the computed value gives the printed one."""
        return fit(self.printed, 10.0 ** int(self.printed.as_tuple().exponent), self.computed)

    @property
    def problem(self) -> str | None:
        """An anomaly that is missing from the claim, or listed without reason; None if neither."""
        due = ANOMALIES.get(self.fit)
        for name in self.listed:
            if name != due:
                return f"{self}, and its anomaly {name} says otherwise"
        if due is not None and due not in self.listed:
            return f"{self}, and no anomaly {due} of the field {UTILISATION} says so"
        return None

    def __str__(self) -> str:
        for_each = f" / {self.devices}" if self.throughput.scope == "job" and self.devices > 1 else ""
        return (
            f"{self.claim}: {UTILISATION} {self.printed} published, {self.throughput.value}{for_each} x "
            f"{self.formula.flops_per_unit:g} / {self.peak:g} = {self.computed:.5f}: {self.fit.value}"
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `problem` is null for a row without one."""
        return {
            "claim": self.claim,
            "formula": self.formula.id,
            "throughput": self.throughput.value,
            "devices": self.devices,
            "printed": str(self.printed),
            "computed": self.computed,
            "fit": self.fit.value,
            "anomaly": bool(self.listed),
            "problem": self.problem,
        }


def reproduce_utilisation(claim: Claim, case: Case) -> Reproduction | None:
    """The published utilisation of a row, recomputed; None if the row or its case lacks what it is computed from."""
    formula, cell = case.published_formula, claim.metric(UTILISATION)
    printed = None if cell is None else printed_number(cell.printed or repr(cell.value))
    if formula is None or printed is None:
        return None
    throughput = next((metric for metric in claim.metrics if _feeds(case, metric, formula)), None)
    if throughput is None:
        return None
    devices = claim.run.nodes * claim.run.gpus
    share = devices if throughput.scope == "job" else 1
    device = case.stacks[claim.stack].accelerator(str(claim.conditions.get("device_model"))) if claim.stack else None
    peak = formula.peak_of(claim.precision.executed, peak_of(device, claim.precision.executed))
    if peak is None:
        return None
    return Reproduction(
        claim=claim.id,
        formula=formula,
        peak=peak,
        throughput=throughput,
        devices=devices,
        printed=printed,
        computed=throughput.value / share * formula.flops_per_unit / peak,
        listed=tuple(a.id for a in claim.anomalies if a.field == UTILISATION and a.id in ANOMALIES.values()),
    )


def reproductions(catalog: Catalog) -> tuple[Reproduction, ...]:
    """The published utilisations of all claims that can be computed again."""
    found = (reproduce_utilisation(claim, catalog.cases[claim.case]) for claim in catalog.claims.values())
    return tuple(entry for entry in found if entry is not None)


def _feeds(case: Case, metric: ClaimMetric, formula: PublishedFormula) -> bool:
    """Whether a published value is what the formula takes: by its name, or by the metric that it is held by."""
    spec = case.metric(metric.name)
    return metric.name == formula.metric or (spec is not None and spec.held_by == formula.metric)
