"""What a run measured, beside sound devices, datasheets, published rows and earlier runs of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from flagbench.accept.check import AcceptanceCheck, Outcome, not_known
from flagbench.accept.checks.health import host_link_rate, loaded_link_text
from flagbench.accept.checks.numbers import UNITS, HeldNumber, by_value, kind_of_metric, limit_for, number_check
from flagbench.accept.document import SpreadOfRuns
from flagbench.errors import FlagbenchError
from flagbench.expect.rows import rows_beside
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.limits import AcceptanceLimit, Kind, Reference
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.rows import Claim
from flagbench.records.model import Measurement, Metric, Record
from flagbench.verdict import verify_baseline, verify_claim
from flagbench.verdict.conditions import DEVICE_MODEL, Agreement, agreement, gate_spec
from flagbench.verdict.interval import Terms, estimate, quotient
from flagbench.verdict.result import Estimate, MetricResult, Ratio
from flagbench.verdict.samples import session_count
from flagbench.verdict.stats.between import Prior, SessionSpread
from flagbench.verdict.subject import Subject
from flagbench.verdict.verify import claims_for
from flagbench_core.evidence.roofs import MAMF, MAMF_PUBLISHED
from flagbench_core.evidence.section import MEASURE
from flagbench_core.health.reading import DeviceHealth

HEAT_SECONDS, HEAT_MINUTES = 30, 2.0
"""Of products, before those of MAMF's rows are measured: mamf-finder.py's own warm-up. And the `--minutes` from which
on there is time for it."""
LAYERS = "transformer"
"""The condition that says whose layers ran."""
TUNERS = ("PYTORCH_TUNABLEOP_ENABLED",)
"""Variables in the environment of a row that make its products those of a search over libraries' kernels, unless they
are 0."""
HELD_TO_HISTORY = (
    *("matmul_fp32", "matmul_tf32", "matmul_bf16", "matmul_bf16_best", "matmul_fp8_best"),
    *("mamf_published_bf16", "mamf_published_fp8"),
    *("memory_bandwidth", "h2d_pinned", "d2h_pinned", "all_reduce_busbw"),
)
"""Metrics of the roofs that are compared with earlier runs."""
HELD_ON_A_PROCESSOR = ("matmul_fp32",)
"""The memory of a processor in a virtual machine had 31 to 61 GB/s in four idle runs."""
_MOST_DF = 1e9
"""Degrees of freedom that are as good as infinitely many."""


@dataclass(frozen=True)
class Held:
    """A run, and what its numbers are held against."""

    subject: Subject
    catalog: Catalog
    limits: Sequence[AcceptanceLimit]
    history: Sequence[Record]
    terms: Terms
    disturbed: str
    """What else used the machine during the run, or limited its devices."""

    @property
    def record(self) -> Record:
        """Of the run, as recomputed."""
        return self.subject.record

    @property
    def case(self) -> Case:
        """That was run."""
        return self.subject.case

    def check(self, number: HeldNumber) -> AcceptanceCheck:
        """What a number of this run decides."""
        return number_check(number, self.subject, self.disturbed)

    def number(
        self, metric: Metric, against: str, expected: float, limit: AcceptanceLimit, *, other_software: bool = False
    ) -> AcceptanceCheck:
        """A metric of one run beside one value in its unit, which is taken as exact."""
        ratio = quotient(estimate([metric], self.terms.prior(metric.name)), Estimate(expected, runs=0))
        if by_value(limit):
            ratio = Ratio(metric.value / expected)
        return self.check(HeldNumber(metric, against, expected, ratio, limit, other_software))


def speed_checks(held: Held) -> Iterator[AcceptanceCheck]:
    """Every number of a run that can be held against something, and what is not known of the others."""
    if held.case.kind == MEASURE:
        yield from _roofs_checks(held)
    else:
        checks = [*_claim_checks(held), *_row_checks(held), *_history_checks(held)]
        if not checks:
            reason = "speed not judged: no published row of this device and no earlier run"
            checks.append(not_known(held.case.gate, held.case.name, "published rows and earlier runs", reason))
        yield from checks


def _roofs_checks(held: Held) -> Iterator[AcceptanceCheck]:
    yield from _claim_checks(held)
    if held.record.stack != "cpu":
        yield from _memory_checks(held)
        yield from _product_checks(held)
        yield from _collective_checks(held)
        yield from _host_link_checks(held)
    yield from _history_checks(held)


def _limit(held: Held, kind: Kind, against: Reference, sessions: int = 1) -> AcceptanceLimit | None:
    return limit_for(held.limits, kind, against, sessions)


def _memory_checks(held: Held) -> Iterator[AcceptanceCheck]:
    """The memory beside sound devices of its model; where none was measured, beside its datasheet."""
    metric = held.record.metric("memory_bandwidth")
    if metric is None:
        yield not_known("memory_bandwidth", held.case.name, "its datasheet", "it was not measured")
        return
    sound, sheet = _limit(held, "memory", "sound"), _limit(held, "memory", "datasheet")
    if sound is not None and sound.value is not None and sound.seen is not None:
        against = f"{sound.seen.devices} sound devices of this model"
        yield held.number(metric, against, sound.value / UNITS[metric.unit], sound)
        return
    device = held.subject.device
    if device is None or device.limits.memory_bandwidth is None or sheet is None:
        reason = "no datasheet of this device states it, and no sound one was measured"
        yield not_known("memory_bandwidth", held.case.name, "its datasheet", reason)
        return
    value = float(device.limits.memory_bandwidth.value)
    yield held.number(metric, "its datasheet", value / UNITS[metric.unit], sheet)


def _product_checks(held: Held) -> Iterator[AcceptanceCheck]:
    """Products beside MAMF's rows of this device in their own shapes; where there is none, beside the dense peak."""
    device, limit = held.subject.device, _limit(held, "product", "datasheet")
    rows: list[Claim] = []
    peaks: Mapping[str, float] = {}
    if device is not None:
        rows, peaks = mamf_rows(held.catalog, device), device.flops
    for row in rows:
        yield _mamf_check(held, row)
    if rows or limit is None:
        return
    held_to_peak = False
    for precision in ("bf16", "fp8"):
        metric, peak = held.record.metric(f"matmul_{precision}_best"), peaks.get(precision)
        if metric is not None and peak:
            yield held.number(metric, "its dense peak", peak / UNITS[metric.unit], limit)
            held_to_peak = True
    if not held_to_peak:
        reason = "no published row is of this device, and no datasheet states the peak of a product that was measured"
        yield not_known("matmul_bf16_best", held.case.name, "its dense peak", reason)


