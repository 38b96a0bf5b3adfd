"""The pages of `flagbench report`: those of a whole store, or one page of the runs that were named.

The report of a store has an index, a page for each claim (a published row with which a record was compared), device
and series, and a page for each of the newest records. `html` writes a page, `charts` makes its charts.
"""

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
from flagbench.report.html import Link, Sections, render_page
from flagbench.report.record_page import record_page
from flagbench.report.verdict_page import NOTHING, anomaly_lines, headline, ratio_text, verdict_blocks
from flagbench.verdict import Verdict, VerifyResult, choose_claim, compare_records
from flagbench.verdict.claim_limits import HIGH, LOW
from flagbench.verdict.conditions import shown
from flagbench.verdict.explain import explain
from flagbench.verdict.losses import loss_curve
from flagbench.verdict.recompute import recompute
from flagbench.verdict.result import Ratio, number_text
from flagbench.verdict.series import series_verdict, with_series

INDEX_PAGE = "index.html"
MOST_RECORD_PAGES = 50
"""Most records that have a page; the newest are kept."""
_MOST_CONFIGURATIONS = 6
"""Most charts of runs on the page of a device; the newest configurations are kept."""
_MOST_NAME_CHARACTERS = 100
"""Most characters of a name in the name of a file: file systems allow 255 bytes with its kind and its digest."""


def file_name(kind: str, name: str) -> str:
    """Return the name of the file of a page, such as `claim-NAME.html`.

    A name that is long or has unsafe characters is shortened and gets a digest, so that no two names share a file.
    """
    safe_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:_MOST_NAME_CHARACTERS]
    if safe_name == name:
        return f"{kind}-{name}.html"
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{kind}-{safe_name}-{digest}.html"


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
    """Return the page of runs of one configuration: the verdict on them, charts, and what is in their records.

    Args:
        home: the address of the index; empty for a page without one.
        series: the series of the records, if they are the runs of a series.
        before: an earlier run of the same configuration and seed; if a single run is shown, the losses of both are.
        charts: further charts, after those of the runs.
        listing: a table of the records, as the last section.
    """
    record = records[0]
    case = catalog.cases.get(record.case)
    result = _verdict_on(records, case, catalog, series)
    curves = {record.record_id: loss_curve(record) for record in records}
    lead = f"{record.case}:{record.stack} of {record.created_at}"
    if before is not None and case is not None and len(records) == 1:
        losses = compare_records(before, record, case).losses
        if losses is not None:
            lead += f". Losses beside the run before, {before.record_id}: {losses.reason}"
            curves[before.record_id] = loss_curve(before)
    sections = _run_sections(records, case, result)
    if listing is not None:
        sections["Records"] = [listing]
    all_charts = [*_run_charts(records, case, result), loss_chart(curves), *charts]
    if result is None:
        return render_page(title, lead, all_charts, sections, home=home)
    return render_page(
        title,
        lead,
        all_charts,
        sections,
        home=home,
        verdict=result.outcome,
        tone=TONES[result.style],
        headline=headline(result).removeprefix(result.outcome),
    )


def _verdict_on(
    records: Sequence[Record], case: Case | None, catalog: Catalog, series: Series | None
) -> VerifyResult | None:
    """Return the verdict on runs, or on their series; None if there is nothing to compare them with."""
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
    """Return what the verdict rests on, where the time went and, for a single run, all that is in its record."""
    single_run = len(records) == 1
    # The page of a record of measurements has a table of them, so they are not shown among the metrics again.
    has_measurement_table = single_run and case is not None and case.kind == "measure"
    blocks = verdict_blocks(records, result, wide=True, with_other_metrics=not has_measurement_table)
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
    if single_run:
        sections["Record"] = record_page(records[0], ())
    return sections


def _run_charts(
    records: Sequence[Record], case: Case | None, result: VerifyResult | None
) -> list[Chart | Note | None]:
    """Return a chart of the verdict's ratios and, for a single run, charts of its steps, clocks and roofs.

    A roof is the rate of one operation, such as a matmul or a copy, that the device reached without the model.
    """
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


