"""The certificate of an acceptance as an HTML page and as text: whether a machine is good, and what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from flagbench.accept.check import AcceptanceCheck, Outcome
from flagbench.accept.document import Action, Certificate, Number, RunFacts
from flagbench.console.page import Block, Lines, Table
from flagbench.records.model import Record
from flagbench.report.charts import TONES, Chart, ChartRow, ratio_row, row_chart
from flagbench.report.html import Sections, render_page
from flagbench.report.record_page import lap_table
from flagbench.report.verdict_page import STYLES, with_slowest
from flagbench.verdict.result import number_text

_DEVICE_CHART_FROM = 0.95
"""The axis of the devices' speeds begins here or lower, so that a difference of 1 % looks small."""


def action_text(action: Action) -> str:
    """Return what to do with the machine, in a sentence."""
    if action.do == "use":
        return "Use this machine."
    if action.do == "run again" and action.minutes is None:
        return "Run it again."
    if action.do == "run again":
        return f"Run it again with --minutes {action.minutes:g}."
    if action.do == "fix":
        return f"Fix this first, then accept the machine again: {_remedies_text(action.remedies)}."
    if not action.ranks:
        return "Drain this machine."
    evidence = f"the evidence is against rank {', '.join(map(str, action.ranks))}"
    if action.devices:
        evidence += f": {', '.join(action.devices)}"
    return f"Drain this machine; {evidence}."


def _remedies_text(remedies: Sequence[str]) -> str:
    """Return the remedies in one line, numbered if there are several: a remedy may itself be a choice of two."""
    if len(remedies) == 1:
        return remedies[0]
    return "; ".join(f"({number}) {remedy}" for number, remedy in enumerate(remedies, start=1))


def machine_text(certificate: Certificate) -> str:
    """Return the machine in a line, such as `8 x NVIDIA H100 80GB HBM3, driver 580.95.05, node-17`."""
    facts = certificate.facts
    machine = facts.machine
    names = sorted({device.name for device in machine.devices})
    devices = f"{facts.gpus} x {' and '.join(names)}"
    if facts.device_kind == "cpu":
        ranks = "1 rank" if facts.gpus == 1 else f"{facts.gpus} ranks"
        devices = f"{ranks} on a processor"
    elif not names:
        devices = f"no device for the stack {facts.stack}"
    driver = ""
    if machine.drivers:
        driver = f", driver {', '.join(machine.drivers)}"
    return f"{devices}{driver}, {machine.host}"


def compared_text(certificate: Certificate) -> str:
    """Return the sentences that say what the machine was compared with, and which of its devices is the slowest."""
    counts: Counter[str] = Counter()
    for check in certificate.checks:
        if check.ratio is not None:
            counts[_kind_of_reference(check)] += 1
    references = []
    for reference, count in counts.items():
        numbers = "1 number"
        if count > 1:
            numbers = f"{count} numbers"
        references.append(f"{reference} ({numbers})")
    devices = _slowest_first(certificate)
    if not devices:
        return f"Compared with {_enumeration(references)}."
    references.append("the other devices")
    slowest = f"Slowest device: rank {devices[0].rank}, {devices[0].share:.1%} of the others."
    return f"Compared with {_enumeration(references)}. {slowest}"


def _kind_of_reference(check: AcceptanceCheck) -> str:
    """Return what a number was compared with, without the name of the row."""
    reference = check.reference_text
    if reference.startswith("claim "):
        return "published rows"
    if reference.startswith("catalogue "):
        return "rows of the catalogue"
    return reference


def _enumeration(parts: Sequence[str]) -> str:
    """Return the parts as `nothing`, `a`, `a and b` or `a, b and c`."""
    if not parts:
        return "nothing"
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


class _ComparedDevice(NamedTuple):
    """A device that was compared with the other ones."""

    share: float
    """Its speed relative to that of the other devices."""
    rank: int
    name: str
    """Its UUID; the name of its model if it has none."""


def _slowest_first(certificate: Certificate) -> list[_ComparedDevice]:
    """Return the devices that were compared with the other ones, the slowest first."""
    devices = []
    for device in certificate.devices:
        if device.share is not None:
            devices.append(_ComparedDevice(device.share, device.rank, device.uuid or device.name))
    return sorted(devices)


