"""The certificate of an acceptance as a page and in text: whether the machine is good, and which device is worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from flagbench.console.page import Block, Lines, Table
from flagbench.records.model import SlowestDevice
from flagbench.report.charts import TONES, Chart, ChartRow, ratio_row, row_chart
from flagbench.report.html import Sections, page
from flagbench.report.verdict_page import STYLES, with_slowest
from flagbench.verdict.efficiency import Efficiency
from flagbench.verdict.result import Ratio, number_text


def action_text(certificate: Mapping[str, Any]) -> str:
    """What to do, in a sentence."""
    action = certificate["action"]
    if action["do"] == "use":
        return "Use this machine."
    if action["do"] == "run again":
        return f"Run it again with --minutes {action['minutes']:g}."
    if action["do"] == "fix":
        return f"Fix this first, then accept the machine again: {_remedies_text(action['remedies'])}."
    if not action["ranks"]:
        return "Drain this machine."
    evidence = f"the evidence is against rank {', '.join(map(str, action['ranks']))}"
    if action["devices"]:
        evidence += f": {', '.join(action['devices'])}"
    return f"Drain this machine; {evidence}."


def _remedies_text(remedies: Sequence[str]) -> str:
    """Numbered where there are several: a remedy may itself be a choice of two."""
    if len(remedies) == 1:
        return remedies[0]
    return "; ".join(f"({number}) {remedy}" for number, remedy in enumerate(remedies, start=1))


def machine_text(certificate: Mapping[str, Any]) -> str:
    """`8 x NVIDIA H100 80GB HBM3, driver 580.95.05, node-17`."""
    facts = certificate["facts"]
    machine = facts["machine"]
    names = sorted({device["name"] for device in machine["devices"]})
    what = f"{facts['gpus']} x {' and '.join(names)}"
    if facts["device_kind"] == "cpu":
        what = f"{facts['gpus']} ranks on a processor"
    elif not names:
        what = f"no device for the stack {facts['stack']}"
    driver = ""
    if machine["drivers"]:
        driver = f", driver {', '.join(machine['drivers'])}"
    return f"{what}{driver}, {machine['host']}"


def compared_text(certificate: Mapping[str, Any]) -> str:
    """What it was compared with, and its slowest device."""
    counts = Counter(_reference_text(check) for check in certificate["checks"] if check["ratio"] is not None)
    parts = []
    for reference, count in counts.items():
        numbers = "1 number"
        if count > 1:
            numbers = f"{count} numbers"
        parts.append(f"{reference} ({numbers})")
    devices = _slowest_first(certificate)
    if not devices:
        return f"Compared with {_enumeration(parts)}."
    parts.append("the other devices")
    slowest = f"Slowest device: rank {devices[0]['rank']}, {devices[0]['share']:.1%} of the others."
    return f"Compared with {_enumeration(parts)}. {slowest}"


def _reference_text(check: Mapping[str, Any]) -> str:
    """What a number was compared with; rows are not named."""
    reference: str = check["against"].partition(" of ")[2]
    if reference.startswith("claim "):
        return "published rows"
    if reference.startswith("catalogue "):
        return "rows of the catalogue"
    return reference


def _enumeration(parts: Sequence[str]) -> str:
    """`nothing`, `a`, `a and b` or `a, b and c`."""
    if not parts:
        return "nothing"
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _slowest_first(certificate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The devices that were compared with others."""
    devices = [device for device in certificate["devices"] if device["share"] is not None]
    return sorted(devices, key=lambda device: (device["share"], device["rank"]))


def certificate_blocks(certificate: Mapping[str, Any]) -> list[Block]:
    """What `flagbench accept` prints."""
    outcome = certificate["outcome"]
    costs = []
    for part, rate, cost in _efficiency(certificate):
        if cost:
            costs.append(f"{part}: {rate}, {cost}")
    return [
        Lines((f"{outcome}: {machine_text(certificate)}",), STYLES[outcome]),
        Lines((action_text(certificate), _why(certificate), compared_text(certificate))),
        _check_table(certificate["checks"]),
        _reasons(certificate["checks"]),
        Lines(tuple(costs)),
    ]


def _why(certificate: Mapping[str, Any]) -> str:
    """The reason as a sentence, with one full stop: the words of a vendor's tool may end with one."""
    reason = certificate["reason"].rstrip(".")
    if certificate["outcome"] == "PASS":
        return f"{reason[:1].upper()}{reason[1:]}."
    return f"Why: {reason}."


