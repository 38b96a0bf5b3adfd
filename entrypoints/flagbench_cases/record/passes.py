"""The passes of an inference run, from the evidence of its ranks."""

from typing import Dict, List, NamedTuple

from flagbench_cases.record.evidence import Evidence


class Pass(NamedTuple):
    """One pass over the data: its steps, and its duration on each rank, seconds."""

    name: str
    first: int
    steps: int
    seconds: Dict[int, float]

    @property
    def end(self) -> int:
        """The end of its steps, exclusive."""
        return self.first + self.steps


def passes(evidence: Evidence) -> List[Pass]:
    """The passes that every rank has finished, in order."""
    found: Dict[str, Pass] = {}
    for fact in evidence.of("pass"):
        one = found.setdefault(fact["name"], Pass(fact["name"], fact["first_step"], fact["steps"], {}))
        one.seconds[fact["rank"]] = fact["seconds"]
    return [one for one in found.values() if len(one.seconds) == len(evidence.steps)]
