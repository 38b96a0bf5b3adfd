"""Compute what a million tokens or samples take: joules, and money if the price of the machine is known.

Certificates, verdicts and pages of records show the result next to the speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from flagbench.records.model import Record, Window, WindowEnergy, Work
from flagbench.verdict.result import number_text
from flagbench_core.case_kinds import INFER, kind_of

MILLION = 1e6
"""Units for which energy and price are given."""
SECONDS_OF_HOUR = 3600
"""Prices are given per hour."""


class Efficiency(Struct, frozen=True):
    """The speed, energy and price of the steps in one run's window (the measured steps after the warm-up)."""

    part: str
    """The name of the case."""
    unit: str
    """`tokens`, or `samples`."""
    per_second: float
    """Tokens or samples per second, of all nodes."""
    joules_per_million: float | None
    """Joules of all devices per million units, as their driver reports them; None if it does not."""
    price_per_million: float | None
    """The price per million units, in the currency in which it was given; None if it is not known."""
    joules_source: Literal["counter", "power"] | None = None
    """The devices' counters of energy, or samples of their power; None in certificates of earlier versions."""
    joules_of: Literal["window", "training", "inference"] | None = None
    """The part of the run in which the joules were measured: the window, or all of the run if the record does not
    have them for its window. None in certificates of earlier versions."""
    joules_error: float | None = None
    """The largest error of joules by a counter, as a fraction; None for joules by the power."""
    padding_included: bool | None = None
    """Whether some of the tokens are padding; None if the record does not say."""

    def text(self) -> str:
        """Return joules and price as text; empty if neither is known.

        For example `45,390 J per million tokens (energy counter, window, within 3.1%), padding included`.
        """
        per = f"per million {self.unit}"
        parts = []
        if self.joules_per_million is not None:
            parts.append(f"{number_text(self.joules_per_million)} J {per} ({self._joules_text()})")
        if self.price_per_million is not None:
            parts.append(f"price {number_text(self.price_per_million)} {per}")
        if not parts:
            return ""
        if self.padding_included:
            parts.append("padding included")
        return ", ".join(parts)

    def _joules_text(self) -> str:
        """Return how the joules were measured, and in which part of the run."""
        if self.joules_of is None:
            return "mean power, warm-up included"
        if self.joules_of != "window":
            return f"mean power of the whole {self.joules_of}, warm-up included"
        if self.joules_source == "power":
            return "integrated power, window"
        if self.joules_error is None:
            return "energy counter, window"
        return f"energy counter, window, within {self.joules_error:.1%}"


class _WindowWork(NamedTuple):
    """The work of the window's steps."""

    unit: str
    """`tokens`, or `samples`."""
    amount: float


def compute_efficiency(record: Record, price: float | None) -> Efficiency | None:
    """Return what a run's steps took; None if the run has no model or no measured steps.

    Telemetry is of node 0 only, and each node is taken to use the same energy.

    Args:
        record: the record of the run.
        price: the price of one node per hour, in any currency; None if it is not known.
    """
    window = record.window
    work = record.work
    if window is None or work is None:
        return None
    if not window.seconds or not window.samples or not work.samples_executed:
        return None
    nodes = record.system.nodes
    unit, amount = _work_of_window(window, work)
    per_second = amount / window.seconds
    price_per_million = None
    if price is not None:
        price_per_million = MILLION * price * nodes / SECONDS_OF_HOUR / per_second
    without_joules = Efficiency(
        part=record.case,
        unit=unit,
        per_second=per_second,
        joules_per_million=None,
        price_per_million=price_per_million,
        padding_included=_has_padding(work),
    )
    energies = _window_energy(record, window)
    if energies:
        joules = math.fsum(energy.joules for energy in energies)
        return replace(
            without_joules,
            joules_per_million=MILLION * joules * nodes / amount,
            joules_source=_source_of(energies),
            joules_of="window",
            joules_error=_relative_error(energies, joules),
        )
    watts = _mean_watts(record)
    if watts is None:
        return without_joules
    joules_of: Literal["training", "inference"] = "training"
    if kind_of(record.config or {}) == INFER:
        joules_of = "inference"
    return replace(
        without_joules,
        joules_per_million=MILLION * watts * nodes / per_second,
        joules_source="power",
        joules_of=joules_of,
    )


def _work_of_window(window: Window, work: Work) -> _WindowWork:
    """Return the tokens of the window's steps, or their samples if the run counts no tokens."""
    if not work.tokens_executed:
        return _WindowWork("samples", window.samples)
    tokens_of_sample = work.tokens_executed / work.samples_executed
    return _WindowWork("tokens", window.samples * tokens_of_sample)


def _has_padding(work: Work) -> bool | None:
    """Whether some of the counted tokens are padding; None if that is not known. Samples are never padded."""
    if not work.tokens_executed:
        return False
    if work.tokens_useful is None:
        return None
    return work.tokens_useful < work.tokens_executed


def _window_energy(record: Record, window: Window) -> list[WindowEnergy]:
    """Return the energy of each device in all steps of the window; an empty list if a device does not have it."""
    if record.telemetry is None:
        return []
    energies = []
    for device in record.telemetry.devices:
        energy = device.window_energy
        if energy is None or energy.steps != window.steps:
            return []
        energies.append(energy)
    return energies


def _source_of(energies: Sequence[WindowEnergy]) -> Literal["counter", "power"]:
    """Return `counter` if all devices have a counter of energy, else `power`."""
    if all(energy.source == "counter" for energy in energies):
        return "counter"
    return "power"


def _relative_error(energies: Sequence[WindowEnergy], joules: float) -> float | None:
    """Return the largest error of the joules of all devices, as a fraction; None if a device has no bound for it."""
    errors = [energy.error_j for energy in energies if energy.error_j is not None]
    if len(errors) < len(energies) or not joules:
        return None
    return math.fsum(errors) / joules


def _mean_watts(record: Record) -> float | None:
    """Return the power of all devices together, W, mean over the run; None if one of them does not report it."""
    if record.telemetry is None or not record.telemetry.devices:
        return None
    powers = []
    for device in record.telemetry.devices:
        if device.power_mean_w is None:
            return None
        powers.append(float(device.power_mean_w))
    return math.fsum(powers)
