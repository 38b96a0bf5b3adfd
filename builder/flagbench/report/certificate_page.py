"""The certificate of an acceptance as a page and in text: whether the machine is good, and which device is worst."""

from __future__ import annotations

import re
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
    named = ", ".join(map(str, action["ranks"]))
    devices = f": {', '.join(action['devices'])}" if action["devices"] else ""
    return f"Drain this machine; the evidence is against rank {named}{devices}." if named else "Drain this machine."


def _remedies_text(remedies: Sequence[str]) -> str:
    """Numbered where there are several: a remedy may itself be a choice of two."""
    if len(remedies) == 1:
        return remedies[0]
    return "; ".join(f"({number}) {remedy}" for number, remedy in enumerate(remedies, start=1))


def machine_text(certificate: Mapping[str, Any]) -> str:
    """`8 x NVIDIA H100 80GB HBM3, driver 580.95.05, node-17`."""
    facts = certificate["facts"]
    machine = facts["machine"]
    names = sorted({each["name"] for each in machine["devices"]})
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
    held = [each["against"].partition(" of ")[2] for each in certificate["checks"] if each["ratio"] is not None]
    kinds = Counter(re.sub(r"^(claim|catalogue) .*", r"\1", text) for text in held)
    names = {"claim": "published rows", "catalogue": "rows of the catalogue"}
    parts = [f"{names.get(kind, kind)} ({count} number{'s' * (count > 1)})" for kind, count in kinds.items()]
    shares = [(each["share"], each["rank"]) for each in certificate["devices"] if each["share"] is not None]
    slowest = ""
    if shares:
        parts.append("the other devices")
        slowest = " Slowest device: rank {1}, {0:.1%} of the others.".format(*min(shares))
    return f"Compared with {_enumeration(parts)}.{slowest}"


def _enumeration(parts: Sequence[str]) -> str:
    """`nothing`, `a`, `a and b` or `a, b and c`."""
    if not parts:
        return "nothing"
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def certificate_blocks(certificate: Mapping[str, Any]) -> list[Block]:
    """What `flagbench accept` prints."""
    took = [f"{part}: {rate}, {text}" for part, rate, text in _efficiency(certificate) if text]
    return [
        Lines((f"{certificate['outcome']}: {machine_text(certificate)}",), STYLES[certificate["outcome"]]),
        Lines((action_text(certificate), _why(certificate), compared_text(certificate))),
        _check_table(certificate["checks"]),
        _reasons(certificate["checks"]),
        Lines(tuple(took)),
    ]


def _why(certificate: Mapping[str, Any]) -> str:
    """The reason as a sentence, with one full stop: the words of a vendor's tool may end with one."""
    reason = certificate["reason"].rstrip(".")
    if certificate["outcome"] == "PASS":
        return f"{reason[:1].upper()}{reason[1:]}."
    return f"Why: {reason}."


