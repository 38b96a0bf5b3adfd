"""Estimates how long a run takes, from an earlier run of the same configuration or from a published row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from flagbench.errors import FlagbenchError
from flagbench.machine.devices import this_machine
from flagbench.manifests.rows import Claim
from flagbench.manifests.stack import Stack
from flagbench.records.digest import unseeded_config_digest
from flagbench.records.store import Store
from flagbench.runs.launchers.describe import Described
from flagbench_core.config import measuring_seconds, schedule

SEARCHED_RECORDS = 50
"""Newest records of the case and stack that are searched. Reading more would make a user of a bucket wait."""
_UNITS = (("days", 86400), ("h", 3600), ("min", 60))
"""Units of a duration and their seconds, the largest first."""
_FROM_UNITS = 1.5
"""A duration is written in the largest unit of which it has at least this many."""


@dataclass(frozen=True)
class DurationEstimate:
    """The expected duration of a run."""

    seconds: float
    basis: str
    """The run or the row that the estimate follows from, as a phrase."""

    @property
    def text(self) -> str:
        """The duration for a person, with its source."""
        return f"about {_duration_text(self.seconds)}, by {self.basis}"


def estimate(
    described: Described | None, stack: Stack, store: Store, claims: Iterable[Claim]
) -> DurationEstimate | None:
    """Estimate the duration of a run with a configuration.

    It is that of the newest run of this configuration, with any seed, that ended well; otherwise it follows from a
    published row (claim) for this configuration and device. None if there is neither, or `described` is None.
    """
    if described is None:
        return None
    estimate_from_runs = _estimate_from_runs(described, stack, store)
    if estimate_from_runs is not None:
        return estimate_from_runs
    rows = [claim for claim in claims if _is_row_of(claim, described.config, stack)]
    return _estimate_from_rows(described.config, rows)


def _estimate_from_runs(described: Described, stack: Stack, store: Store) -> DurationEstimate | None:
    """The duration of the newest stored run of the same configuration that ended well."""
    digest = unseeded_config_digest(described.config)
    try:
        for entry in islice(store.list_records(described.config["case"], *stack.names), SEARCHED_RECORDS):
            run = entry.summary
            if run is None or not run.duration:
                continue
            if run.state == "ok" and run.unseeded_digest == digest:
                return DurationEstimate(run.duration, f"the run {entry.record_id} of the same configuration")
    except FlagbenchError:
        pass  # a store that cannot be read is reported when the record is stored
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
    """Estimate from published rows for this configuration.

    A run to the published stop takes a row's e2e_time, its time from start to end. A window of steps takes its
    samples divided by a row's p_core, in samples per second. Measurements without a model end at a time limit, which
    is the estimate.
    """
    train = schedule(config)
    devices = config["nodes"] * config["gpus"]
    if "seconds" in train and train["window_steps"] is not None:
        seconds = measuring_seconds(train)
        return DurationEstimate(seconds, "the time limit of its measurements, start-up left out")
    for claim in claims:
        row = f"the published row {claim.id} on {claim.conditions['device_model']}"
        if train["window_steps"] is None:
            e2e_time = claim.metric("e2e_time")
            if e2e_time is not None:
                return DurationEstimate(e2e_time.value, f"e2e_time of {row}")
            continue
        speed = claim.metric("p_core")
        if speed is not None and speed.scope == "job":
            samples = (train["warmup_steps"] + train["window_steps"]) * train["batch_size"] * devices
            return DurationEstimate(samples / speed.value, f"p_core of {row}, start-up left out")
    return None


def _duration_text(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `2.1 days`: two digits, as an estimate is not more precise."""
    for unit, size in _UNITS:
        if seconds >= _FROM_UNITS * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{max(seconds, 1):.0f} s"
