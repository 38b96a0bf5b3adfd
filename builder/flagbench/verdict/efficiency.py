"""What a million tokens or samples take: joules, and money where the price of the machine is known."""

from __future__ import annotations

import math

from msgspec import Struct

from flagbench.records.model import Record
from flagbench.verdict.result import number_text


class Efficiency(Struct, frozen=True):
    """Of the steps of one run's window."""

    part: str
    """The case."""
    unit: str
    """`tokens`, or `samples`."""
    per_second: float
    joules_per_million: float | None
    """From the mean power of all devices in the window, as their driver reports it; None where it does not."""
    price_per_million: float | None

    def text(self) -> str:
        """`56,150 J, price 0.0024 per million tokens`; empty where neither is known."""
        joules = "" if self.joules_per_million is None else f"{number_text(self.joules_per_million)} J"
        price = "" if self.price_per_million is None else f"price {number_text(self.price_per_million)}"
        return f"{', '.join(filter(None, (joules, price)))} per million {self.unit}" if joules or price else ""


def efficiency(record: Record, price: float | None) -> Efficiency | None:
    """What a run's steps took; None for what has no model, or no steps.

    Its telemetry is that of node 0, which counts for each node. `price`: of a node, per hour.
    """
    window, work = record.window, record.work
    if window is None or work is None or not window.seconds or not work.samples_executed or not window.samples:
        return None
    tokens, nodes = work.tokens_executed, record.system.nodes
    per_second = window.samples / window.seconds * (tokens / work.samples_executed if tokens else 1)
    powers = [device.power_mean_w for device in record.telemetry.devices] if record.telemetry else []
    known = [float(power) for power in powers if power is not None]
    watts = math.fsum(known) if known and len(known) == len(powers) else None
    return Efficiency(
        part=record.case,
        unit="tokens" if tokens else "samples",
        per_second=per_second,
        joules_per_million=None if watts is None else 1e6 * watts * nodes / per_second,
        price_per_million=None if price is None else 1e6 * price * nodes / 3600 / per_second,
    )
