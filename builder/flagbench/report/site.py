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
from flagbench.manifests.lookup import device_reported_as
from flagbench.manifests.model import Case, Catalog
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
from flagbench.report.verdict_page import anomaly_lines, headline, verdict_blocks
from flagbench.verdict import Verdict, VerifyResult, choose_claim, compare_records
from flagbench.verdict.claim_limits import HIGH, LOW
from flagbench.verdict.conditions import shown
from flagbench.verdict.explain import explain
from flagbench.verdict.losses import loss_curve
from flagbench.verdict.recompute import recompute
from flagbench.verdict.result import Ratio, number_text
from flagbench.verdict.series import series_verdict, with_series

INDEX_PAGE = "index.html"
NEWEST = 50
"""Most records that have a page of their own."""
_CONFIGURATIONS = 6
"""Most charts of a device; the newest configurations are kept."""


def file_name(kind: str, name: str) -> str:
    """The file of a page: its kind and name, with a digest where the name has unsafe characters."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100]
    if plain == name:
        return f"{kind}-{name}.html"
    return f"{kind}-{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.html"


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
    """A page of runs of one configuration: the verdict on them, charts, and the content of their records.

    Args:
        series: the series of the records, if they are of one.
        before: an earlier run of the same configuration and seed, whose losses are shown beside those of this one.
        charts: further charts, after those of the runs.
        listing: a table of the records, as the last section.
    """
    first = records[0]
    case = catalog.cases.get(first.case)
    result = _verdict_on(records, case, catalog, series)
    curves = {record.record_id: loss_curve(record) for record in records}
    lead = f"{first.case}:{first.stack} of {first.created_at}"
    if before is not None and case is not None and len(records) == 1:
        losses = compare_records(before, first, case).losses
        if losses is not None:
            lead += f". Losses beside the run before, {before.record_id}: {losses.reason}"
            curves[before.record_id] = loss_curve(before)
    sections = _run_sections(records, case, result)
    if listing is not None:
        sections["Records"] = [listing]
    drawn = [*_run_charts(records, case, result), loss_chart(curves), *charts]
    if result is None:
        return page(title, lead, drawn, sections, home=home)
    return page(
        title,
        lead,
        drawn,
        sections,
        home=home,
        verdict=result.outcome,
        tone=TONES[result.style],
        headline=headline(result).removeprefix(result.outcome),
    )


def _verdict_on(
    records: Sequence[Record], case: Case | None, catalog: Catalog, series: Series | None
) -> VerifyResult | None:
    """The verdict on runs, or on their series; None where there is nothing to compare them with."""
    if case is None:
        return None
    if series is None:
        return verify_nearest(records, catalog)
    claim = choose_claim(records[0], case, catalog.claims.values())
    if claim is not None:
        _, result = series_verdict(series, claim, case)
        return result
    reference = verify_nearest(records, catalog)
    if reference is None:
        return None
    return with_series(reference, Runs([*series.records], [series]).summaries("runs"))


def _run_sections(records: Sequence[Record], case: Case | None, result: VerifyResult | None) -> Sections:
    """What the verdict rests on, where the time went and, of a single run, all that its record says."""
    alone = len(records) == 1
    # A record of measurements shows each of them once: in its own table.
    has_measurement_table = alone and case is not None and case.kind == "measure"
    blocks = verdict_blocks(records, result, wide=True, others=not has_measurement_table)
    sections: Sections = {}
    if result is None:
        sections["Measured"] = blocks
    elif result.verdict is Verdict.REFERENCE:
        sections["Measured"] = blocks[1:]  # without the headline, which the page begins with
    else:
        sections["What the verdict rests on"] = blocks[1:]
    if result is not None and case is not None:
        explanation = explain(records, result, case)
        if explanation.gap is not None:
            sections["Where the time went"] = explanation_blocks(explanation)
    if alone:
        sections["Record"] = record_page(records[0], ())
    return sections


def _run_charts(
    records: Sequence[Record], case: Case | None, result: VerifyResult | None
) -> list[Chart | Note | None]:
    """The ratios of the verdict and, of a single run, its steps, clocks and roofs."""
    charts: list[Chart | Note | None] = []
    if result is not None:
        charts.append(verdict_chart(result))
    if len(records) > 1:
        return charts
    record = records[0]
    charts += (step_chart(record), clock_chart(record))
    if case is not None:
        charts += _roof_charts(record, recompute(record, case).device)
    return charts


def store_pages(store: Store) -> Iterator[tuple[str, str]]:
    """The pages of a store, each with the name of its file; the index is the last. Deterministic."""
    catalog = load_catalog()
    listed = with_verdicts(store, store.list())
    readable = [entry for entry in listed if entry.summary is not None]
    with_page: set[str] = set()
    """Ids of the records that have a page."""
    for record_id, text in _record_pages(store, catalog, readable[:NEWEST]):
        with_page.add(record_id)
        yield file_name("record", record_id), text
    claims = _grouped(readable, lambda summary: summary.claim)
    for claim, entries in claims.items():
        yield file_name("claim", claim), _claim_page(claim, catalog.claims.get(claim), entries, with_page)
    devices = _grouped(readable, lambda summary: summary.device)
    for device, entries in devices.items():
        yield file_name("device", device), _device_page(store, device, catalog, entries, with_page)
    by_id = {entry.record_id: entry for entry in readable}
    series = [document for _, document in load_all(store) if isinstance(document, SeriesDocument)]
    for document in series:
        entries = [by_id[run.record_id] for run in document.runs if run.record_id in by_id]
        if entries:
            text = _series_page(store, catalog, document, entries, with_page)
            yield file_name("series", document.series_id), text
    yield INDEX_PAGE, _index(store, listed, claims, devices, series, with_page)


def _record_pages(store: Store, catalog: Catalog, newest: Sequence[StoredRecord]) -> Iterator[tuple[str, str]]:
    """The ids and pages of records, the oldest first; those that cannot be read or judged have none."""
    # By digest of the configuration, the latest of these records of a run that ended well and has losses.
    latest: dict[str, Record] = {}
    for entry, content in store.read_all(newest[::-1]):
        if isinstance(content, FlagbenchError):
            continue
        try:
            record = read_record(content)
            before = None
            if record.status.state == "ok":
                before = latest.get(record.config_digest or "")
            text = run_page([record], catalog, entry.record_id, home=INDEX_PAGE, before=before)
        except FlagbenchError:
            continue
        yield entry.record_id, text
        if record.status.state == "ok" and record.config_digest is not None and loss_curve(record):
            latest[record.config_digest] = record


def _grouped(entries: Iterable[StoredRecord], key: Callable[[Summary], str | None]) -> dict[str, list[StoredRecord]]:
    """Records by a name in their summaries, in alphabetical order; those without the name are left out."""
    groups: dict[str, list[StoredRecord]] = {}
    for entry in entries:
        if entry.summary is None:
            continue
        name = key(entry.summary)
        if name is not None:
            groups.setdefault(name, []).append(entry)
    return dict(sorted(groups.items()))


def _claim_page(claim: str, row: Claim | None, entries: Sequence[StoredRecord], with_page: set[str]) -> str:
    lead = "This row is no longer in the catalogue."
    published: list[Block] = []
    if row is not None:
        lead = row.title
        published = _published_blocks(row)
    runs = []
    for entry in entries:
        ratio = _ratio(entry)
        if ratio is not None:
            runs.append(Run(entry.created_at, entry.record_id, ratio.value, ratio.ci95, _host(entry)))
    chart = run_chart(runs, "All comparable runs against the published row", "ratio", band=(LOW, HIGH))
    listing = _listing(entries, with_page, with_claims=False)
    return page(claim, lead, [chart], {"Records": [listing], "As published": published}, home=INDEX_PAGE)


def _published_blocks(row: Claim) -> list[Block]:
    """What the publisher printed, where, and its anomalies."""
    metrics = []
    for metric in row.metrics:
        metrics.append((metric.name, metric.printed or f"{metric.value:.15g}", metric.unit))
    conditions = [(name, shown(condition)) for name, condition in row.conditions.items()]
    return [
        Lines((f"{row.source.file} at {row.source.commit}", Link(row.source.url, row.source.url))),
        Table(("metric", "published", "unit"), metrics),
        Table(("condition", "published"), conditions),
        Lines(anomaly_lines(row.anomalies)),
    ]


def _device_page(
    store: Store, device: str, catalog: Catalog, entries: Sequence[StoredRecord], with_page: set[str]
) -> str:
    """The page of a device model: its newest roofs against its peaks, and the runs of each configuration."""
    model = device_reported_as(device, catalog)
    configurations: dict[tuple[str | None, str | None], list[StoredRecord]] = {}
    measuring = []
    for entry in entries:
        if entry.summary is not None and entry.summary.state == "ok":
            configurations.setdefault((entry.summary.unseeded_digest, entry.summary.gate), []).append(entry)
        case = catalog.cases.get(entry.case)
        if case is not None and case.kind == "measure":
            measuring.append(entry)
    charts = _roofs(store, measuring, model)
    for number, runs in enumerate([*configurations.values()][:_CONFIGURATIONS], 1):
        title = f"All runs of {runs[0].case}:{runs[0].stack}"
        charts.append(run_chart(_speeds(runs), title, _gate(runs), id=f"runs-{number}"))
    lead = "Each chart of runs shows one configuration, with any seed, on all machines with this device."
    sections: Sections = {"Records": [_listing(entries, with_page)], "As published": []}
    if model is not None:
        sections["As published"] = _peaks(model)
    return page(device, lead, charts, sections, home=INDEX_PAGE)


def _roofs(store: Store, entries: Sequence[StoredRecord], device: DeviceModel | None) -> list[Chart | Note | None]:
    """The roofs of the newest sound record."""
    for entry in entries:
        if entry.summary is not None and entry.summary.sound:
            with suppress(FlagbenchError):
                return _roof_charts(read_record(store.read(entry)), device)
    return []


def _roof_charts(record: Record, device: DeviceModel | None) -> list[Chart | Note | None]:
    """The measurements beside the peaks of a device, then those without a published peak."""
    return [roof_chart(record, device), *rate_charts(record, device)]


def _peaks(device: DeviceModel) -> list[Block]:
    rows = []
    for name, peak in device.peaks.items():
        rows.append((name, f"{number_text(peak.flops / 1e12)} TFLOP/s", peak.source))
    bandwidth = device.limits.memory_bandwidth
    if bandwidth is not None:
        rows.append(("memory", f"{number_text(bandwidth.value / 1e9)} GB/s", bandwidth.source))
    return [Table(("published peak", "value", "source"), rows), Lines((Link(device.datasheet, device.datasheet),))]


def _series_page(
    store: Store, catalog: Catalog, series: SeriesDocument, entries: Sequence[StoredRecord], with_page: set[str]
) -> str:
    """The page of a series; it has a verdict if all of its records have a page."""
    title = f"Series {series.series_id}"
    chart = run_chart(_speeds(entries), "All runs of the series", _gate(entries))
    image = f"{series.request.case}:{series.request.stack}"
    lead = f"{len(entries)} of {series.requested} runs of {image}, from {series.started_at} on."
    with suppress(FlagbenchError):
        if all(entry.record_id in with_page for entry in entries):
            checked = check_series(store, series)
            records = checked.records or checked.failed
            if records:
                listing = _listing(entries, with_page)
                return run_page(
                    records, catalog, title, home=INDEX_PAGE, series=checked, charts=[chart], listing=listing
                )
    lead += f" The verdict on all of them: flagbench verify {series.series_id}"
    return page(title, lead, [chart], {"Records": [_listing(entries, with_page)]}, home=INDEX_PAGE)


def _speeds(entries: Iterable[StoredRecord]) -> list[Run]:
    """The gate of each record that has it."""
    runs = []
    for entry in entries:
        summary = entry.summary
        if summary is None or summary.gate not in summary.metrics:
            continue
        runs.append(Run(entry.created_at, entry.record_id, summary.metrics[summary.gate], host=summary.host))
    return runs


def _gate(entries: Iterable[StoredRecord]) -> str:
    """The metric that decides, with its unit: `p_core, samples/s`."""
    for entry in entries:
        summary = entry.summary
        if summary is None or summary.gate is None:
            continue
        if summary.gate_unit is None:
            return summary.gate
        return f"{summary.gate}, {summary.gate_unit}"
    return "speed"


def _host(entry: StoredRecord) -> str | None:
    if entry.summary is None:
        return None
    return entry.summary.host


def _ratio(entry: StoredRecord) -> Ratio | None:
    if entry.summary is None or entry.summary.ratio is None:
        return None
    ratio, low, high = entry.summary.ratio
    if low is None or high is None:
        return Ratio(ratio)
    return Ratio(ratio, (low, high))


def _listing(entries: Iterable[StoredRecord], with_page: set[str], *, with_claims: bool = True) -> Table:
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
        speed_text = "-"
        if speed is not None:
            speed_text = f"{summary.gate} {speed}"
        record_page_name = None
        if entry.record_id in with_page:
            record_page_name = file_name("record", entry.record_id)
        row = [
            outcome_of(entry) or "-",
            str(_ratio(entry) or "-"),
            Link(entry.record_id, record_page_name),
            speed_text,
            summary.host or "-",
        ]
        if with_claims:
            row.append(_claim_link(summary.claim))
        rows.append(row)
    return Table(columns, rows)


def _claim_link(claim: str | None) -> str:
    if not claim:
        return "-"
    return Link(claim, file_name("claim", claim))


def _index(
    store: Store,
    listed: Sequence[StoredRecord],
    claims: Mapping[str, Sequence[StoredRecord]],
    devices: Mapping[str, Sequence[StoredRecord]],
    series: Sequence[SeriesDocument],
    with_page: set[str],
) -> str:
    newest = [entry for entry in listed if entry.record_id in with_page]
    lead = f"{len(listed):,} records in {store.url}: {_counts_of_verdicts(listed)}."
    lead += " The page of each device lists all of its records."
    sections: Sections = {
        "Published rows": [_groups("claim", claims)],
        "Devices": [_groups("device", devices)],
        "Series": [_series_table(series)],
        f"The newest {len(newest)} records": [_listing(newest, with_page)],
    }
    return page("Results", lead, [], sections)


def _counts_of_verdicts(entries: Sequence[StoredRecord]) -> str:
    """`2 BELOW, 11 REPRODUCED, 1 without a verdict, 1 that cannot be read`."""
    verdicts: Counter[str] = Counter()
    unreadable = 0
    for entry in entries:
        if entry.summary is None:
            unreadable += 1
        else:
            verdicts[outcome_of(entry) or "without a verdict"] += 1
    counts = [f"{count:,} {verdict}" for verdict, count in sorted(verdicts.items())]
    if unreadable:
        counts.append(f"{unreadable:,} that cannot be read")
    return ", ".join(counts)


def _series_table(series: Sequence[SeriesDocument]) -> Table:
    """A row for each series, the newest first."""
    rows = []
    for document in sorted(series, key=lambda document: (document.started_at, document.series_id), reverse=True):
        ended_well = sum(run.state == "ok" for run in document.runs)
        rows.append(
            (
                Link(document.series_id, file_name("series", document.series_id)),
                f"{document.request.case}:{document.request.stack}",
                document.started_at,
                f"{ended_well} of {document.requested}",
            )
        )
    return Table(("series", "image", "started", "runs that ended well"), rows)


def _groups(kind: str, groups: Mapping[str, Sequence[StoredRecord]]) -> Table:
    """A row for each claim or device, with its newest record."""
    rows = []
    for name, entries in groups.items():
        newest = entries[0]
        rows.append(
            (
                outcome_of(newest) or "-",
                str(_ratio(newest) or "-"),
                Link(name, file_name(kind, name)),
                newest.created_at,
                f"{len(entries):,}",
            )
        )
    columns = ("newest verdict", "newest ratio", kind, "newest record", "records")
    return Table(columns, rows, frozenset({"records"}))
