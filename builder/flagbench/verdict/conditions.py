"""Compare two sets of conditions, one condition at a time.

A condition is a named setting or fact that the speed of a run may depend on, such as `batch_size` or `device_model`.
A record has those of its run, a claim those that its publisher stated. The case's manifest lists, for each metric,
the conditions that it depends on; `interval` refuses to compare a metric if one of these differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeGuard

from msgspec import Struct

from flagbench.manifests.fields import NOT_PUBLISHED, Scalar
from flagbench.manifests.model import Case, MetricSpec
from flagbench.records.model import Record

_RELATIVE_TOLERANCE = 1e-9
"""Wide enough for rounding in decimal text, far too narrow for a different setting."""

VARIES = "varies between the runs"
"""The value of a condition that is not the same in all runs; it equals no other value."""

DEVICE_MODEL = "device_model"
"""The condition that names the device that a number was measured on."""

SEED = "seed"
"""The condition that each run of a series has of its own."""


class Agreement(str, Enum):
    """How one condition compares between the two sides."""

    EQUAL = "equal"
    DIFFERS = "differs"
    NOT_PUBLISHED = "not published"
    UNKNOWN = "unknown"


class ConditionResult(Struct, frozen=True):
    """One condition on both sides."""

    name: str
    here: Scalar | None
    """The value in the runs; None if it is unknown."""
    expected: Scalar | None
    """The value in the claim or the baseline; None if it is unknown."""
    agreement: Agreement

    @property
    def forbids(self) -> bool:
        """Whether a metric that depends on this condition cannot be compared."""
        return self.agreement in (Agreement.DIFFERS, Agreement.UNKNOWN)


def agreement(measured: Scalar | None, expected: Scalar | None) -> Agreement:
    """Compare one condition: strings exactly, numbers to 1e-9 relative, and a bool is not a number."""
    if measured == VARIES:
        return Agreement.DIFFERS
    if expected == NOT_PUBLISHED:
        return Agreement.NOT_PUBLISHED
    if measured is None or expected is None:
        return Agreement.UNKNOWN
    if _is_number(measured) and _is_number(expected):
        equal = math.isclose(measured, expected, rel_tol=_RELATIVE_TOLERANCE)
    else:
        equal = type(measured) is type(expected) and measured == expected
    if equal:
        return Agreement.EQUAL
    return Agreement.DIFFERS


def known_conditions(record: Record) -> dict[str, Scalar | None]:
    """Return the conditions of a run; None for one that is `not published`, which only a claim can be."""
    conditions: dict[str, Scalar | None] = dict(record.conditions)
    for name, condition in record.conditions.items():
        if condition == NOT_PUBLISHED:
            conditions[name] = None
    return conditions


def alike(a: Scalar | None, b: Scalar | None) -> bool:
    """Whether two runs agree in a condition; unknown in both runs counts as agreement."""
    return a == b or agreement(a, b) is Agreement.EQUAL


def shared_conditions(runs: Sequence[Mapping[str, Scalar | None]]) -> dict[str, Scalar | None]:
    """Return the conditions of one or more runs: the value that all of them have, or VARIES."""
    conditions: dict[str, Scalar | None] = {}
    for run in runs:
        conditions.update(dict.fromkeys(run))
    for name in conditions:
        first = runs[0].get(name)
        if all(alike(first, run.get(name)) for run in runs):
            conditions[name] = first
        else:
            conditions[name] = VARIES
    return conditions


def compare_conditions(
    names: Iterable[str], measured: Mapping[str, Scalar | None], expected: Mapping[str, Scalar | None]
) -> tuple[ConditionResult, ...]:
    """Compare the named conditions in order. A condition that a side does not have is unknown there."""
    results = []
    for name in names:
        condition = measured.get(name)
        expected_condition = expected.get(name)
        results.append(ConditionResult(name, condition, expected_condition, agreement(condition, expected_condition)))
    return tuple(results)


def claim_conditions(case: Case, conditions: Mapping[str, Scalar]) -> dict[str, Scalar | None]:
    """Return every condition of a case as a claim states it; `not published` for one that the row leaves out.

    One that the case requires is unknown instead, which forbids to compare what depends on it.
    """
    stated: dict[str, Scalar | None] = {}
    for name in case_conditions(case):
        stated[name] = conditions.get(name, NOT_PUBLISHED)
        if stated[name] == NOT_PUBLISHED and name in case.required_conditions:
            stated[name] = None
    return stated


def gate_spec(case: Case) -> MetricSpec:
    """Return the metric that decides a verdict on the case."""
    return next(spec for spec in case.metrics if spec.name == case.gate)


def depends_on(case: Case, spec: MetricSpec, held_by: str | None = None) -> tuple[str, ...]:
    """Return the conditions that the expected metric or the measured metric it is compared with depends on.

    For example, a published `p_core` that is compared with `p_core_host` depends on the loader as well, because the
    host's clock includes its time.

    Args:
        case: the case of both metrics.
        spec: the expected metric.
        held_by: the measured metric; None for the one that the case names for `spec`.
    """
    measured = case.metric(held_by or spec.held_by or spec.name)
    names = dict.fromkeys(spec.depends_on)
    if measured is not None:
        names.update(dict.fromkeys(measured.depends_on))
    return tuple(names)


def gate_conditions(case: Case) -> tuple[str, ...]:
    """Return the conditions on which the metric that decides depends."""
    return depends_on(case, gate_spec(case))


def case_conditions(case: Case) -> tuple[str, ...]:
    """Return the names of all conditions of a case, groups expanded, in the manifest's order."""
    names: dict[str, None] = {}
    for group in case.condition_groups.values():
        names.update(dict.fromkeys(group))
    return tuple(names)


def describe(result: ConditionResult, *, side: str = "published") -> str:
    """Return both values of a condition, as in `devices is 1 here, 8 published`."""
    if result.here == VARIES:
        return f"{result.name} {VARIES}"
    return f"{result.name} is {shown(result.here)} here, {shown(result.expected)} {side}"


def describe_all(results: Iterable[ConditionResult], *, side: str = "published") -> str:
    """Return both values of each condition, as the reason of a metric that cannot be compared states them."""
    return "; ".join(describe(result, side=side) for result in results)


def shown(condition: Scalar | None) -> str:
    """Return a condition's value as a person reads it; booleans are spelled as in the manifests."""
    if condition is None:
        return "unknown"
    if isinstance(condition, bool):
        return str(condition).lower()
    return str(condition)


def _is_number(value: Scalar) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
