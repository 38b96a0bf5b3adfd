"""Compares the numbers that a run measured with sound devices, datasheets, published rows and earlier runs.

A claim is a published row that a case runs; a row of the catalogue is only cited. `product` is the kind of the matmul
rates. Each check is made by numbers.number_check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from flagbench.accept.check import AcceptanceCheck, Outcome, not_known
from flagbench.accept.checks.health import host_link_rate, loaded_link_text
from flagbench.accept.checks.numbers import (
    UNITS,
    ComparedNumber,
    compares_value_alone,
    kind_of_metric,
    limit_for,
    number_check,
)
from flagbench.errors import FlagbenchError
from flagbench.expect.rows import cited_rows_for
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.limits import AcceptanceLimit, Kind, Reference
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim
from flagbench.records.model import Measurement, Metric, Record
from flagbench.verdict import verify_baseline, verify_claim
from flagbench.verdict.conditions import DEVICE_MODEL, Agreement, agreement, gate_spec
from flagbench.verdict.interval import Terms, estimate, quotient
from flagbench.verdict.result import Estimate, MetricResult, Ratio
from flagbench.verdict.samples import count_sessions
from flagbench.verdict.subject import Subject
from flagbench.verdict.verify import select_claims
from flagbench_core.case_kinds import MEASURE
from flagbench_core.evidence.roofs import MAMF, MAMF_PUBLISHED
from flagbench_core.health.reading import DeviceHealth

HEAT_SECONDS = 30
"""Seconds of matmuls that heat a device before those in the shapes of MAMF's rows, as mamf-finder.py warms up.

MAMF is the maximum achievable matmul FLOP/s: mamf-finder.py searches for the shape with the fastest matmul, and its
published rows state the rate and that shape.
"""
LEAST_MINUTES_WITH_HEAT = 2.0
"""The `--minutes` from which on an acceptance has time for HEAT_SECONDS: a quarter of them."""
LAYERS = "transformer"
"""The condition that says whose layers ran."""
TUNERS = ("PYTORCH_TUNABLEOP_ENABLED",)
"""Environment variables that turn on a search over libraries' kernels, unless they are 0. A row with such a search is
compared as one of other software: the machine can pass, and cannot fail."""
METRICS_WITH_HISTORY = (
    *("matmul_fp32", "matmul_tf32", "matmul_bf16", "matmul_bf16_best", "matmul_fp8_best"),
    *("mamf_published_bf16", "mamf_published_fp8"),
    *("memory_bandwidth", "h2d_pinned", "d2h_pinned", "all_reduce_busbw"),
)
"""Metrics of the roofs that are compared with earlier runs on an accelerator."""
PEAK_PRECISIONS = ("bf16", "fp8")
"""The precisions in which the roofs search for the fastest matmul, which is compared with a dense peak."""
PROCESSOR_METRICS_WITH_HISTORY = ("matmul_fp32",)
"""Metrics of the roofs that are compared with earlier runs on a processor. The memory is not: in a virtual machine it
reached 31 to 61 GB/s in four idle runs."""


LEAST_SOUND_SERVERS = 2
"""The fewest sound devices that must have generated tokens before others are compared with them."""


@dataclass(frozen=True)
class JudgedRun:
    """A run, and the references and limits that its numbers are compared with."""

    subject: Subject
    catalog: Catalog
    limits: Sequence[AcceptanceLimit]
    history: Sequence[Record]
    """Earlier runs of this configuration on this machine."""
    terms: Terms
    """The spread between runs that is known beforehand, which gives a single run an interval."""
    disturbance: str
    """Other uses of the machine during the run, and limits on its devices, in words; empty if there were none."""

    @property
    def record(self) -> Record:
        """The record of the run, as recomputed from its evidence."""
        return self.subject.record

    @property
    def case(self) -> Case:
        """The case of the run."""
        return self.subject.case

    def limit(self, kind: Kind, against: Reference, sessions: int = 1) -> AcceptanceLimit | None:
        """The limit for a kind of number compared with a kind of reference; see `limit_for`."""
        return limit_for(self.limits, kind, against, sessions)

    def check_ratio(self, number: ComparedNumber) -> AcceptanceCheck:
        """The check of a number whose ratio to its reference is computed already."""
        return number_check(number, self.subject, self.disturbance)

    def check_against_value(
        self, metric: Metric, against: str, expected: float, limit: AcceptanceLimit, *, other_software: bool = False
    ) -> AcceptanceCheck:
        """The check of a metric of this run against one value in the metric's unit, which is taken as exact."""
        ratio: Ratio | None
        if compares_value_alone(limit):
            # Such a limit is far from what sound devices reach, so the ratio decides without an interval.
            ratio = Ratio(metric.value / expected)
        else:
            ratio = quotient(estimate([metric], self.terms.prior(metric.name)), Estimate(expected, runs=0))
        return self.check_ratio(ComparedNumber(metric, against, expected, ratio, limit, other_software))


