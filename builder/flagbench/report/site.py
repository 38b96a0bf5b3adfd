"""The pages of a report: an index, one for each claim, device and series, and those of the newest records."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from flagbench.console.page import Block, Lines, Table
from flagbench.errors import FlagbenchError
from flagbench.expect.rows import verify_nearest
from flagbench.history.selection import outcome_of, speed_of
from flagbench.history.verdicts import with_verdicts
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.load import load_catalog
from flagbench.manifests.model import Catalog
from flagbench.manifests.rows import Claim
from flagbench.records.index import Summary
from flagbench.records.model import Record
from flagbench.records.read import read_record
from flagbench.records.runs_and_series import Runs
from flagbench.records.series import Series, check_series, load_all
from flagbench.records.series_document import SeriesDocument
from flagbench.records.store import Store, StoredRecord
from flagbench.report.charts import (
    TONES,
    Chart,
    Note,
    Run,
    clock_chart,
    loss_chart,
    rate_charts,
    roof_chart,
    run_chart,
    step_chart,
    verdict_chart,
)
from flagbench.report.explanation_page import explanation_blocks
from flagbench.report.html import Link, Sections, page
from flagbench.report.record_page import record_page
from flagbench.report.verdict_page import verdict_blocks
from flagbench.verdict import Verdict, choose_claim, compare_records
from flagbench.verdict.claim_limits import HIGH, LOW
from flagbench.verdict.conditions import shown
from flagbench.verdict.explain import explain
from flagbench.verdict.losses import loss_curve
from flagbench.verdict.recompute import recompute
from flagbench.verdict.result import Ratio, number_text
from flagbench.verdict.series import series_verdict, with_series

INDEX_PAGE = "index.html"
NEWEST = 50
"""Records that have a page of their own."""
_CONFIGURATIONS = 6
"""Most charts of a device, of its newest configurations."""


def file_name(kind: str, name: str) -> str:
    """The file of a page: its kind and name, with a digest where the name has characters that a file cannot."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100]
    digest = "" if plain == name else f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{kind}-{plain}{digest}.html"


def run_page(
    records: Sequence[Record],
    catalog: Catalog,
    title: str,
    *,
    home: str = "",
    series: Series | None = None,
    before: Record | None = None,
    charts: Sequence[Chart | Note | None] = (),
    listing: Table | None = None,
) -> str:
    """A page of runs of one configuration: the verdict on them, charts, and all that their records say.

    `series`: the one that the records are of. `before`: an earlier run of the same configuration and seed, whose
    losses are shown beside those of the first one. `charts`, `listing`: what follows.
    """
    case, first = catalog.cases.get(records[0].case), records[0]
    claim = None if case is None else choose_claim(first, case, catalog.claims.values())
    result = None
    if case is not None and claim is not None and series is not None:
        result = series_verdict(series, claim, case)[1]
    elif case is not None:
        result = verify_nearest(records, catalog)
        if result is not None and series is not None:
            result = with_series(result, Runs([*series.records], [series]).summaries("runs"))
    # A record of measurements shows each of them once: in its own table.
    alone = len(records) == 1
    measures = case is not None and case.kind == "measure"
    parts = verdict_blocks(records, result, wide=True, others=not (alone and measures))
    judged = result is not None and result.verdict is not Verdict.REFERENCE
    sections: Sections = {"What the verdict rests on" if judged else "Measured": parts}
    drawn: list[Chart | Note | None] = [None if result is None else verdict_chart(result)]
    headline = ""
    if result is not None and case is not None:
        heading = parts.pop(0)
        headline = heading.lines[0].removeprefix(result.outcome) if isinstance(heading, Lines) else ""
        explanation = explain(records, result, case)
        if explanation.gap is not None:
            sections["Where the time went"] = explanation_blocks(explanation)
    curves = {record.record_id: loss_curve(record) for record in records}
    lead = f"{first.case}:{first.stack} of {first.created_at}"
    if alone:
        drawn += [step_chart(first), clock_chart(first)]
        if case is not None:
            drawn += _roof_charts(first, recompute(first, case).device)
        sections["Record"] = record_page(first, ())
        if before is not None and case is not None:
            losses = compare_records(before, first, case).losses
            if losses is not None:
                lead += f". Losses beside the run before, {before.record_id}: {losses.reason}"
                curves[before.record_id] = loss_curve(before)
    if listing is not None:
        sections["Records"] = [listing]
    return page(
        title,
        lead,
        [*drawn, loss_chart(curves), *charts],
        sections,
        home=home,
        verdict=None if result is None else result.outcome,
        tone="" if result is None else TONES[result.style],
        headline=headline,
    )


