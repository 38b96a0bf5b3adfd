"""Shows the nodes of a fleet as tables: what to do with each, what differs, and what could be detected.

The tables are printed as text, or are on a page of `flagbench report`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flagbench.console.page import Block, Lines, Table
from flagbench.console.terminal import brief
from flagbench.fleet.differences import LONGEST_VALUE
from flagbench.fleet.result import Action, ComparedNumber, Difference, Fleet, NodeResult
from flagbench.report.html import Sections, render_page

_NODE_COLUMNS = ("NODE", "DO", "BELOW PEERS", "SPREADS", "WHY")
_DIFFERENCE_COLUMNS = ("CASE", "PROPERTY", "NODES", "VALUE", "WHICH")
_NUMBER_COLUMNS = ("CASE", "NUMBER", "AGAINST", "NODES", "SPREAD", "NAMED FROM")
_STYLES = {"drain": "bold red", "missing": "bold yellow", "look": "bold yellow"}
_MOST_HOSTS = 4
"""The most names of nodes that a row lists; --json has all."""


def fleet_blocks(fleet: Fleet, *, wide: bool) -> list[Block]:
    """Return the result as blocks of text. `wide`: with every node, reason and number."""
    return [
        Lines((headline(fleet),), "bold"),
        node_table(fleet, wide=wide),
        _untouched_line(fleet, wide=wide),
        difference_table(fleet),
        number_table(fleet, wide=wide),
        Lines(fleet.notes),
    ]


def fleet_page(fleet: Fleet, home: str) -> str:
    """Return the result as an HTML page of a report; `home` is the address of the report's index."""
    sections: Sections = {
        "Nodes": [node_table(fleet, wide=True)],
        "Differences": [difference_table(fleet)],
        "Compared numbers": [number_table(fleet, wide=True), Lines(fleet.notes)],
    }
    return render_page("Nodes", headline(fleet), [], sections, home=home)


def node_table(fleet: Fleet, *, wide: bool) -> Table:
    """Return a table with a row for each node with something to do; if `wide`, for each node and reason."""
    rows = list(_node_rows(fleet.nodes, wide=wide))
    right = frozenset(("BELOW PEERS", "SPREADS"))
    return Table(_NODE_COLUMNS, rows, right=right, styles=_STYLES, wrap=("WHY",))


def difference_table(fleet: Fleet) -> Table:
    """Return a table with a row for each version or part in which nodes differ."""
    rows = []
    for difference in fleet.differences:
        for value in difference.values:
            text = brief(value.value, LONGEST_VALUE)
            hosts = _list_hosts(value.hosts)
            rows.append((_case_name(difference, fleet), difference.name, str(value.nodes), text, hosts))
    return Table(
        _DIFFERENCE_COLUMNS,
        rows,
        right=frozenset(("NODES",)),
        wrap=("VALUE", "WHICH"),
        title="what differs between nodes",
    )


def number_table(fleet: Fleet, *, wide: bool) -> Table:
    """Return a table of the spread of numbers, and of the smallest difference that could be detected."""
    return Table(
        _NUMBER_COLUMNS,
        list(_number_rows(fleet, wide=wide)),
        right=frozenset(("NODES", "SPREAD", "NAMED FROM")),
        wrap=("NUMBER",),
        title="what could be detected: a smaller difference is within the spread of the nodes",
    )


def headline(fleet: Fleet) -> str:
    """Return a line such as `64 nodes: drain 7, missing 1, look 8; records since 2026-11-01T10:00:00Z`."""
    counts = []
    for action in (Action.DRAIN, Action.MISSING, Action.LOOK):
        hosts = fleet.hosts(action)
        if hosts:
            counts.append(f"{action.value} {len(hosts)}")
    text = ", ".join(counts) or "nothing to do"
    return f"{_count_nodes(len(fleet.nodes))}: {text}; records since {fleet.since}"


def _count_nodes(count: int) -> str:
    """`1 node`, `64 nodes`."""
    return "1 node" if count == 1 else f"{count} nodes"


def _node_rows(nodes: Sequence[NodeResult], *, wide: bool) -> Iterator[tuple[str, ...]]:
    """A row for each node with something to do, or for every node; with `wide`, more reasons below the first."""
    for node in nodes:
        if node.action is Action.NOTHING and not wide:
            continue
        below = "-"
        spreads = "-"
        if node.slowest is not None:
            below = f"{_one_decimal(100 * (1 - node.slowest.share))} %"
            spreads = _one_decimal(-node.slowest.spreads)
        reason = node.reason
        if len(node.findings) > 1 and not wide:
            reason = f"{reason} (1 of {len(node.findings)} reasons)"
        yield node.host, node.action.value, below, spreads, reason
        if not wide:
            continue
        for finding in node.findings[1:]:
            yield "", finding.action.value, "", "", finding.reason


def _one_decimal(value: float) -> str:
    """A number with one decimal, and 0.0 instead of -0.0."""
    return f"{round(value, 1) + 0.0:.1f}"


def _untouched_line(fleet: Fleet, *, wide: bool) -> Lines:
    """A line with how many nodes are not in the table; no line if all are."""
    count = len(fleet.hosts(Action.NOTHING))
    if wide or not count:
        return Lines(())
    return Lines((f"{_count_nodes(count)}: nothing to do (--wide lists them)",))


def _list_hosts(hosts: Sequence[str]) -> str:
    """The first names of nodes; the value that most nodes have lists none."""
    if not hosts:
        return "the others"
    names = ", ".join(hosts[:_MOST_HOSTS])
    if len(hosts) > _MOST_HOSTS:
        names = f"{names} and {len(hosts) - _MOST_HOSTS} more"
    return names


def _case_name(row: Difference | ComparedNumber, fleet: Fleet) -> str:
    """The case and the stack of a row, with the device model if the fleet has several."""
    models = {number.device for number in fleet.compared}
    models |= {difference.device for difference in fleet.differences}
    if len(models) > 1:
        return f"{row.run} on {row.device}"
    return row.run


def _number_rows(fleet: Fleet, *, wide: bool) -> Iterator[tuple[str, ...]]:
    """A row for each number; unless `wide`, one for each kind, with the number whose spread hides most."""
    numbers_of_row: dict[tuple[str, ...], list[ComparedNumber]] = {}
    for number in fleet.compared:
        row: tuple[str, ...] = (number.run, number.device, number.source.value, number.kind)
        if wide:
            row = (*row, number.metric)
        numbers_of_row.setdefault(row, []).append(number)
    for numbers in numbers_of_row.values():
        number = max(numbers, key=lambda number: number.least_difference)
        name = number.metric
        if len(numbers) > 1:
            name = f"{number.kind}: {len(numbers)} numbers, most spread in {number.metric}"
        named_from = f"{100 * number.least_difference:.1f} %"
        if number.least_difference >= 1:
            named_from = "never"
        yield (
            _case_name(number, fleet),
            name,
            number.source.value,
            str(number.nodes),
            f"{100 * number.spread:.2f} %",
            named_from,
        )
