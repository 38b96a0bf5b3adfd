"""What a run leaves behind for its record: how it ended, and what its ranks wrote."""

from typing import Any, Dict, List, NamedTuple, Optional

from flagbench_cases.shared.spool import SpoolReader, Step


class Outcome(NamedTuple):
    """How the run ended, in the terms of a record's `status`."""

    state: str
    phase: str
    reason: Optional[str]
    remedy: Optional[str]
    exit_code: int

    def as_dict(self) -> Dict[str, Any]:
        """The `status` of the record."""
        return dict(self._asdict())


OK = Outcome("ok", "done", None, None, 0)


class Evidence(NamedTuple):
    """What the ranks left: steps and facts by rank, and how the processes of this node ended."""

    steps: Dict[int, List[Step]]
    facts: List[Dict[str, Any]]
    exits: Dict[int, Optional[int]]
    telemetry: Optional[Dict[str, Any]]
    telemetry_reason: Optional[str]
    monitor: Dict[str, Any] = {}  # the sampler's start line: driver, versions, devices before the run

    def of(self, kind: str) -> List[Dict[str, Any]]:
        """All facts of a kind, in rank order."""
        return [fact for fact in self.facts if fact["kind"] == kind]

    def first(self, kind: str) -> Dict[str, Any]:
        """The first fact of a kind without its envelope, or an empty one."""
        found = self.of(kind)
        return {k: v for k, v in found[0].items() if k not in ("kind", "rank", "time")} if found else {}


NOTHING = Evidence({}, [], {}, None, "the run ended before the sampler began")


def read_spool(folder: str, world: int) -> Evidence:
    """Everything in the spool."""
    steps: Dict[int, List[Step]] = {}
    facts: List[Dict[str, Any]] = []
    for rank in range(world):
        reader = SpoolReader(folder, rank)
        found = reader.facts()
        if found:
            steps[rank] = reader.steps()
            facts.extend(found)
    return Evidence(steps, facts, {}, None, None)