def store_pages(store: Store) -> Iterator[tuple[str, str]]:
    """The pages of a store, each with the name of its file; the index is the last. Deterministic."""
    catalog = load_catalog()
    found = with_verdicts(store, store.list())
    entries = [entry for entry in found if entry.summary is not None]
    pages: set[str] = set()
    newest: dict[str, Record] = {}
    """By digest of the configuration, the newest record so far of a run that ended well and has losses."""
    for entry, content in store.read_all(entries[:NEWEST][::-1]):
        with suppress(FlagbenchError):
            if isinstance(content, FlagbenchError):
                raise content
            record = read_record(content)
            ended_well = record.status.state == "ok"
            before = newest.get(record.config_digest or "") if ended_well else None
            text = run_page([record], catalog, entry.record_id, home=INDEX_PAGE, before=before)
            pages.add(entry.record_id)
            yield file_name("record", entry.record_id), text
            if ended_well and record.config_digest is not None and loss_curve(record):
                newest[record.config_digest] = record
    claims = _by(entries, lambda summary: summary.claim)
    for claim, of_claim in claims.items():
        yield file_name("claim", claim), _claim_page(claim, catalog.claims.get(claim), of_claim, pages)
    devices = _by(entries, lambda summary: summary.device)
    for device, of_device in devices.items():
        yield file_name("device", device), _device_page(store, device, catalog, of_device, pages)
    by_id = {entry.record_id: entry for entry in entries}
    series = [each for _, each in load_all(store) if isinstance(each, SeriesDocument)]
    for each in series:
        runs = [by_id[run.record_id] for run in each.runs if run.record_id in by_id]
        if runs:
            yield file_name("series", each.series_id), _series_page(store, catalog, each, runs, pages)
    yield INDEX_PAGE, _index(store, found, claims, devices, series, pages)


def _by(entries: Iterable[StoredRecord], key: Callable[[Summary], str | None]) -> dict[str, list[StoredRecord]]:
    """Records by what the index says of them, in alphabetical order; those of which it says nothing are left out."""
    found: dict[str, list[StoredRecord]] = {}
    for entry in entries:
        if entry.summary is not None and (name := key(entry.summary)) is not None:
            found.setdefault(name, []).append(entry)
    return dict(sorted(found.items()))


def _claim_page(claim: str, row: Claim | None, entries: Sequence[StoredRecord], pages: set[str]) -> str:
    facts: list[Block] = []
    if row is not None:
        facts = [
            Lines((f"{row.source.file} at {row.source.commit}", Link(row.source.url, row.source.url))),
            Table(
                ("metric", "published", "unit"),
                [(m.name, m.printed or f"{m.value:.15g}", m.unit) for m in row.metrics],
            ),
            Table(("condition", "published"), [(name, shown(value)) for name, value in row.conditions.items()]),
            Lines(tuple(f"anomaly of {each.field}: {each.note.strip()}" for each in row.anomalies)),
        ]
    runs = [
        Run(entry.created_at, entry.record_id, ratio.value, ratio.ci95, _host(entry))
        for entry in entries
        if (ratio := _ratio(entry))
    ]
    chart = run_chart(runs, "All comparable runs against the published row", "ratio", band=(LOW, HIGH))
    lead = row.title if row is not None else "This row is no longer in the catalogue."
    sections: Sections = {"Records": [_listing(entries, pages, with_claims=False)], "As published": facts}
    return page(claim, lead, [chart], sections, home=INDEX_PAGE)


def _device_page(
    store: Store, device: str, catalog: Catalog, entries: Sequence[StoredRecord], pages: set[str]
) -> str:
    """The page of a device model: its newest roofs against its peaks, and the runs of each configuration."""
    known = next((model for model in catalog.devices.values() if model.has_name(device)), None)
    configurations: dict[tuple[str | None, str | None], list[StoredRecord]] = {}
    for entry in entries:
        if entry.summary is not None and entry.summary.state == "ok":
            configurations.setdefault((entry.summary.unseeded_digest, entry.summary.gate), []).append(entry)
    measuring = [name for name, case in catalog.cases.items() if case.kind == "measure"]
    charts = _roofs(store, [entry for entry in entries if entry.case in measuring], known)
    charts += [
        run_chart(_speeds(runs), f"All runs of {runs[0].case}:{runs[0].stack}", _gate(runs), id=f"runs-{number}")
        for number, runs in enumerate([*configurations.values()][:_CONFIGURATIONS], 1)
    ]
    lead = "Each chart of runs shows one configuration, with any seed, on all machines with this device."
    peaks = [] if known is None else _peaks(known)
    sections: Sections = {"Records": [_listing(entries, pages)], "As published": peaks}
    return page(device, lead, charts, sections, home=INDEX_PAGE)


def _roofs(store: Store, entries: Sequence[StoredRecord], device: DeviceModel | None) -> list[Chart | Note | None]:
    """What the newest sound record reached."""
    for entry in entries:
        if entry.summary is not None and entry.summary.sound:
            with suppress(FlagbenchError):
                return _roof_charts(read_record(store.read(entry)), device)
    return []


def _roof_charts(record: Record, device: DeviceModel | None) -> list[Chart | Note | None]:
    """The measurements beside the peaks of a device, and those that have none."""
    return [roof_chart(record, device), *rate_charts(record, device)]


def _peaks(device: DeviceModel) -> list[Block]:
    rows = [(name, f"{number_text(peak.flops / 1e12)} TFLOP/s", peak.source) for name, peak in device.peaks.items()]
    if (bandwidth := device.limits.memory_bandwidth) is not None:
        rows.append(("memory", f"{number_text(bandwidth.value / 1e9)} GB/s", bandwidth.source))
    return [Table(("published peak", "value", "source"), rows), Lines((Link(device.datasheet, device.datasheet),))]


