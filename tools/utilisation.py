"""Published utilisations: whether each follows from the throughput of its own row, by its publisher's formula.

A publisher's utilisation is `throughput of a device x FLOPs it counts for a unit / peak it divides by`; all three are
its own choice, and a case's manifest has them under `flops.published`. A row fits where the result, rounded to the
nearest or cut off, gives the printed digits. One that fits only when rounded up, or not at all, is an anomaly.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from enum import Enum

from flagbench.manifests.model import Case, Catalog, PublishedFormula
from flagbench.manifests.printed import printed_number
from flagbench.manifests.rows import Claim, PublishedValue


class Fit(str, Enum):
    """How a printed utilisation comes from the computed one."""

    ROUNDED = "rounded"
    TRUNCATED = "truncated"
    ROUNDED_UP = "rounded up"
    NONE = "does not fit"


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
class Utilisation:
    """A printed utilisation beside the one its row's throughput gives; both are fractions."""

    claim: str
    throughput: PublishedValue
    devices: int
    printed: Decimal
    computed: float

    @property
    def fit(self) -> Fit:
        """Which rounding of the computed value gives the printed one."""
        return fit(self.printed, 10.0 ** int(self.printed.as_tuple().exponent), self.computed)


def recompute_utilisation(claim: Claim, case: Case) -> Utilisation | None:
    """The published utilisation of a row, recomputed; None if the row or its case lacks what it is computed from."""
    formula, cell = case.published_formula, claim.metric("mfu")
    printed = None if cell is None else printed_number(cell.printed or repr(cell.value))
    if formula is None or printed is None:
        return None
    throughput = next((metric for metric in claim.metrics if _feeds(case, metric, formula)), None)
    if throughput is None:
        return None
    devices = claim.run.nodes * claim.run.gpus
    share = devices if throughput.scope == "job" else 1
    device = case.stacks[claim.stack].accelerator(str(claim.conditions.get("device_model"))) if claim.stack else None
    executed = claim.precision.executed
    peak = formula.peak_of(executed, None if device is None else device.peak(executed))
    if peak is None:
        return None
    return Utilisation(
        claim=claim.id,
        throughput=throughput,
        devices=devices,
        printed=printed,
        computed=throughput.value / share * formula.flops_per_unit / peak,
    )


def recompute_utilisations(catalog: Catalog) -> list[Utilisation]:
    """The published utilisations of all claims that can be computed again."""
    utilisations = []
    for claim in catalog.claims.values():
        utilisation = recompute_utilisation(claim, catalog.cases[claim.case])
        if utilisation is not None:
            utilisations.append(utilisation)
    return utilisations


def _feeds(case: Case, metric: PublishedValue, formula: PublishedFormula) -> bool:
    """Whether a published value is what the formula takes: by its name, or by the metric that it is held by."""
    spec = case.metric(metric.name)
    return metric.name == formula.metric or (spec is not None and spec.held_by == formula.metric)
