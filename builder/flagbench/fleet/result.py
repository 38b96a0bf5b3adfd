"""The result of judging a fleet, which `flagbench fleet` prints; `--json` has the fields of these classes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from flagbench.manifests.limits import Kind
from flagbench_core.exit_codes import ExitCode


class Action(str, Enum):
    """What to do with a node, the most severe first."""

    DRAIN = "drain"
    """Take it out of use: what was found has no innocent reason."""
    MISSING = "missing"
    """Find out why it did not answer."""
    LOOK = "look"
    """Look at it: it is slow or different, and sound nodes can be."""
    NOTHING = "nothing"

    @property
    def severity(self) -> int:
        """0 for NOTHING, and more for what is more severe."""
        return len(Action) - 1 - list(Action).index(self)


class Source(str, Enum):
    """How something was found."""

    OWN_CHECKS = "own checks"
    """By the checks of an acceptance, from the records of the node alone."""
    PEERS = "peers"
    """By comparison with the speed of the other nodes."""
    LAST_RUN = "its own last run"
    """By comparison with the speed of the node's earlier run."""
    DIFFERENCE = "difference"
    """By comparison of the software and hardware of nodes."""
    NO_RECORD = "no record"
    """There is no record to judge."""


SOURCES = {source: place for place, source in enumerate(Source)}
"""The place of a source among all: the first is shown first."""


@dataclass(frozen=True)
class ComparedValue:
    """A number of one node compared with that of other nodes, or of its own last run."""

    metric: str
    kind: Kind
    share: float
    """The number over that of the middle node; for the last run, the change over that of the middle node."""
    spreads: float
    """How many spreads of the nodes it is above the middle; negative if it is below."""
    rank: int | None
    """The rank of the device that it is of, the slowest; None for a number of the whole node."""


@dataclass(frozen=True)
class Finding:
    """One reason to do something about a node."""

    host: str
    action: Action
    source: Source
    reason: str
    """In words, a clause."""
    run: str = ""
    """The case and the stack, such as roofs:cuda13; empty if it is about the node as a whole."""
    value: ComparedValue | None = None
    """The number; None if no numbers were compared."""


@dataclass(frozen=True)
class ComparedNumber:
    """One number that was compared between nodes."""

    run: str
    """The case and the stack."""
    device: str
    """The device model."""
    source: Source
    """PEERS or LAST_RUN."""
    metric: str
    kind: Kind
    nodes: int
    """The nodes whose middle and spread were used."""
    middle: float
    """Where most of them lie, in FLOP/s, B/s or the unit of the metric; for the last run, the change as a ratio."""
    spread: float
    """The spread between them, relative."""
    limit: float
    """How many spreads below the middle a node is named."""
    least_difference: float
    """The share below the middle from which a node is named: less cannot be detected at this spread."""
    drain_difference: float
    """The share below the middle from which a named node is to be drained, unless something else explains it."""


@dataclass(frozen=True)
class PropertyValue:
    """A version or a part that some nodes have in common."""

    value: str
    nodes: int
    """How many nodes have it."""
    hosts: tuple[str, ...]
    """Their names; empty for the value that most nodes have."""


@dataclass(frozen=True)
class Difference:
    """A property of software or hardware in which nodes differ that should be alike."""

    run: str
    """The case and the stack."""
    device: str
    """The device model."""
    name: str
    """The property, such as `driver`."""
    values: tuple[PropertyValue, ...]
    """The values, the one that most nodes have first."""


@dataclass(frozen=True)
class NodeResult:
    """What to do with one node, and why."""

    host: str
    action: Action
    reason: str
    """The most severe reason; empty if there is nothing to do."""
    findings: tuple[Finding, ...]
    """All reasons, the most severe first."""
    slowest: ComparedValue | None
    """The number that is furthest below the other nodes, in spreads; None if none was compared."""
    last_run_at: str | None
    """The time of its newest record, UTC; None if there is none."""


@dataclass(frozen=True)
class Fleet:
    """The nodes of a fleet, judged together."""

    store: str
    since: str
    """The time from which records were judged, UTC; older ones are compared with."""
    nodes: tuple[NodeResult, ...]
    """The worst first."""
    differences: tuple[Difference, ...]
    compared: tuple[ComparedNumber, ...]
    notes: tuple[str, ...]
    """What could not be compared or read, in sentences."""

    def hosts(self, action: Action) -> list[str]:
        """Return the names of the nodes with this action, in order."""
        return [node.host for node in self.nodes if node.action is action]

    @property
    def exit_code(self) -> ExitCode:
        """BELOW if a node is to be drained, INCONCLUSIVE if one is missing or to be looked at, else OK."""
        if self.hosts(Action.DRAIN):
            return ExitCode.BELOW
        if self.hosts(Action.MISSING) or self.hosts(Action.LOOK):
            return ExitCode.INCONCLUSIVE
        return ExitCode.OK
