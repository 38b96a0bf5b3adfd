"""The type of a rule, the table of all rules, and the decorator that adds a function to it.

The modules `rules.record` and `rules.comparison` define the rules. The function `apply` of the package runs them. The
reference page of the documentation is generated from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from msgspec import Struct


class Consequence(str, Enum):
    """What a finding of a rule does to the verdict."""

    INVALID = "invalid"
    """The verdict is INVALID."""
    DOUBT = "doubt"
    """The verdict is INCONCLUSIVE if a slower run would have another verdict."""
    QUALIFIER = "qualifier"
    """The verdict stays, and the finding is listed with it."""


class Needs(str, Enum):
    """What a rule looks at. It decides when and with which arguments its function is called, see `Find`."""

    RECORD = "record"
    """Any record, whatever its status."""
    RUN = "run"
    """A record whose status is `ok`."""
    EVIDENCE = "evidence"
    """A record whose status is `ok`, and its evidence: the step times of its ranks."""
    SAMPLE = "sample"
    """One metric and the runs of one side of the comparison."""
    CLAIM = "claim"
    """One metric that is compared with a claim."""
    BOTH = "both"
    """The runs of both sides, once for all metrics."""


Find = Callable[..., Iterable[str]]
"""The function of a rule: it yields one message for each problem that it finds, with the values that contradict.

Its arguments by what the rule needs:
- RECORD and RUN: `(subject: Subject)`
- EVIDENCE: `(subject: Subject, evidence: RecordEvidence)`
- SAMPLE: `(subjects: Sequence[Subject], compared: Compared, verification: Verification)`
- CLAIM: `(compared: Compared, verification: Verification)`, where `verification.claim` is not None
- BOTH: `(verification: Verification)`
"""


class Rule(Struct, frozen=True):
    """One rule of the table."""

    id: str
    needs: Needs
    why: str
    """The broken tool, wrong set-up or sick machine that an honest user could have."""
    tolerance: str
    """The difference that the rule allows, and where that number comes from; empty if it allows none."""
    consequence: Consequence
    find: Find


RULES: dict[str, Rule] = {}
"""All rules by id, in the order of their definition; filled by the decorator `rule`."""


def rule(
    rule_id: str, needs: Needs, why: str, tolerance: str = "", consequence: Consequence = Consequence.INVALID
) -> Callable[[Find], Find]:
    """Return a decorator that adds a function to the table as the `find` of a rule; the arguments are its fields.

    The decorator raises ValueError if the table has a rule with that id.
    """

    def add_to_table(find: Find) -> Find:
        if rule_id in RULES:
            raise ValueError(f"two rules have the id {rule_id}")
        RULES[rule_id] = Rule(rule_id, needs, why, tolerance, consequence, find)
        return find

    return add_to_table
