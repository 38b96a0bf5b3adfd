"""The type of a rule, and the decorator that adds one to the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from msgspec import Struct


class Consequence(str, Enum):
    """What follows where a rule finds something."""

    INVALID = "`INVALID`"
    DOUBT = "`INCONCLUSIVE`, where a slower run would have another verdict"
    QUALIFIER = "a qualifier of the verdict"


class Needs(str, Enum):
    """What a rule looks at."""

    RECORD = "any record"
    RUN = "a run that ended well"
    EVIDENCE = "its evidence"
    SAMPLE = "the runs of one side"
    CLAIM = "a claim"
    BOTH = "both sides"


class Rule(Struct, frozen=True):
    """One rule; `find` yields a message with both values for each thing that it finds."""

    id: str
    needs: Needs
    consequence: Consequence
    why: str
    """The broken tool, wrong set-up or sick machine that an honest user could have."""
    find: Callable[..., Iterable[str]]
    tolerance: str = ""
    """What it allows, and where that comes from."""


RULES: dict[str, Rule] = {}

Find = Callable[..., Iterable[str]]


def rule(
    name: str, needs: Needs, why: str, tolerance: str = "", consequence: Consequence = Consequence.INVALID
) -> Callable[[Find], Find]:
    """Add a function to the table as the `find` of a rule."""

    def enter(find: Find) -> Find:
        RULES[name] = Rule(name, needs, consequence, why, find, tolerance)
        return find

    return enter
