"""What is generated in a checkout: JSON Schemas, and in its pages tables and pictures.

A page holds a generated part between two comments, `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from flagbench.accept.certificate_page import certificate_blocks, certificate_charts
from flagbench.accept.document import Certificate
from flagbench.console.page import Block, Table, render
from flagbench.errors import FlagbenchError
from flagbench.expect.rows import verify_nearest
from flagbench.machine import disturbance_limits as limits
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.stack import Stack
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.report.charts import Chart, loss_chart, roof_chart, step_chart, verdict_chart
from flagbench.report.export import table
from flagbench.report.html import render_svg
from flagbench.report.verdict_page import verdict_table
from flagbench.verdict import Verdict, verify_claim
from flagbench.verdict.claim_limits import HIGH, LOW
from flagbench.verdict.losses import loss_curve
from flagbench.verdict.recompute import recompute
from flagbench.verdict.stats.faster_or_slower import WITHIN
from flagbench_core.exit_codes import ExitCode
from tools.generated.architecture import layers
from tools.generated.limits import acceptance_limits, fleet_limits
from tools.generated.pictures import terminal_svg
from tools.generated.reference import reference_pages
from tools.generated.schemas import schema_files

Blocks = Mapping[str, Callable[[], str]]
"""The text of each generated part by its name, made when a page has it."""

_MEANINGS = {
    Verdict.REPRODUCED: f"the 95 % interval lies within {LOW:.2f} to {HIGH:.2f} of the published value",
    Verdict.BELOW: f"the whole interval lies under {LOW:.2f}",
    Verdict.ABOVE: f"the whole interval lies over {HIGH:.2f}",
    Verdict.INCONCLUSIVE: "the interval crosses a limit or is missing, there is a doubt, or there is no evidence",
    Verdict.NOT_COMPARABLE: "something that the number depends on differs, and the verdict names it",
    Verdict.INVALID: "a check of the run failed, or the record contradicts itself, its evidence or what is possible",
    Verdict.FASTER: "against a baseline: the interval lies above 1, and not within the tolerance",
    Verdict.SAME: f"against a baseline: the interval lies within {1 - WITHIN:.2f} to {1 + WITHIN:.2f} (`--within`)",
    Verdict.SLOWER: "against a baseline: the interval lies under 1, and not within the tolerance",
    Verdict.REFERENCE: "the case has no claim: the ratio to a row that is only cited, without a verdict on the speed",
}
_DISTURBANCES = (
    (
        "other processes on the processors",
        f"{limits.OTHER_PROCESSORS:g} processors",
        "`accept`, `--explain`",
    ),
    ("other virtual machines", f"{limits.STOLEN:.0%} of the processors", "`accept`, `--explain`"),
    ("load of the last minute, before a run", f"{limits.LOAD:g} per processor", "`reproduce`"),
    ("other processes on a device", "one", "`doctor`, `reproduce`, `accept`, `verify`"),
    (
        "memory of a device in use before a run",
        f"{limits.MEMORY_BEFORE / 2**30:g} GiB",
        "`accept`, `verify`",
    ),
    ("a power limit below the device's own", "any", "`doctor`, `reproduce`, `accept`, `verify`"),
    ("throttling", f"{limits.SAMPLE_SECONDS:g} s, one sample", "`accept`, `verify`"),
    ("a part of a device", f"{limits.WHOLE_MEMORY:.0%} of its memory, or MIG", "`reproduce`, `accept`, `verify`"),
)
"""What disturbs a run, from when on, and which commands look for it."""
MEASURED, RUN_BY_CI, NEVER_RUN = "\N{CHECK MARK}", "\N{BLACK CIRCLE}", "\N{WHITE CIRCLE}"
_PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def generated_files(catalog: Catalog, root: Path) -> dict[Path, str]:
    """Every generated file of a checkout, and every page with a generated part, as each should be.

    `root`: the checkout. Raises FlagbenchError if a page has a part that nothing generates (usage).
    """
    docs = root / "docs"
    blocks = _blocks(catalog, root)
    files: dict[Path, str] = {}
    for name, text in reference_pages(catalog).items():
        files[docs / "reference" / name] = text
    for name, text in schema_files().items():
        files[root / "manifests" / "schema" / name] = text
    record = docs / "verdict" / "record.json"
    if record.is_file():
        for name, text in _pictures(catalog, read_record(record)):
            files[record.with_name(name)] = text
    certificate = docs / "verdict" / "certificate.json"
    if certificate.is_file():
        document = msgspec.json.decode(certificate.read_bytes(), type=Certificate)
        printed = render(_narrow_blocks(document), io.StringIO())
        files[certificate.with_name("certificate.svg")] = terminal_svg(printed, "flagbench accept")
        for chart in certificate_charts(document):
            files[certificate.with_name(f"{chart.id}.svg")] = render_svg(chart)
    if (docs / "measured" / "h100-roofs.json").is_file():
        for chart in _of_an_h100(catalog, docs / "measured"):
            files[docs / "verdict" / f"{chart.id}.svg"] = render_svg(chart)
    for page in sorted(docs.glob("*.md")):
        if page not in files:
            text = page.read_text(encoding="utf-8")
            if _PART.search(text):
                files[page] = _PART.sub(partial(_filled, page, blocks), text)
    return files


def _narrow_blocks(certificate: Certificate) -> list[Block]:
    """What `flagbench accept` prints, without limits, intervals, reasons and energy: as wide as the picture."""
    headline, action, checks, *_ = certificate_blocks(certificate)
    assert isinstance(checks, Table)
    rows = []
    for outcome, run, check, ratio, measured, against, *_ in checks.rows:
        rows.append((outcome, f"{run}: {check}", ratio.partition(" ")[0], measured, against))
    return [headline, action, Table(("OUTCOME", "CHECK", "RATIO", "MEASURED", "AGAINST"), rows)]


def _filled(page: Path, blocks: Blocks, part: re.Match[str]) -> str:
    begin, name, end = part.groups()
    if name not in blocks:
        raise FlagbenchError(
            f"{page}: nothing generates the part {name!r}", remedy=f"use one of {', '.join(sorted(blocks))}"
        )
    return f"{begin}{blocks[name]()}{end}"


def _blocks(catalog: Catalog, root: Path) -> Blocks:
    return {
        "cases-and-stacks": lambda: _cases_and_stacks(catalog, root),
        "memory": lambda: table(("case", "precision", "layout", "device", "GiB", "source"), _memory(catalog)),
        "time": lambda: table(
            ("case", "device", "run", "start, s", "a step, s", "in all, s", "record"),
            _time(root / "docs" / "measured"),
        ),
        "exit-codes": lambda: table(("code", "name", "meaning"), ((int(c), c.name, c.meaning) for c in ExitCode)),
        "verdicts": lambda: table(
            ("verdict", "meaning", "exit code"),
            ((f"`{verdict.value}`", meaning, int(verdict.exit_code)) for verdict, meaning in _MEANINGS.items()),
        ),
        "disturbances": lambda: table(("what", "limit", "who looks"), _DISTURBANCES),
        "acceptance-limits": lambda: table(
            ("limit", "a number", "against", "inconclusive below", "fails below", "sound devices seen", "source"),
            acceptance_limits(catalog),
        ),
        "fleet-limits": lambda: table(
            ("a number", "look from", "drain from", "least spread", "source"), fleet_limits(catalog)
        ),
        "host-layers": lambda: layers(root, "flagbench"),
        "image-layers": lambda: layers(root, "flagbench_cases"),
    }


def _cases_and_stacks(catalog: Catalog, root: Path) -> str:
    """A row for each case, a column for each stack: how far it was tested, how many claims; most devices first."""
    stacks = sorted(catalog.stacks.values(), key=lambda stack: -len(stack.accelerators))
    measured = _measured(root / "docs" / "measured")
    claims = Counter((claim.case, claim.stack) for claim in catalog.claims.values())
    rows = []
    for case in catalog.cases.values():
        cells = []
        for stack in stacks:
            count = claims[case.name, stack.name]
            cell = _tested(case, stack, measured)
            if count:
                cell += f" {count}"
            cells.append(cell)
        rows.append((f"`{case.name}`", case.title, *cells))
    return table(("case", "", *(f"`{stack.name}`" for stack in stacks)), rows)


def _tested(case: Case, stack: Stack, measured: set[tuple[str, str]]) -> str:
    """How far a case was tested on a stack."""
    if case.name not in stack.runs:
        return "does not run"
    if (case.name, stack.name) in measured:
        return MEASURED
    if stack.device_kind == "cpu":
        return RUN_BY_CI
    return NEVER_RUN


def _measured(folder: Path) -> set[tuple[str, str]]:
    """Case and stack of every record that was made on a device and is kept with the docs."""
    measured = set()
    for path in folder.rglob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("schema") == "record/v1":
            measured.add((document["case"], document["stack"]))
    return measured


def _memory(catalog: Catalog) -> Iterator[tuple[str, ...]]:
    """What was measured of the memory of each case, as its manifest says."""
    for case in catalog.cases.values():
        for memory in case.memory:
            layout = ""
            if memory.layout is not None:
                layout = " ".join(f"{axis}{memory.layout[axis]}" for axis in ("dp", "tp", "pp"))
            folder, _, name = memory.source.rpartition("/")
            source = f"`{memory.source}`"
            if folder == "docs/measured":
                source = f"[{name.removesuffix('.json')}](measured/{name})"
            yield f"`{case.name}`", memory.precision, layout, memory.device, f"{memory.gib:g}", source


def _time(folder: Path) -> Iterator[tuple[str, ...]]:
    """How long each run on a device took, as its record in docs/measured says."""
    for path in sorted(folder.glob("*.json"), key=lambda path: path.name.partition("-")[2]):
        record = read_record(path)
        conditions, window, timing = record.conditions, record.window, record.timing
        run = [str(conditions["precision"])]
        if conditions.get("batch_size") is not None:
            run.append(f"batch {conditions['batch_size']}")
        step = ""
        if window is not None and window.step_median is not None:
            run.append(f"{window.steps} steps after {window.first_step}")
            step = f"{window.step_median:.2g}"
        assert timing.init is not None
        assert timing.e2e is not None
        yield (
            f"`{record.case}`",
            str(conditions["device_model"]),
            ", ".join(run),
            f"{timing.init:.0f}",
            step,
            f"{timing.e2e:.0f}",
            f"[{path.stem}](measured/{path.name})",
        )


def _of_an_h100(catalog: Catalog, measured: Path) -> Iterator[Chart]:
    """What an H100 reached of its peaks, and of a published row."""
    case, claim = catalog.cases["roofs"], catalog.claims["roofs/h100-1x1-mamf-bf16"]
    roofs = recompute(read_record(measured / "h100-roofs.json"), case)
    run = read_record(measured / "h100-roofs-mamf-bf16.json")
    for chart in (roof_chart(roofs.record, roofs.device), verdict_chart(verify_claim([run], claim, case))):
        assert chart is not None
        yield chart


def _pictures(catalog: Catalog, record: Record) -> Iterator[tuple[str, str]]:
    """The verdict on a shipped record, and its charts, by file."""
    result = verify_nearest([record], catalog)
    assert result is not None
    yield "verdict.svg", terminal_svg(verdict_table([record], result, stream=io.StringIO()), "flagbench verify last")
    for chart in (step_chart(record), loss_chart({record.record_id: loss_curve(record)})):
        if isinstance(chart, Chart):
            yield f"{chart.id}.svg", render_svg(chart)