def speed_checks(run: JudgedRun) -> Iterator[AcceptanceCheck]:
    """Compare the numbers of a run with every reference that they have.

    A number without a limit in the certificate is not compared. A machine has to pass in memory and matmuls, so these
    have a check in any case: `not known` with the reason, if the metric or its reference is missing. Other numbers
    have a check only if they were measured: `not known`, if their reference is missing.
    """
    if run.case.kind == MEASURE:
        yield from _roofs_checks(run)
        return
    checks = [*_claim_checks(run), *_row_checks(run), *_history_checks(run)]
    if not checks:
        reason = "speed not judged: no published row of this device and no earlier run"
        checks.append(not_known(run.case.gate, run.case.name, "published rows and earlier runs", reason))
    yield from checks
    limit = run.limit("serving", "roof")
    if limit is not None and run.case.metric("decode_bandwidth") is not None:
        yield _serving_check(run, limit)


def _serving_check(run: JudgedRun, limit: AcceptanceLimit) -> AcceptanceCheck:
    """Compare what a device reads while it generates tokens with the share of a copy that sound devices reach."""
    name = "decode_bandwidth"
    against = "the share of a copy that sound devices reach"
    metric = run.record.metric(name)
    copy = run.record.metric("memory_bandwidth")
    if metric is None or copy is None:
        return not_known(name, run.case.name, against, "it was measured without --roofs, or not at all")
    seen = limit.seen
    if seen is None or seen.devices < LEAST_SOUND_SERVERS:
        share = metric.value / copy.value
        reason = f"it is {share:.2f} of a copy, and fewer than {LEAST_SOUND_SERVERS} sound devices were measured"
        return not_known(name, run.case.name, against, reason)
    against = f"{seen.lowest:.2f} of its copy, the lowest of {seen.devices} sound devices"
    return run.check_against_value(metric, against, seen.lowest * copy.value, limit)


def _roofs_checks(run: JudgedRun) -> Iterator[AcceptanceCheck]:
    """The checks of a run that measured the roofs. On a processor, only claims and earlier runs are references."""
    yield from _claim_checks(run)
    if run.record.stack != "cpu":
        yield from _memory_checks(run)
        yield from _product_checks(run)
        yield from _collective_checks(run)
        yield from _host_link_checks(run)
    yield from _history_checks(run)


def _memory_checks(run: JudgedRun) -> Iterator[AcceptanceCheck]:
    """Compare the memory bandwidth with sound devices of this model, or with the datasheet if none was measured."""
    metric = run.record.metric("memory_bandwidth")
    if metric is None:
        yield not_known("memory_bandwidth", run.case.name, "its datasheet", "it was not measured")
        return
    sound_limit = run.limit("memory", "sound")
    if sound_limit is not None and sound_limit.value is not None and sound_limit.seen is not None:
        against = f"{sound_limit.seen.devices} sound devices of this model"
        yield run.check_against_value(metric, against, sound_limit.value / UNITS[metric.unit], sound_limit)
        return
    datasheet_limit = run.limit("memory", "datasheet")
    device = run.subject.device
    if device is None or device.limits.memory_bandwidth is None or datasheet_limit is None:
        reason = "no datasheet of this device states it, and no sound one was measured"
        yield not_known("memory_bandwidth", run.case.name, "its datasheet", reason)
        return
    bandwidth = float(device.limits.memory_bandwidth.value)
    yield run.check_against_value(metric, "its datasheet", bandwidth / UNITS[metric.unit], datasheet_limit)


def _product_checks(run: JudgedRun) -> Iterator[AcceptanceCheck]:
    """Compare matmuls with MAMF's rows of this device, in their shapes; if there are no rows, with the dense peak."""
    rows: list[Claim] = []
    if run.subject.device is not None:
        rows = mamf_rows(run.catalog, run.subject.device)
    if not rows:
        yield from _peak_checks(run)
        return
    for row in rows:
        yield _mamf_check(run, row)