def _efficiency(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Of each run: its case, its rate, and what it took."""
    for values in certificate["efficiency"]:
        efficiency = Efficiency(**values)
        yield efficiency.part, f"{number_text(efficiency.per_second)} {efficiency.unit}/s", efficiency.text()


def _check_table(checks: Sequence[Mapping[str, Any]]) -> Table:
    """The checks, those that did not pass first."""
    rows = []
    for check in _worst_first(checks):
        about = (check["outcome"], check["part"], check["name"])
        rows.append((*about, _ratio(check["ratio"]), check["measured"], check["against"], check["limit"]))
    columns = ("OUTCOME", "RUN", "CHECK", "RATIO", "MEASURED", "AGAINST", "LIMIT")
    return Table(columns, rows, styles=STYLES, below=("LIMIT", "AGAINST", "MEASURED", "RUN"))


def _reasons(checks: Sequence[Mapping[str, Any]]) -> Lines:
    """Why checks have their outcome, a line each: a column would be cut."""
    lines = []
    for check in _worst_first(checks):
        if check["reason"]:
            lines.append(f"{check['part']}, {check['name']}: {check['reason']}")
    return Lines(tuple(lines))


def _worst_first(checks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    order = ("FAIL", "INCONCLUSIVE", "PASS", "NOT_KNOWN")
    return sorted(checks, key=lambda check: order.index(check["outcome"]))


def render(certificate: Mapping[str, Any]) -> bytes:
    """The page. Deterministic, as all pages of a report are."""
    sections: Sections = {
        "Checks": [_check_table(certificate["checks"]), _reasons(certificate["checks"])],
        "Energy and price": [Table(("RUN", "RATE", "ENERGY, PRICE"), list(_efficiency(certificate)))],
        "Numbers": [_numbers_table(certificate["numbers"])],
        "Runs": [_run_table(certificate["facts"]["parts"])],
        "Devices and software": [_software_table(certificate)],
    }
    text = page(
        machine_text(certificate),
        f"{_why(certificate)} {compared_text(certificate)} {_when(certificate)}",
        certificate_charts(certificate),
        sections,
        verdict=certificate["outcome"],
        tone=TONES[certificate["outcome"]],
        headline=f" {action_text(certificate)}",
    )
    return text.encode()


def _when(certificate: Mapping[str, Any]) -> str:
    """`2026-01-01T00:00:00Z, 312 s, cost 2.08 at 24 per hour.`"""
    took = f"{certificate['created_at']}, {certificate['seconds']:.0f} s"
    price = certificate["facts"]["asked"]["price_per_hour"]
    if price is None:
        return f"{took}."
    return f"{took}, cost {certificate['cost']:.2f} at {price:g} per hour."


def _numbers_table(numbers: Sequence[Mapping[str, Any]]) -> Table:
    rows, slowest = [], []
    for number in numbers:
        value = f"{number_text(number['value'])} {number['unit']}"
        rows.append((number["part"], number["name"], value, number["scope"]))
        # A certificate of an earlier version does not have it.
        slowest.append(msgspec.convert(number.get("slowest_device"), SlowestDevice | None))
    return with_slowest(Table(("RUN", "METRIC", "VALUE", "OF"), rows), slowest, "SLOWEST DEVICE", 3)


def _run_table(parts: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for part in parts:
        rows.append((part["target"], part["state"], part["why"], part["record_id"] or ""))
    return Table(("RUN", "ENDED", "WHY", "RECORD"), rows)


def _software_table(certificate: Mapping[str, Any]) -> Table:
    facts, author = certificate["facts"], certificate["flagbench"]
    rows = []
    for device in facts["machine"]["devices"]:
        rows.append((f"device {device['index']}", f"{device['name']} {device['uuid']}"))
    for name, version in certificate["software"].items():
        rows.append((name, str(version)))
    rows.append(("stack", facts["stack"]))
    version = author["version"]
    if author["commit"]:
        version = f"{version} at {author['commit']}"
    rows.append(("flagbench", version))
    return Table(("NAME", "WHICH"), rows)


def certificate_charts(certificate: Mapping[str, Any]) -> list[Chart]:
    """The speed of each device beside the others, and the ratio of each number to what it is compared with."""
    charts = (_devices_chart(certificate), _numbers_chart(certificate))
    return [chart for chart in charts if chart is not None]


def _devices_chart(certificate: Mapping[str, Any]) -> Chart | None:
    """None for a device alone."""
    failed: set[int] = set()
    for check in certificate["checks"]:
        if check["outcome"] == "FAIL":
            failed |= set(check["ranks"])
    rows, cells = [], []
    for device in _slowest_first(certificate):
        name, share = f"rank {device['rank']}, {device['uuid'] or device['name']}", f"{device['share']:.1%}"
        tone = TONES["PASS"]
        if device["rank"] in failed:
            tone = TONES["FAIL"]
        rows.append(ChartRow(name, device["share"], share, None, tone))
        cells.append((name, share))
    return row_chart(
        "devices",
        "Speed of each device",
        "1 is the median of the other devices. The slowest device is first, by the median of all measurements.",
        rows,
        Table(("device", "speed"), cells),
        label="speed relative to the other devices",
        target=1.0,
        shown=[0.95, 1.0],
    )


def _numbers_chart(certificate: Mapping[str, Any]) -> Chart | None:
    """None where no number was compared with anything."""
    rows, cells, floors = [], [], set()
    for check in certificate["checks"]:
        if check["ratio"] is None:
            continue
        reference = check["against"].partition(" of ")[2].removeprefix("claim ")
        rows.append(ratio_row(f"{check['name']}, {reference}", Ratio(**check["ratio"]), check["outcome"]))
        cells.append((check["name"], check["against"], _ratio(check["ratio"]), check["limit"], check["outcome"]))
        floors.add(check["floor"])
    line = "a 95 % interval, or from the slowest to the fastest fifth of a run that was not steady"
    description = (
        f"1 is what each number is compared with. It passes where its whole line, {line}, is above its limit"
    )
    band = None
    if len(floors) == 1:
        (floor,) = floors
        band = (floor, 1.0)
        description += f", {floor:.0%}, where the shaded band begins"
    return row_chart(
        "numbers",
        "Numbers and what they are compared with",
        f"{description}.",
        rows,
        Table(("number", "against", "ratio", "limit", "outcome"), cells),
        label="ratio to what it is compared with",
        band=band,
        target=1.0,
        shown=[1.0],
    )


def _ratio(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return ""
    return str(Ratio(**ratio))