def certificate_blocks(certificate: Certificate) -> list[Block]:
    """Return the certificate as `flagbench accept` prints it."""
    outcome = certificate.outcome.value
    costs = []
    for row in _efficiency_rows(certificate):
        if row.energy_and_price:
            costs.append(f"{row.part}: {row.rate}, {row.energy_and_price}")
    return [
        Lines((f"{outcome}: {machine_text(certificate)}",), STYLES[outcome]),
        Lines((action_text(certificate.action), _reason_text(certificate), compared_text(certificate))),
        _check_table(certificate.checks),
        _check_reasons(certificate.checks),
        Lines(tuple(costs)),
    ]


def _reason_text(certificate: Certificate) -> str:
    """Return the reason of the outcome as a sentence.

    It ends with one full stop, also if the reason ends with one because it is the message of a vendor's tool.
    """
    reason = certificate.reason.rstrip(".")
    if certificate.outcome is Outcome.PASS:
        return f"{reason[:1].upper()}{reason[1:]}."
    return f"Why: {reason}."


class _EfficiencyRow(NamedTuple):
    """What one run took."""

    part: str
    """The name of the run in the certificate."""
    rate: str
    """Its speed, such as `1,942 samples/s`."""
    energy_and_price: str
    """The energy and price of its work; empty if neither is known."""


def _efficiency_rows(certificate: Certificate) -> list[_EfficiencyRow]:
    rows = []
    for efficiency in certificate.efficiency:
        rate = f"{number_text(efficiency.per_second)} {efficiency.unit}/s"
        rows.append(_EfficiencyRow(efficiency.part, rate, efficiency.text()))
    return rows


def _check_table(checks: Sequence[AcceptanceCheck]) -> Table:
    """Return a table of the checks, those that did not pass first."""
    rows = []
    for check in _worst_first(checks):
        rows.append(
            (
                check.outcome.value,
                check.part,
                check.name,
                str(check.ratio or ""),
                check.measured,
                check.against,
                check.limit,
            )
        )
    columns = ("OUTCOME", "RUN", "CHECK", "RATIO", "MEASURED", "AGAINST", "LIMIT")
    return Table(columns, rows, styles=STYLES, below=("LIMIT", "AGAINST", "MEASURED", "RUN"))


def _check_reasons(checks: Sequence[AcceptanceCheck]) -> Lines:
    """Return a line for each check that has a reason; in a column of the table it would be cut."""
    lines = []
    for check in _worst_first(checks):
        if check.reason:
            lines.append(f"{check.part}, {check.name}: {check.reason}")
    return Lines(tuple(lines))


def _worst_first(checks: Sequence[AcceptanceCheck]) -> list[AcceptanceCheck]:
    order = (Outcome.FAIL, Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.NOT_KNOWN)
    return sorted(checks, key=lambda check: order.index(check.outcome))


def render(certificate: Certificate, records: Mapping[str, Record]) -> bytes:
    """Return the certificate as an HTML page; `records` has the records of its runs by their ids.

    The same certificate gives the same bytes: `flagbench bundle verify` compares the page with one that it renders.
    """
    efficiency_columns = ("RUN", "RATE", "ENERGY, PRICE")
    sections: Sections = {
        "Checks": [_check_table(certificate.checks), _check_reasons(certificate.checks)],
        "Energy and price": [Table(efficiency_columns, _efficiency_rows(certificate))],
        "Numbers": [_number_table(certificate.numbers)],
        "Runs": [_run_table(certificate.facts.parts)],
        "Laps of the soak": _lap_tables(certificate.facts.parts, records),
        "Devices and software": [_software_table(certificate)],
    }
    text = render_page(
        machine_text(certificate),
        f"{_reason_text(certificate)} {compared_text(certificate)} {_time_and_cost(certificate)}",
        certificate_charts(certificate),
        sections,
        verdict=certificate.outcome.value,
        tone=TONES[certificate.outcome.value],
        headline=f" {action_text(certificate.action)}",
    )
    return text.encode()


def _time_and_cost(certificate: Certificate) -> str:
    """Return when the machine was accepted, and what that took.

    It is like `2026-01-01T00:00:00Z, 312 s, cost 2.08 at 24 per hour.`
    """
    time = f"{certificate.created_at}, {certificate.seconds:.0f} s"
    price = certificate.facts.asked.price_per_hour
    if price is None:
        return f"{time}."
    return f"{time}, cost {certificate.cost:.2f} at {price:g} per hour."