def _efficiency(certificate: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Of each run: its case, its rate, and what it took."""
    for each in certificate["efficiency"]:
        found = Efficiency(**each)
        yield found.part, f"{number_text(found.per_second)} {found.unit}/s", found.text()


def _check_table(checks: Sequence[Mapping[str, Any]]) -> Table:
    """The checks, those that did not pass first."""
    rows = [
        (
            *(each[name] for name in ("outcome", "part", "name")),
            _ratio(each["ratio"]),
            *(each[name] for name in ("measured", "against", "limit")),
        )
        for each in _worst_first(checks)
    ]
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
    facts = certificate["facts"]
    price = facts["asked"]["price_per_hour"]
    cost = "" if price is None else f", cost {certificate['cost']:.2f} at {price:g} per hour"
    when = f"{certificate['created_at']}, {certificate['seconds']:.0f} s{cost}."
    lead = f"{_why(certificate)} {compared_text(certificate)} {when}"
    numbers = [
        (each["part"], each["name"], f"{number_text(each['value'])} {each['unit']}", each["scope"])
        for each in certificate["numbers"]
    ]
    # A certificate of an earlier version does not have them.
    slowest = [msgspec.convert(each.get("slowest_device"), SlowestDevice | None) for each in certificate["numbers"]]
    author = certificate["flagbench"]
    devices = [(f"device {each['index']}", f"{each['name']} {each['uuid']}") for each in facts["machine"]["devices"]]
    software = [
        *devices,
        *certificate["software"].items(),
        ("stack", facts["stack"]),
        ("flagbench", f"{author['version']}{' at ' + author['commit'] if author['commit'] else ''}"),
    ]
    runs = [(each["target"], each["state"], each["why"], each["record_id"] or "") for each in facts["parts"]]
    sections: Sections = {
        "Checks": [_check_table(certificate["checks"]), _reasons(certificate["checks"])],
        "Energy and price": [Table(("RUN", "RATE", "ENERGY, PRICE"), list(_efficiency(certificate)))],
        "Numbers": [with_slowest(Table(("RUN", "METRIC", "VALUE", "OF"), numbers), slowest, "SLOWEST DEVICE", 3)],
        "Runs": [Table(("RUN", "ENDED", "WHY", "RECORD"), runs)],
        "Devices and software": [Table(("NAME", "WHICH"), [(name, str(value)) for name, value in software])],
    }
    text = page(
        machine_text(certificate),
        lead,
        certificate_charts(certificate),
        sections,
        verdict=certificate["outcome"],
        tone=TONES[certificate["outcome"]],
        headline=f" {action_text(certificate)}",
    )
    return text.encode()


def certificate_charts(certificate: Mapping[str, Any]) -> list[Chart]:
    """The speed of each device beside the others, and the ratio of each number to what it is compared with."""
    return [chart for chart in (_devices_chart(certificate), _numbers_chart(certificate)) if chart is not None]


def _devices_chart(certificate: Mapping[str, Any]) -> Chart | None:
    """None for a device alone."""
    failed = {rank for each in certificate["checks"] if each["outcome"] == "FAIL" for rank in each["ranks"]}
    rows, cells = [], []
    devices = (each for each in certificate["devices"] if each["share"] is not None)
    for each in sorted(devices, key=lambda each: each["share"]):
        name, share = f"rank {each['rank']}, {each['uuid'] or each['name']}", f"{each['share']:.1%}"
        rows.append(ChartRow(name, each["share"], share, None, TONES["FAIL" if each["rank"] in failed else "PASS"]))
        cells.append((name, share))
    told = "1 is the median of the other devices. The slowest device is first, by the median of all measurements."
    title, label = "Speed of each device", "speed relative to the other devices"
    return row_chart(
        "devices", title, told, rows, Table(("device", "speed"), cells), label=label, target=1.0, shown=[0.95, 1.0]
    )


def _numbers_chart(certificate: Mapping[str, Any]) -> Chart | None:
    found = [each for each in certificate["checks"] if each["ratio"] is not None]
    rows = []
    for check in found:
        compared = check["against"].partition(" of ")[2].removeprefix("claim ")
        rows.append(ratio_row(f"{check['name']}, {compared}", Ratio(**check["ratio"]), check["outcome"]))
    cells = [(each["name"], each["against"], _ratio(each["ratio"]), each["limit"], each["outcome"]) for each in found]
    line = "a 95 % interval, or from the slowest to the fastest fifth of a run that was not steady"
    told = f"1 is what each number is compared with. It passes where its whole line, {line}, is above its limit"
    floors = {each["floor"] for each in found}
    band = None
    if len(floors) == 1:
        band = (min(floors), 1.0)
        told += f", {min(floors):.0%}, where the shaded band begins"
    table = Table(("number", "against", "ratio", "limit", "outcome"), cells)
    title, label = "Numbers and what they are compared with", "ratio to what it is compared with"
    return row_chart("numbers", title, f"{told}.", rows, table, label=label, band=band, target=1.0, shown=[1.0])


def _ratio(ratio: Mapping[str, Any] | None) -> str:
    return "" if ratio is None else str(Ratio(**ratio))