def _peak_checks(run: JudgedRun) -> Iterator[AcceptanceCheck]:
    """Compare the fastest matmul of each precision with the dense peak in the datasheet of this device."""
    limit = run.limit("product", "datasheet")
    if limit is None:
        return
    checks = []
    for precision in PEAK_PRECISIONS:
        metric = run.record.metric(f"matmul_{precision}_best")
        peak = None
        if run.subject.device is not None:
            peak = run.subject.device.flops.get(precision)
        if metric is not None and peak:
            checks.append(run.check_against_value(metric, "its dense peak", peak / UNITS[metric.unit], limit))
    if not checks:
        reason = "no published row is of this device, and no datasheet states the peak of a product that was measured"
        checks.append(not_known("matmul_bf16_best", run.case.name, "its dense peak", reason))
    yield from checks


def mamf_rows(catalog: Catalog, device: DeviceModel) -> list[Claim]:
    """MAMF's rows of a device model: one for each precision, each with one shape."""
    rows = []
    for claim in catalog.claims.values():
        if claim.metrics[0].name.startswith(MAMF) and claim.device_id == device.id:
            rows.append(claim)
    return rows


def _mamf_check(run: JudgedRun, claim: Claim) -> AcceptanceCheck:
    """Compare a matmul in the shape of one of MAMF's rows with that row."""
    published = claim.metrics[0]
    name = published.name.replace(MAMF, MAMF_PUBLISHED)
    against = f"claim {claim.id}"
    metric = run.record.metric(name)
    measurement = _find_measurement(run.record, name)
    if metric is None or measurement is None:
        return not_known(name, run.case.name, against, "it was not measured")
    limit = run.limit("product", "row")
    if limit is None:
        return not_known(name, run.case.name, against, "there is no limit for products against published rows")
    shape = " x ".join(str(size) for size in measurement.shape)
    if shape != claim.conditions["shape"]:
        return not_known(name, run.case.name, against, f"it was measured in the shape {shape}")
    if (measurement.heated_seconds or 0.0) < HEAT_SECONDS:
        minutes = f"{LEAST_MINUTES_WITH_HEAT:g}"
        reason = f"no {HEAT_SECONDS} s of products before it, for which --minutes {minutes} is needed"
        return not_known(name, run.case.name, against, reason)
    return run.check_against_value(metric, against, published.value, limit, other_software=is_tuned(claim))


def is_tuned(row: Claim) -> bool:
    """Whether the environment of a row turns a tuner on."""
    return any(row.environment.get(variable, 0) not in (0, "0") for variable in TUNERS)


def _find_measurement(record: Record, name: str) -> Measurement | None:
    """The measurement of a metric; None if it was not measured."""
    for measurement in record.measurements:
        if measurement.name == name:
            return measurement
    return None


def _collective_checks(run: JudgedRun) -> Iterator[AcceptanceCheck]:
    """Compare the all-reduce with the unidirectional rate of NVLink. The limit is for one number of devices."""
    metric = run.record.metric("all_reduce_busbw")
    if metric is None:
        return
    limit = run.limit("collective", "link")
    system = run.record.system
    if limit is None or limit.value is None or system.nodes != 1 or system.devices_per_node != limit.devices:
        reason = "no limit is known for this number of devices of this model"
        yield not_known(metric.name, run.case.name, "its links", reason)
        return
    yield run.check_against_value(metric, "NVLink's rate one way", limit.value / UNITS[metric.unit], limit)


def _host_link_checks(run: JudgedRun) -> Iterator[AcceptanceCheck]:
    """Compare copies to and from the host with the fastest link that the drivers report."""
    limit = run.limit("host-link", "link")
    if limit is None:
        return
    against = "the link that its driver states"
    devices = _last_health(run.record)
    link_rates = []
    for device in devices:
        rate = host_link_rate(device)
        if rate is not None:
            link_rates.append(rate)
    for name in ("h2d_pinned", "d2h_pinned"):
        metric = run.record.metric(name)
        if metric is None:
            continue
        if not link_rates:
            yield not_known(name, run.case.name, against, "no driver states it")
            continue
        check = run.check_against_value(metric, against, max(link_rates), limit)
        loaded_links = sorted({loaded_link_text(device) for device in devices} - {""})
        if check.outcome is not Outcome.PASS and loaded_links:
            check = replace(check, reason=f"{check.reason}; {', '.join(loaded_links)}")
        yield check


def _last_health(record: Record) -> list[DeviceHealth]:
    """The last reading of each device of a run."""
    if record.telemetry is None:
        return []
    readings = []
    for device in record.telemetry.devices:
        if device.health is not None and device.health.after is not None:
            readings.append(device.health.after)
    return readings