def _number_table(numbers: Sequence[Number]) -> Table:
    """Return a table of all metrics of the runs."""
    rows = []
    slowest_devices = []
    for number in numbers:
        value = f"{number_text(number.value)} {number.unit}"
        rows.append((number.part, number.name, value, number.scope))
        slowest_devices.append(number.slowest_device)
    columns = ("RUN", "METRIC", "VALUE", "OF")
    place = columns.index("VALUE") + 1
    return with_slowest(Table(columns, rows), slowest_devices, "SLOWEST DEVICE", place)


def _run_table(runs: Sequence[RunFacts]) -> Table:
    rows = []
    for run in runs:
        rows.append((run.target, run.state, run.why, run.record_id or ""))
    return Table(("RUN", "ENDED", "WHY", "RECORD"), rows)


def _lap_tables(runs: Iterable[RunFacts], records: Mapping[str, Record]) -> list[Block]:
    """Return a table of the laps of each run that was made in laps."""
    tables: list[Block] = []
    for run in runs:
        record = records.get(run.record_id or "")
        if record is not None and record.laps:
            tables.append(lap_table(record))
    return tables


def _software_table(certificate: Certificate) -> Table:
    """Return a table of the devices, and of the versions of the software of the runs and of flagbench."""
    facts = certificate.facts
    flagbench = certificate.flagbench
    rows = []
    for device in facts.machine.devices:
        rows.append((f"device {device.index}", f"{device.name} {device.uuid}"))
    for name, version in certificate.software.items():
        rows.append((name, version))
    rows.append(("stack", facts.stack))
    flagbench_version = flagbench.version
    if flagbench.commit:
        flagbench_version += f" at {flagbench.commit}"
    rows.append(("flagbench", flagbench_version))
    return Table(("NAME", "WHICH"), rows)


def certificate_charts(certificate: Certificate) -> list[Chart]:
    """Return the charts of a certificate.

    One shows the speed of each device relative to the other devices, one the ratio of each number to its reference.
    """
    charts = (_device_chart(certificate), _number_chart(certificate))
    return [chart for chart in charts if chart is not None]


def _device_chart(certificate: Certificate) -> Chart | None:
    """Return the chart of the devices' speeds; None for a single device, which is compared with no other."""
    failed_ranks: set[int] = set()
    for check in certificate.checks:
        if check.outcome is Outcome.FAIL:
            failed_ranks |= set(check.ranks)
    rows = []
    cells = []
    for device in _slowest_first(certificate):
        name = f"rank {device.rank}, {device.name}"
        share = f"{device.share:.1%}"
        tone = TONES["PASS"]
        if device.rank in failed_ranks:
            tone = TONES["FAIL"]
        rows.append(ChartRow(name, device.share, share, tone=tone))
        cells.append((name, share))
    return row_chart(
        "devices",
        "Speed of each device",
        "1 is the median of the other devices. The slowest device is first, by the median of all measurements.",
        rows,
        Table(("device", "speed"), cells),
        label="speed relative to the other devices",
        target=1.0,
        shown=[_DEVICE_CHART_FROM, 1.0],
    )


def _number_chart(certificate: Certificate) -> Chart | None:
    """Return the chart of the numbers that were compared with a reference; None if there is no such number."""
    rows = []
    cells = []
    floors = set()
    for check in certificate.checks:
        if check.ratio is None:
            continue
        reference = check.reference_text.removeprefix("claim ")
        rows.append(ratio_row(f"{check.name}, {reference}", check.ratio, check.outcome.value))
        cells.append((check.name, check.against, str(check.ratio), check.limit, check.outcome.value))
        floors.add(check.floor)
    line = "a 95 % interval, or from the slowest to the fastest fifth of a run that was not steady"
    description = (
        f"1 is what each number is compared with. It passes where its whole line, {line}, is above its limit"
    )
    band = None
    floor = None
    if len(floors) == 1:  # numbers with different limits have no common band
        (floor,) = floors
    if floor is not None:
        band = (floor, 1.0)
        description += f", {floor:.0%}, where the shaded band begins"
    columns = ("number", "against", "ratio", "limit", "outcome")
    return row_chart(
        "numbers",
        "Numbers and what they are compared with",
        f"{description}.",
        rows,
        Table(columns, cells),
        label="ratio to what it is compared with",
        band=band,
        target=1.0,
        shown=[1.0],
    )
