"""The evidence that a record is assembled from: the outcome, and what the ranks wrote to the spool.

The spool is a folder to which every rank writes during a run: its steps, with their times, and facts, which are JSON
objects with a `kind`, a `rank` and fields that depend on the kind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flagbench_cases.shared.spool import SpoolReader, Step


class Outcome(NamedTuple):
    """How the run ended: the record's `status`."""

    state: str
    phase: str
    reason: str | None
    remedy: str | None
    exit_code: int

    def as_dict(self) -> dict[str, Any]:
        """The `status` of the record."""
        return dict(self._asdict())


OK = Outcome("ok", "done", None, None, 0)


class Evidence(NamedTuple):
    """The evidence of a run, complete or not."""

    steps: dict[int, list[Step]]
    """The steps of each rank that wrote any fact."""
    facts: list[dict[str, Any]]
    """The facts of all ranks, in the order of ranks."""
    exits: dict[int, int | None]
    """The exit code of each rank of this node."""
    telemetry: dict[str, Any] | None
    """Power, temperature and clocks of the devices: the record's `telemetry`."""
    telemetry_reason: str | None
    """Why there is no telemetry."""
    monitor: dict[str, Any] = {}
    """The first line of the telemetry sampler: driver, versions, and the devices before the run."""

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return all facts of a kind, in rank order."""
        return [fact for fact in self.facts if fact["kind"] == kind]

    def first(self, kind: str) -> dict[str, Any]:
        """Return the fields of the first fact of a kind; empty if no such fact was written."""
        for fact in self.facts:
            if fact["kind"] == kind:
                return {name: fact[name] for name in fact if name not in ("kind", "rank", "time")}
        return {}


NOTHING = Evidence({}, [], {}, None, "the run ended before the sampler started")
"""The evidence of a run that ended before its ranks started."""


def read_spool(folder: str, world: int) -> Evidence:
    """Read the steps and facts of all ranks from the spool."""
    steps: dict[int, list[Step]] = {}
    facts: list[dict[str, Any]] = []
    for rank in range(world):
        reader = SpoolReader(folder, rank)
        rank_facts = reader.facts()
        if rank_facts:
            steps[rank] = reader.steps()
            facts.extend(rank_facts)
    return Evidence(steps, facts, {}, None, None)