def store_pages(store: Store, other_pages: Sequence[Link] = ()) -> Iterator[tuple[str, str]]:
    """Yield the pages of a store, each after the name of its file; the index is the last.

    The same store gives the same pages. `other_pages` are links of the index to pages that are made elsewhere.
    """
    catalog = load_catalog()
    listed = with_verdicts(store, store.list_records())
    readable = [entry for entry in listed if entry.summary is not None]
    ids_with_page: set[str] = set()
    for record_id, text in _record_pages(store, catalog, readable[:MOST_RECORD_PAGES]):
        ids_with_page.add(record_id)
        yield file_name("record", record_id), text
    claims = _group_by(readable, lambda summary: summary.claim)
    for claim, entries in claims.items():
        yield file_name("claim", claim), _claim_page(claim, catalog.claims.get(claim), entries, ids_with_page)
    devices = _group_by(readable, lambda summary: summary.device)
    for device, entries in devices.items():
        yield file_name("device", device), _device_page(store, device, catalog, entries, ids_with_page)
    entry_by_id = {entry.record_id: entry for entry in readable}
    documents = [document for _, document in load_all(store) if isinstance(document, SeriesDocument)]
    for document in documents:
        entries = [entry_by_id[run.record_id] for run in document.runs if run.record_id in entry_by_id]
        if entries:
            text = _series_page(store, catalog, document, entries, ids_with_page)
            yield file_name("series", document.series_id), text
    yield INDEX_PAGE, _index_page(store, listed, claims, devices, documents, ids_with_page, other_pages)


def _record_pages(store: Store, catalog: Catalog, newest: Sequence[StoredRecord]) -> Iterator[tuple[str, str]]:
    """Yield the ids and pages of records, the oldest first; one that cannot be read or judged is left out."""
    latest: dict[str, Record] = {}
    """By the digest of the configuration, the latest record so far of a run that ended well and has losses."""
    oldest_first = newest[::-1]
    for entry, read in store.read_all(oldest_first):
        if isinstance(read, FlagbenchError):
            continue
        record = read.record
        try:
            before = None
            if record.status.state == "ok":
                before = latest.get(record.config_digest or "")
            text = run_page([record], catalog, entry.record_id, home=INDEX_PAGE, before=before)
        except FlagbenchError:
            continue
        yield entry.record_id, text
        if record.status.state == "ok" and record.config_digest is not None and loss_curve(record):
            latest[record.config_digest] = record


def _group_by(
    entries: Iterable[StoredRecord], name_of: Callable[[Summary], str | None]
) -> dict[str, list[StoredRecord]]:
    """Return records by a name in their summaries, in alphabetical order; those without the name are left out."""
    groups: dict[str, list[StoredRecord]] = {}
    for entry in entries:
        if entry.summary is None:
            continue
        name = name_of(entry.summary)
        if name is not None:
            groups.setdefault(name, []).append(entry)
    return dict(sorted(groups.items()))


def _claim_page(claim: str, row: Claim | None, entries: Sequence[StoredRecord], ids_with_page: set[str]) -> str:
    """Return the page of a claim: its row, if the catalogue still has it, and the records compared with it."""
    lead = "This row is no longer in the catalogue."
    published: list[Block] = []
    if row is not None:
        lead = row.title
        published = _published_blocks(row)
    runs = []
    for entry in entries:
        ratio = _ratio_of(entry)
        if entry.summary is None or ratio is None:
            continue
        runs.append(Run(entry.created_at, entry.record_id, ratio.value, ratio.ci95, entry.summary.host))
    chart = run_chart(runs, "All comparable runs against the published row", "ratio", band=(LOW, HIGH))
    listing = _listing(entries, ids_with_page, with_claims=False)
    return render_page(claim, lead, [chart], {"Records": [listing], "As published": published}, home=INDEX_PAGE)


def _published_blocks(row: Claim) -> list[Block]:
    """Return what the publisher printed and where, and the anomalies of the row."""
    metrics = []
    for metric in row.metrics:
        value = metric.printed or f"{metric.value:.15g}"  # all digits, without those that only a float has
        metrics.append((metric.name, value, metric.unit))
    conditions = [(name, shown(condition)) for name, condition in row.conditions.items()]
    return [
        Lines((f"{row.source.file} at {row.source.commit}", Link(row.source.url, row.source.url))),
        Table(("metric", "published", "unit"), metrics),
        Table(("condition", "published"), conditions),
        Lines(anomaly_lines(row.anomalies)),
    ]