def _claim_checks(run: JudgedRun) -> Iterator[AcceptanceCheck]:
    """Compare the gate of a run, its deciding metric, with claims of its case on this device, as `verify` does."""
    limit = run.limit("case", "row")
    if limit is None:
        return
    record = run.record
    for claim in select_claims(record, run.case, run.catalog.claims.values()):
        if claim.conditions.get(DEVICE_MODEL) != record.conditions.get(DEVICE_MODEL):
            continue
        gate = run.case.with_gate_among(claim.metrics).gate
        if gate.startswith(MAMF):  # `_mamf_check` compares it, in the shape of the row
            continue
        if kind_of_metric(gate) == "host-link":  # the rate depends on the host of the row, which may be another
            continue
        for result in verify_claim([record], claim, run.case, terms=run.terms).metrics:
            if result.comparable and result.ratio is not None and result.name == gate:
                yield _claim_check(run, claim, result, limit)


def _claim_check(run: JudgedRun, claim: Claim, result: MetricResult, limit: AcceptanceLimit) -> AcceptanceCheck:
    """Compare the gate of a run with one claim. If the run has the median of a published mean, that is compared."""
    layers = agreement(run.record.conditions.get(LAYERS), claim.conditions.get(LAYERS))
    other_software = layers is Agreement.DIFFERS
    against = f"claim {claim.id}"
    median = _median_metric_of(result.name)
    median_metric = run.record.metric(median.name)
    if median.name != result.name and median_metric is not None:
        expected = result.expected.value / median.published_factor
        return run.check_against_value(median_metric, against, expected, limit, other_software=other_software)
    assert result.measured is not None
    metric = Metric(result.held_by, result.measured.value, result.unit, "job")
    return run.check_ratio(
        ComparedNumber(metric, against, result.expected.value, result.ratio, limit, other_software)
    )


class _MedianMetric(NamedTuple):
    """A metric of a median, which has an interval, in place of the mean of a short run, which has none."""

    name: str
    published_factor: float
    """What the published mean must be divided by to be in the terms of this metric."""


def _median_metric_of(name: str) -> _MedianMetric:
    """The metric of the median in place of the mean `name`; for another metric, the same metric."""
    if name == "all_reduce_mean":  # FlagPerf publishes an all-reduce as twice its bus bandwidth
        return _MedianMetric("all_reduce_busbw", 2.0)
    return _MedianMetric(name.removesuffix("_mean"), 1.0)


def _row_checks(run: JudgedRun) -> Iterator[AcceptanceCheck]:
    """Compare the gate of a case with cited rows of its device, which were measured with other software."""
    limit = run.limit("case", "row")
    gate = gate_spec(run.case)
    metric = run.record.metric(gate.held_by or gate.name)
    if metric is None or limit is None:
        return
    for row in cited_rows_for(run.record, run.catalog):
        published = row.metric(gate.name)
        if published is not None and published.unit == metric.unit:
            against = f"catalogue {row.id}"
            yield run.check_against_value(metric, against, published.value, limit, other_software=True)


def _history_checks(run: JudgedRun) -> Iterator[AcceptanceCheck]:
    """Compare numbers with those of earlier runs of this configuration on this machine."""
    if not run.history:
        return
    try:
        verification = verify_baseline([run.record], run.history, run.case, any_seed=True, terms=run.terms)
    except FlagbenchError as error:
        yield not_known("history", run.case.name, "earlier runs of this store", error.message)
        return
    against = f"{len(run.history)} earlier runs of this store"
    if len(run.history) == 1:
        against = "1 earlier run of this store"
    names = _names_with_history(run)
    sessions = count_sessions(run.history)
    for result in verification.metrics:
        if result.name not in names or result.ratio is None or not result.comparable:
            continue
        kind: Kind = "case"
        if run.case.kind == MEASURE:
            kind = kind_of_metric(result.name)
        limit = run.limit(kind, "history", sessions)
        if limit is None:
            continue
        assert result.measured is not None
        metric = Metric(result.held_by, result.measured.value, result.unit, "job")
        yield run.check_ratio(ComparedNumber(metric, against, result.expected.value, result.ratio, limit))


def _names_with_history(run: JudgedRun) -> tuple[str, ...]:
    """The metrics of a run that are compared with earlier runs; of a case, only its gate."""
    if run.case.kind != MEASURE:
        return (run.case.gate,)
    if run.record.stack == "cpu":
        return PROCESSOR_METRICS_WITH_HISTORY
    return METRICS_WITH_HISTORY
