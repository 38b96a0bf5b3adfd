"""The evidence that a record is assembled from: the outcome, and what the ranks wrote to the spool."""

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
    """Steps by rank, facts, exit codes of this node's ranks, and telemetry."""

    steps: dict[int, list[Step]]
    facts: list[dict[str, Any]]
    exits: dict[int, int | None]
    telemetry: dict[str, Any] | None
    telemetry_reason: str | None
    monitor: dict[str, Any] = {}  # the sampler's start line: driver, versions, devices before the run

    def all(self, kind: str) -> list[dict[str, Any]]:
        """All facts of a kind, in rank order."""
        return [fact for fact in self.facts if fact["kind"] == kind]

    def first(self, kind: str) -> dict[str, Any]:
        """The values of the first fact of a kind; empty if no such fact was written."""
        for fact in self.facts:
            if fact["kind"] == kind:
                return {name: fact[name] for name in fact if name not in ("kind", "rank", "time")}
        return {}


NOTHING = Evidence({}, [], {}, None, "the run ended before the sampler started")


def read_spool(folder: str, world: int) -> Evidence:
    """Read everything from the spool."""
    steps: dict[int, list[Step]] = {}
    facts: list[dict[str, Any]] = []
    for rank in range(world):
        reader = SpoolReader(folder, rank)
        rank_facts = reader.facts()
        if rank_facts:
            steps[rank] = reader.steps()
            facts.extend(rank_facts)
    return Evidence(steps, facts, {}, None, None)