def _device_page(
    store: Store, device: str, catalog: Catalog, entries: Sequence[StoredRecord], ids_with_page: set[str]
) -> str:
    """Return the page of a device model: its newest roofs against its peaks, and the runs of each configuration.

    `device` is the name that the driver reports.
    """
    model = device_reported_as(device, catalog)
    runs_by_configuration: dict[tuple[str | None, str | None], list[StoredRecord]] = {}
    """By the digest of the configuration and the metric that decides its verdict: runs of both have one chart."""
    measuring = []
    for entry in entries:
        if entry.summary is not None and entry.summary.state == "ok":
            configuration = (entry.summary.unseeded_digest, entry.summary.gate)
            runs_by_configuration.setdefault(configuration, []).append(entry)
        case = catalog.cases.get(entry.case)
        if case is not None and case.kind == "measure":
            measuring.append(entry)
    charts = _newest_roof_charts(store, measuring, model)
    newest_configurations = list(runs_by_configuration.values())[:_MOST_CONFIGURATIONS]
    for number, runs in enumerate(newest_configurations, start=1):
        title = f"All runs of {runs[0].case}:{runs[0].stack}"
        charts.append(run_chart(_speeds_of(runs), title, _gate_text(runs), id=f"runs-{number}"))
    lead = "Each chart of runs shows one configuration, with any seed, on all machines with this device."
    sections: Sections = {"Records": [_listing(entries, ids_with_page)], "As published": []}
    if model is not None:
        sections["As published"] = _peak_blocks(model)
    return render_page(device, lead, charts, sections, home=INDEX_PAGE)


def _newest_roof_charts(
    store: Store, entries: Sequence[StoredRecord], device: DeviceModel | None
) -> list[Chart | Note | None]:
    """Return the charts of the newest sound record that can be read; no chart if there is none."""
    for entry in entries:
        if entry.summary is None or not entry.summary.sound:
            continue
        with suppress(FlagbenchError):  # it may have been damaged or removed since it was listed
            return _roof_charts(read_record(store.read(entry)), device)
    return []


def _roof_charts(record: Record, device: DeviceModel | None) -> list[Chart | Note | None]:
    """Return a chart of the measurements that have a published peak, then charts of those that have none."""
    return [roof_chart(record, device), *rate_charts(record, device)]


def _peak_blocks(device: DeviceModel) -> list[Block]:
    """Return a table of the peaks that the vendor publishes, and a link to the datasheet."""
    rows = []
    for name, peak in device.peaks.items():
        rows.append((name, f"{number_text(peak.flops / 1e12)} TFLOP/s", peak.source))
    bandwidth = device.limits.memory_bandwidth
    if bandwidth is not None:
        rows.append(("memory", f"{number_text(bandwidth.value / 1e9)} GB/s", bandwidth.source))
    return [Table(("published peak", "value", "source"), rows), Lines((Link(device.datasheet, device.datasheet),))]


def _series_page(
    store: Store, catalog: Catalog, series: SeriesDocument, entries: Sequence[StoredRecord], ids_with_page: set[str]
) -> str:
    """Return the page of a series, runs that were requested together.

    It has a verdict only if all of its records have a page, so that the report of a large store does not read every
    record of every series.
    """
    title = f"Series {series.series_id}"
    chart = run_chart(_speeds_of(entries), "All runs of the series", _gate_text(entries))
    listing = _listing(entries, ids_with_page)
    if all(entry.record_id in ids_with_page for entry in entries):
        with suppress(FlagbenchError):  # a record cannot be read or judged: the page has no verdict
            checked = check_series(store, series)
            records = checked.records or checked.failed
            if records:
                return run_page(
                    records, catalog, title, home=INDEX_PAGE, series=checked, charts=[chart], listing=listing
                )
    image = f"{series.request.case}:{series.request.stack}"
    lead = (
        f"{len(entries)} of {series.requested} runs of {image}, from {series.started_at} on. "
        f"The verdict on all of them: flagbench verify {series.series_id}"
    )
    return render_page(title, lead, [chart], {"Records": [listing]}, home=INDEX_PAGE)