def mamf_rows(catalog: Catalog, device: DeviceModel) -> list[Claim]:
    """MAMF's rows of a device model, one a precision, each of one shape."""
    rows = []
    for claim in catalog.claims.values():
        if claim.metrics[0].name.startswith(MAMF) and claim.device_id == device.id:
            rows.append(claim)
    return rows


def _mamf_check(held: Held, claim: Claim) -> AcceptanceCheck:
    published = claim.metrics[0]
    name = published.name.replace(MAMF, MAMF_PUBLISHED)
    against = f"claim {claim.id}"
    metric, limit = held.record.metric(name), _limit(held, "product", "row")
    measurement = _measurement(held.record, name)
    if metric is None or limit is None or measurement is None:
        return not_known(name, held.case.name, against, "it was not measured")
    shape = " x ".join(str(size) for size in measurement.shape)
    if shape != claim.conditions["shape"]:
        return not_known(name, held.case.name, against, f"it was measured in the shape {shape}")
    if (measurement.heated_seconds or 0.0) < HEAT_SECONDS:
        reason = f"no {HEAT_SECONDS} s of products before it, for which --minutes {HEAT_MINUTES:g} is needed"
        return not_known(name, held.case.name, against, reason)
    return held.number(metric, against, published.value, limit, other_software=is_tuned(claim))


def is_tuned(row: Claim) -> bool:
    """Whether the environment of a row turns a tuner on."""
    return any(row.environment.get(variable, 0) not in (0, "0") for variable in TUNERS)


def _measurement(record: Record, name: str) -> Measurement | None:
    for measurement in record.measurements:
        if measurement.name == name:
            return measurement
    return None


def _collective_checks(held: Held) -> Iterator[AcceptanceCheck]:
    """The all-reduce beside NVLink's rate one way, where the devices are as many as it holds of."""
    metric, limit = held.record.metric("all_reduce_busbw"), _limit(held, "collective", "link")
    if metric is None:
        return
    system = held.record.system
    if limit is None or limit.value is None or system.nodes != 1 or system.devices_per_node != limit.devices:
        reason = "no limit is known for this number of devices of this model"
        yield not_known(metric.name, held.case.name, "its links", reason)
        return
    yield held.number(metric, "NVLink's rate one way", limit.value / UNITS[metric.unit], limit)


def _host_link_checks(held: Held) -> Iterator[AcceptanceCheck]:
    """Copies to and from the host beside the widest and fastest link that the drivers state."""
    limit, against = _limit(held, "host-link", "link"), "the link that its driver states"
    devices = _last_health(held.record)
    rates = [rate for rate in map(host_link_rate, devices) if rate is not None]
    for name in ("h2d_pinned", "d2h_pinned"):
        metric = held.record.metric(name)
        if metric is None or limit is None:
            continue
        if not rates:
            yield not_known(name, held.case.name, against, "no driver states it")
            continue
        check = held.number(metric, against, max(rates), limit)
        loaded = sorted({text for text in map(loaded_link_text, devices) if text})
        if check.outcome is not Outcome.PASS and loaded:
            check = replace(check, reason=f"{check.reason}; {', '.join(loaded)}")
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