def _series_page(
    store: Store, catalog: Catalog, series: SeriesDocument, entries: Sequence[StoredRecord], pages: set[str]
) -> str:
    """The page of a series, with a verdict where all of its records have a page."""
    title = f"Series {series.series_id}"
    chart = run_chart(_speeds(entries), "All runs of the series", _gate(entries))
    image = f"{series.request.case}:{series.request.stack}"
    lead = f"{len(entries)} of {series.requested} runs of {image}, from {series.started_at} on."
    with suppress(FlagbenchError):
        if all(entry.record_id in pages for entry in entries):
            checked = check_series(store, series)
            if found := checked.records or checked.failed:
                listing = _listing(entries, pages)
                return run_page(
                    found, catalog, title, home=INDEX_PAGE, series=checked, charts=[chart], listing=listing
                )
    lead += f" The verdict on all of them: flagbench verify {series.series_id}"
    return page(title, lead, [chart], {"Records": [_listing(entries, pages)]}, home=INDEX_PAGE)


def _speeds(entries: Iterable[StoredRecord]) -> list[Run]:
    """The gate of each record that has it."""
    return [
        Run(entry.created_at, entry.record_id, entry.summary.metrics[entry.summary.gate], host=_host(entry))
        for entry in entries
        if entry.summary is not None and entry.summary.gate in entry.summary.metrics
    ]


def _gate(entries: Iterable[StoredRecord]) -> str:
    """The metric that decides, with its unit: `p_core, samples/s`."""
    for entry in entries:
        summary = entry.summary
        if summary is not None and summary.gate is not None:
            return summary.gate if summary.gate_unit is None else f"{summary.gate}, {summary.gate_unit}"
    return "speed"


def _host(entry: StoredRecord) -> str | None:
    return None if entry.summary is None else entry.summary.host


def _ratio(entry: StoredRecord) -> Ratio | None:
    if entry.summary is None or entry.summary.ratio is None:
        return None
    value, low, high = entry.summary.ratio
    return Ratio(value, None if low is None or high is None else (low, high))


def _listing(entries: Iterable[StoredRecord], pages: set[str], *, with_claims: bool = True) -> Table:
    """A row for each record, which links to its page if it has one and, `with_claims`, to that of its claim."""
    columns = ["verdict", "ratio", "record", "speed", "host"]
    if with_claims:
        columns.append("published row")
    rows = []
    for entry in entries:
        summary = entry.summary
        if summary is None:
            continue
        speed = speed_of(summary)
        row = [
            outcome_of(entry) or "-",
            str(_ratio(entry) or "-"),
            Link(entry.record_id, file_name("record", entry.record_id) if entry.record_id in pages else None),
            "-" if speed is None else f"{summary.gate} {speed}",
            summary.host or "-",
        ]
        if with_claims:
            row.append(Link(summary.claim, file_name("claim", summary.claim)) if summary.claim else "-")
        rows.append(row)
    return Table(columns, rows)


def _index(
    store: Store,
    found: Sequence[StoredRecord],
    claims: Mapping[str, Sequence[StoredRecord]],
    devices: Mapping[str, Sequence[StoredRecord]],
    series: Sequence[SeriesDocument],
    pages: set[str],
) -> str:
    verdicts = Counter(outcome_of(entry) or "without a verdict" for entry in found if entry.summary is not None)
    counted = [f"{count:,} {verdict}" for verdict, count in sorted(verdicts.items())]
    unreadable = sum(entry.summary is None for entry in found)
    counted += [f"{unreadable:,} that cannot be read" if unreadable else ""]
    runs = [
        (
            Link(each.series_id, file_name("series", each.series_id)),
            f"{each.request.case}:{each.request.stack}",
            each.started_at,
            f"{sum(run.state == 'ok' for run in each.runs)} of {each.requested}",
        )
        for each in sorted(series, key=lambda each: (each.started_at, each.series_id), reverse=True)
    ]
    newest = [entry for entry in found if entry.record_id in pages]
    lead = f"{len(found):,} records in {store.url}: {', '.join(filter(None, counted))}."
    lead += " The page of each device lists all of its records."
    sections: Sections = {
        "Published rows": [_groups("claim", claims)],
        "Devices": [_groups("device", devices)],
        "Series": [Table(("series", "image", "started", "runs that ended well"), runs)],
        f"The newest {len(newest)} records": [_listing(newest, pages)],
    }
    return page("Results", lead, [], sections)


def _groups(kind: str, groups: Mapping[str, Sequence[StoredRecord]]) -> Table:
    """A row for each claim or device, with its newest record."""
    rows = [
        (
            outcome_of(entries[0]) or "-",
            str(_ratio(entries[0]) or "-"),
            Link(name, file_name(kind, name)),
            entries[0].created_at,
            f"{len(entries):,}",
        )
        for name, entries in groups.items()
    ]
    return Table(("newest verdict", "newest ratio", kind, "newest record", "records"), rows, frozenset({"records"}))
