"""The passes of an inference run, from the evidence of its ranks."""

from typing import Dict, List, NamedTuple, Optional

from flagbench_cases.record.evidence import Evidence


class Pass(NamedTuple):
    """One pass over the data: its steps, and its duration on each rank that has finished it, seconds."""

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


def ended(evidence: Evidence, count: int) -> Optional[Pass]:
    """The pass during which the run ended, up to the `count` steps that every rank has taken; None if in none."""
    finished = {one.name for one in passes(evidence)}
    begun = next((fact for fact in evidence.of("pass_begun") if fact["name"] not in finished), None)
    if begun is None or count <= begun["first_step"]:
        return None
    return Pass(begun["name"], begun["first_step"], count - begun["first_step"], {})
