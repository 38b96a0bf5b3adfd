"""How long a run should take, and the source of that estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.machine.devices import this_machine
from flagbench.manifests.rows import Claim
from flagbench.manifests.stack import Stack
from flagbench.records.digest import unseeded
from flagbench.records.store import Store
from flagbench.runs.launchers.describe import Described
from flagbench_core.config import measuring_seconds, schedule

LOOKED_AT = 50
"""Newest records of the case and stack that are searched."""


@dataclass(frozen=True)
class DurationEstimate:
    """Expected duration, and its source."""

    seconds: float
    basis: str

    @property
    def text(self) -> str:
        """The duration for a person, with its source."""
        return f"about {_duration(self.seconds)}, by {self.basis}"


def estimate(
    described: Described | None, stack: Stack, store: Store, claims: Iterable[Claim]
) -> DurationEstimate | None:
    """From the newest run of this configuration, with any seed, that ended well, else from a published row of it."""
    if described is None:
        return None
    earlier = _estimate_from_runs(described, stack, store)
    if earlier is not None:
        return earlier
    rows = [claim for claim in claims if _is_row_of(claim, described.config, stack)]
    return _estimate_from_rows(described.config, rows)


def _estimate_from_runs(described: Described, stack: Stack, store: Store) -> DurationEstimate | None:
    digest = unseeded(described.config)
    try:
        for entry in islice(store.list(described.config["case"], *stack.names), LOOKED_AT):
            run = entry.summary
            if run and run.duration and run.state == "ok" and run.unseeded_digest == digest:
                return DurationEstimate(run.duration, f"the run {entry.record_id} of the same configuration")
    except FlagbenchError:
        pass  # an unreadable store is reported when the record is stored
    return None


def _is_row_of(claim: Claim, config: Mapping[str, Any], stack: Stack) -> bool:
    """Whether a row is for this configuration on a device of this stack, and of this machine if it has one."""
    if claim.case != config["case"]:
        return False
    if claim.conditions.get("batch_size") != schedule(config).get("batch_size"):
        return False
    for key in ("nodes", "gpus", "preset", "precision"):
        if getattr(claim.run, key) != config[key]:
            return False
    model = stack.accelerator(str(claim.conditions.get("device_model")))
    if model is None:
        return False
    devices = this_machine().devices
    if not devices:
        return True
    return any(model.has_name(device.name) for device in devices)


def _estimate_from_rows(config: Mapping[str, Any], claims: Iterable[Claim]) -> DurationEstimate | None:
    """From a row's e2e_time for the whole published run, or from its p_core for a window of steps.

    Measurements without a model end at a time limit, which is the estimate.
    """
    train, devices = schedule(config), config["nodes"] * config["gpus"]
    if "seconds" in train and train["window_steps"] is not None:
        seconds = measuring_seconds(train)
        return DurationEstimate(seconds, "the time limit of its measurements, start-up left out")
    for claim in claims:
        whole, speed = claim.metric("e2e_time"), claim.metric("p_core")
        row = f"the published row {claim.id} on {claim.conditions['device_model']}"
        if train["window_steps"] is None and whole is not None:
            return DurationEstimate(whole.value, f"e2e_time of {row}")
        if train["window_steps"] is not None and speed is not None and speed.scope == "job":
            samples = (train["warmup_steps"] + train["window_steps"]) * train["batch_size"] * devices
            return DurationEstimate(samples / speed.value, f"p_core of {row}, start-up left out")
    return None


def _duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `2.1 days`: no more digits than an estimate has."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{max(seconds, 1):.0f} s"
