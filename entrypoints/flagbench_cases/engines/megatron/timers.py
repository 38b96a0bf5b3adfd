"""Megatron-Core's timers (`config.timers`), which its schedules start and stop around their parts.

Megatron-LM's own timers synchronise the device at every start and stop. These mark the passes of each micro-batch on
the device's timeline, without waiting.
"""

from typing import Any

from flagbench_cases.contract import Probe

PASSES = ("forward-compute", "backward-compute")
"""The timers around the forward and the backward pass of a micro-batch. Between them a stage waits for other stages,
sends and receives."""


class _Ignored:
    """A timer of something else."""

    def start(self, barrier: bool = False) -> None:
        """Ignored."""

    def stop(self, barrier: bool = False) -> None:
        """Ignored."""


class _Pass:
    """The timer of both kinds of pass; one follows the other."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def start(self, barrier: bool = False) -> None:
        """Mark the start of a pass."""
        self._probe.pass_begins()

    def stop(self, barrier: bool = False) -> None:
        """Mark its end."""
        self._probe.pass_ends()


class Timers:
    """Passed to Megatron-Core as `config.timers`."""

    def __init__(self, probe: Probe) -> None:
        self._pass, self._ignored = _Pass(probe), _Ignored()

    def __call__(self, name: str, log_level: int = 0) -> Any:
        """The timer of this name."""
        return self._pass if name in PASSES else self._ignored
