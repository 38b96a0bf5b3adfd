"""What a million tokens or samples take: joules, and money where the price of the machine is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from flagbench.records.model import Record, Window, WindowEnergy, Work
from flagbench.verdict.result import number_text
from flagbench_core.evidence.section import INFER, kind_of


class Efficiency(Struct, frozen=True):
    """Of the steps of one run's window."""

    part: str
    """The case."""
    unit: str
    """`tokens`, or `samples`."""
    per_second: float
    joules_per_million: float | None
    """Of all devices, as their driver reports it; None where it does not."""
    price_per_million: float | None
    joules_source: Literal["counter", "power"] | None = None
    """The devices' counters of energy, or samples of their power; None in certificates of earlier versions."""
    joules_of: Literal["window", "training", "inference"] | None = None
    """What the joules are of. Only in records that say nothing of their window, not of the window."""
    joules_error: float | None = None
    """The most by which joules by a counter are wrong, as a fraction; None for joules by the power."""
    padding_included: bool | None = None
    """Whether some of the tokens are padding; None where the record does not say."""

    def text(self) -> str:
        """`45,390 J per million tokens (energy counter, window, within 3.1%), padding included`, and the price.

        Empty where neither joules nor price are known.
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
        """What the joules are of, and where they come from."""
        if self.joules_of != "window":
            whole = f" of the whole {self.joules_of}" if self.joules_of else ""
            return f"mean power{whole}, warm-up included"
        if self.joules_source == "power":
            return "integrated power, window"
        within = "" if self.joules_error is None else f", within {self.joules_error:.1%}"
        return f"energy counter, window{within}"


def efficiency(record: Record, price: float | None) -> Efficiency | None:
    """What a run's steps took; None for what has no model, or no steps.

    Its telemetry is that of node 0, which counts for each node. `price`: of a node, per hour.
    """
    window, work = record.window, record.work
    if window is None or work is None or not window.seconds or not work.samples_executed or not window.samples:
        return None
    nodes = record.system.nodes
    unit, amount = _work_of_window(window, work)
    per_second = amount / window.seconds
    price_per_million = None
    if price is not None:
        price_per_million = 1e6 * price * nodes / 3600 / per_second
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
            joules_per_million=1e6 * joules * nodes / amount,
            joules_source=_source(energies),
            joules_of="window",
            joules_error=_error(energies, joules),
        )
    watts = _mean_watts(record)
    if watts is None:
        return without_joules
    joules_of: Literal["training", "inference"] = "training"
    if kind_of(record.config or {}) == INFER:
        joules_of = "inference"
    return replace(
        without_joules,
        joules_per_million=1e6 * watts * nodes / per_second,
        joules_source="power",
        joules_of=joules_of,
    )


def _work_of_window(window: Window, work: Work) -> tuple[str, float]:
    """The unit, and the tokens or samples of the window's steps."""
    if not work.tokens_executed:
        return "samples", window.samples
    return "tokens", window.samples * (work.tokens_executed / work.samples_executed)


def _has_padding(work: Work) -> bool | None:
    """Whether tokens are counted that are padding. Samples are never padded."""
    if not work.tokens_executed:
        return False
    if work.tokens_useful is None:
        return None
    return work.tokens_useful < work.tokens_executed


def _window_energy(record: Record, window: Window) -> list[WindowEnergy]:
    """The energy of each device in all steps of the window; empty if one of them does not have it."""
    if record.telemetry is None:
        return []
    energies = []
    for device in record.telemetry.devices:
        energy = device.window_energy
        if energy is None or energy.steps != window.steps:
            return []
        energies.append(energy)
    return energies


def _source(energies: Sequence[WindowEnergy]) -> Literal["counter", "power"]:
    """The counter, if all devices have one."""
    if all(energy.source == "counter" for energy in energies):
        return "counter"
    return "power"


def _error(energies: Sequence[WindowEnergy], joules: float) -> float | None:
    """Of all devices together, as a fraction; None if one of them has no bound."""
    errors = [energy.error_j for energy in energies if energy.error_j is not None]
    if len(errors) < len(energies) or not joules:
        return None
    return math.fsum(errors) / joules


def _mean_watts(record: Record) -> float | None:
    """The mean power of all devices, warm-up included; None if one of them does not report it."""
    if record.telemetry is None or not record.telemetry.devices:
        return None
    powers = []
    for device in record.telemetry.devices:
        if device.power_mean_w is None:
            return None
        powers.append(float(device.power_mean_w))
    return math.fsum(powers)
