"""The type of a rule, the table of all rules, and the decorator that adds a function to it.

`rules.record` and `rules.comparison` define the rules, and `rules.apply` runs them. The reference page of the
documentation is generated from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from msgspec import Struct


class Consequence(str, Enum):
    """What a finding of a rule does to the verdict, as the documentation says it."""

    INVALID = "`INVALID`"
    DOUBT = "`INCONCLUSIVE`, where a slower run would have another verdict"
    QUALIFIER = "a qualifier of the verdict"


class Needs(str, Enum):
    """What a rule looks at, as the documentation says it. It decides with which arguments `find` is called."""

    RECORD = "any record"
    """Called with a Subject, whatever its status."""
    RUN = "a run that ended well"
    """Called with a Subject whose status is `ok`."""
    EVIDENCE = "its evidence"
    """Called with a Subject whose status is `ok`, and its evidence as a Section."""
    SAMPLE = "the runs of one side"
    """Called with the Subjects of one side, the Compared metric and the Verification."""
    CLAIM = "a claim"
    """Called with the Compared metric and the Verification, which has a claim."""
    BOTH = "both sides"
    """Called with the Verification."""


Find = Callable[..., Iterable[str]]
"""The function of a rule: it yields one message, with both values, for each problem that it finds."""


class Rule(Struct, frozen=True):
    """One rule of the table."""

    id: str
    needs: Needs
    consequence: Consequence
    why: str
    """The broken tool, wrong set-up or sick machine that an honest user could have."""
    find: Find
    tolerance: str = ""
    """The difference that the rule allows, and where that number comes from; empty if it allows none."""


RULES: dict[str, Rule] = {}
"""All rules by id, in the order of their definition; filled by the decorator `rule`."""


def rule(
    name: str, needs: Needs, why: str, tolerance: str = "", consequence: Consequence = Consequence.INVALID
) -> Callable[[Find], Find]:
    """Return a decorator that adds a function to the table as the `find` of the rule `name`."""

    def add_to_table(find: Find) -> Find:
        RULES[name] = Rule(name, needs, consequence, why, find, tolerance)
        return find

    return add_to_table