def _speeds_of(entries: Iterable[StoredRecord]) -> list[Run]:
    """Return the runs that measured the metric that decides their verdict, each with its value."""
    runs = []
    for entry in entries:
        summary = entry.summary
        if summary is None or summary.gate not in summary.metrics:
            continue
        runs.append(Run(entry.created_at, entry.record_id, summary.metrics[summary.gate], host=summary.host))
    return runs


def _gate_text(entries: Iterable[StoredRecord]) -> str:
    """Return the metric that decides the verdict of the first readable record, such as `p_core, samples/s`."""
    for entry in entries:
        summary = entry.summary
        if summary is None or summary.gate is None:
            continue
        if summary.gate_unit is None:
            return summary.gate
        return f"{summary.gate}, {summary.gate_unit}"
    return "speed"


def _ratio_of(entry: StoredRecord) -> Ratio | None:
    """Return the ratio to the claim, with its interval if it has one; None if the two cannot be compared."""
    if entry.summary is None or entry.summary.ratio is None:
        return None
    ratio, low, high = entry.summary.ratio
    if low is None or high is None:
        return Ratio(ratio)
    return Ratio(ratio, (low, high))


def _listing(entries: Iterable[StoredRecord], ids_with_page: set[str], *, with_claims: bool = True) -> Table:
    """Return a table with a row for each record, which links to its page if it has one.

    With `with_claims`, a row also links to the page of the claim that the record was compared with.
    """
    columns = ["verdict", "ratio", "record", "speed", "host"]
    if with_claims:
        columns.append("published row")
    rows = []
    for entry in entries:
        summary = entry.summary
        if summary is None:
            continue
        speed = speed_of(summary)
        speed_text = NOTHING
        if speed is not None:
            speed_text = f"{summary.gate} {speed}"
        record_page_name = None
        if entry.record_id in ids_with_page:
            record_page_name = file_name("record", entry.record_id)
        row = [
            outcome_of(entry) or NOTHING,
            ratio_text(_ratio_of(entry)),
            Link(entry.record_id, record_page_name),
            speed_text,
            summary.host or NOTHING,
        ]
        if with_claims:
            row.append(_claim_link(summary.claim))
        rows.append(row)
    return Table(columns, rows)


def _claim_link(claim: str | None) -> str:
    if not claim:
        return NOTHING
    return Link(claim, file_name("claim", claim))


def _index_page(
    store: Store,
    listed: Sequence[StoredRecord],
    claims: Mapping[str, Sequence[StoredRecord]],
    devices: Mapping[str, Sequence[StoredRecord]],
    series: Sequence[SeriesDocument],
    ids_with_page: set[str],
    other_pages: Sequence[Link],
) -> str:
    """Return the page that links to all others: the newest records, and a table of claims, devices and series."""
    newest = [entry for entry in listed if entry.record_id in ids_with_page]
    lead = f"{len(listed):,} records in {store.url}: {_counts_of_verdicts(listed)}."
    lead += " The page of each device lists all of its records."
    sections: Sections = {
        "Nodes": [Lines(tuple(other_pages))],
        "Published rows": [_group_table("claim", claims)],
        "Devices": [_group_table("device", devices)],
        "Series": [_series_table(series)],
        f"The newest {len(newest)} records": [_listing(newest, ids_with_page)],
    }
    return render_page("Results", lead, [], sections)


def _counts_of_verdicts(entries: Sequence[StoredRecord]) -> str:
    """Return a text like `2 BELOW, 11 REPRODUCED, 1 without a verdict, 1 that cannot be read`."""
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
    """Return a table with a row for each series, the newest first."""
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


def _group_table(kind: str, groups: Mapping[str, Sequence[StoredRecord]]) -> Table:
    """Return a table with a row for each claim or device, with its newest record; `kind` says which of the two."""
    rows = []
    for name, entries in groups.items():
        newest = entries[0]
        rows.append(
            (
                outcome_of(newest) or NOTHING,
                ratio_text(_ratio_of(newest)),
                Link(name, file_name(kind, name)),
                newest.created_at,
                f"{len(entries):,}",
            )
        )
    columns = ("newest verdict", "newest ratio", kind, "newest record", "records")
    return Table(columns, rows, frozenset({"records"}))