def _claim_checks(held: Held) -> Iterator[AcceptanceCheck]:
    """The gate of a run beside each claim of its case on this device, as `verify` compares them."""
    limit = _limit(held, "case", "row")
    if limit is None:
        return
    record, case = held.record, held.case
    for claim in claims_for(record, case, held.catalog.claims.values()):
        gate = case.held_to(claim.metrics).gate
        if claim.conditions.get(DEVICE_MODEL) != record.conditions.get(DEVICE_MODEL):
            continue
        if gate.startswith(MAMF):  # held in its own shape
            continue
        if kind_of_metric(gate) == "host-link":  # depends on the host of the row
            continue
        for result in verify_claim([record], claim, case, terms=held.terms).metrics:
            if result.comparable and result.ratio is not None and result.name == gate:
                yield _claim_check(held, claim, result, limit)


def _claim_check(held: Held, claim: Claim, result: MetricResult, limit: AcceptanceLimit) -> AcceptanceCheck:
    other = agreement(held.record.conditions.get(LAYERS), claim.conditions.get(LAYERS)) is Agreement.DIFFERS
    against = f"claim {claim.id}"
    name, factor = _with_interval(result.name)
    metric = held.record.metric(name)
    if name != result.name and metric is not None:
        return held.number(metric, against, result.expected.value / factor, limit, other_software=other)
    assert result.measured is not None
    metric = Metric(result.held_by, result.measured.value, result.unit, "job")
    return held.check(HeldNumber(metric, against, result.expected.value, result.ratio, limit, other))


def _with_interval(name: str) -> tuple[str, float]:
    """Instead of the mean of a short run, which has no interval: its median, and how much larger it is published.

    FlagPerf publishes an all-reduce as twice its bus bandwidth.
    """
    if name == "all_reduce_mean":
        return "all_reduce_busbw", 2.0
    return name.removesuffix("_mean"), 1.0


def _row_checks(held: Held) -> Iterator[AcceptanceCheck]:
    """The gate of a case without claims beside rows of its device, which are of other software."""
    limit, gate = _limit(held, "case", "row"), gate_spec(held.case)
    metric = held.record.metric(gate.held_by or gate.name)
    if metric is None or limit is None:
        return
    for row in rows_beside(held.record, held.catalog):
        published = row.metric(gate.name)
        if published is not None and published.unit == metric.unit:
            yield held.number(metric, f"catalogue {row.id}", published.value, limit, other_software=True)


def _history_checks(held: Held) -> Iterator[AcceptanceCheck]:
    """Numbers beside those of earlier runs of this configuration on this machine."""
    if not held.history:
        return
    record, case = held.record, held.case
    try:
        compared = verify_baseline([record], held.history, case, any_seed=True, terms=held.terms)
    except FlagbenchError as error:
        yield not_known("history", case.name, "earlier runs of this store", error.message)
        return
    against = f"{len(held.history)} earlier runs of this store"
    if len(held.history) == 1:
        against = "1 earlier run of this store"
    names: tuple[str, ...] = (case.gate,)
    if case.kind == MEASURE:
        names = HELD_ON_A_PROCESSOR if record.stack == "cpu" else HELD_TO_HISTORY
    sessions = session_count(held.history)
    for result in compared.metrics:
        limit = None
        if case.kind == MEASURE:
            limit = _limit(held, kind_of_metric(result.name), "history", sessions)
        else:
            limit = _limit(held, "case", "history", sessions)
        if limit is None or result.name not in names or result.ratio is None or not result.comparable:
            continue
        assert result.measured is not None
        metric = Metric(result.held_by, result.measured.value, result.unit, "job")
        yield held.check(HeldNumber(metric, against, result.expected.value, result.ratio, limit))


def plain_prior(prior: Prior) -> dict[str, Any]:
    """What is known of the spread between runs, as JSON, which has no infinite numbers."""
    session = None
    if prior.session is not None:
        session = {**prior.session._asdict(), "df": min(prior.session.df, _MOST_DF)}
    return {**prior._asdict(), "df": min(prior.df, _MOST_DF), "session": session}


def terms_of(priors: Mapping[str, SpreadOfRuns]) -> Terms:
    """The terms of a comparison with the priors that a certificate states."""
    read = {}
    for name, prior in priors.items():
        session = None
        if prior.session is not None:
            session = SessionSpread(prior.session.spread, prior.session.df, prior.session.source)
        read[name] = Prior(prior.spread, prior.df, prior.source, session)
    return Terms(priors=read)
