"""The checks of an acceptance and their outcomes, computed from its facts and records alone, so by anybody again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from statistics import median
from typing import Any

from msgspec import Struct

from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench.expect.rows import rows_beside
from flagbench.machine.disturbance_limits import MEMORY_BEFORE
from flagbench.machine.vendors import LOST_REMEDY, older_drivers
from flagbench.manifests.model import Case, Catalog
from flagbench.records.model import Metric, Record
from flagbench.system.queries import Ending
from flagbench.verdict import rules, verify_baseline, verify_claim
from flagbench.verdict.claim_limits import LOW
from flagbench.verdict.conditions import DEVICE_MODEL, Agreement, agreement, gate_spec
from flagbench.verdict.disturbance import others_on_devices, others_on_processors, throttled
from flagbench.verdict.interval import Terms, estimate, quotient
from flagbench.verdict.recompute import recompute
from flagbench.verdict.result import Estimate, MetricResult, Ratio, four_digits
from flagbench.verdict.stats.between import Prior, SessionSpread
from flagbench.verdict.subject import Subject
from flagbench.verdict.verify import claims_for
from flagbench_core.evidence.metrics import window_of
from flagbench_core.evidence.roofs import MAMF
from flagbench_core.evidence.section import MEASURE, WINDOW, kind_of

EARLIER = {"cuda": 0.90, "cpu": 0.75}
"""The limits against earlier runs of this store, where one run leaves an interval of 6 %; a processor shares memory
and caches with whatever else runs. Assumptions; a claim has the verdict's 0.95."""
CATALOGUED = 0.75
"""The limit against a row of the catalogue, by other software, or of MAMF, the best of a search. Sound H100
reached 0.82 to 0.92 of them in other shapes (docs/measured, docs/verdict/certificate.json)."""
LAYERS = "transformer"
"""The condition that says whose layers ran: a claim by another library's is held as a row of the catalogue."""
CEILING = 1.02
"""A case reaches no more of what a matrix product reached in its run: the tolerance of the rule `above-ceiling`."""
HELD = {
    "cuda": (
        *("matmul_fp32", "matmul_tf32", "matmul_bf16", "matmul_bf16_best", "matmul_fp8_best", "memory_bandwidth"),
        *("h2d_pinned", "d2h_pinned", "all_reduce_busbw"),
    ),
    "cpu": ("matmul_fp32",),
}
"""Metrics of the roofs that are compared with earlier runs; with published rows, each that a row has. The memory of a
processor in a virtual machine had 31 to 61 GB/s in four idle runs."""
WRONG = ("precision", "same_results", "loss_finite", "parameters_finite", "ranks_in_step")
"""Checks of a run that fail where a device computes wrongly."""
_NOT_LISTED = (Ending.FAILED.value, Ending.NO_ANSWER.value)
"""How a question to a vendor's tool ends where nothing is known of the devices."""
PARTS, BY_PARTS = 5, "the slowest and the fastest fifth"
"""The `ci_method` of a number that was not steady."""


class Outcome(str, Enum):
    """What a check, and the whole, ends with."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


class AcceptanceCheck(Struct, frozen=True, kw_only=True):
    """One check: what was measured against what, and what bounds its outcome."""

    name: str
    part: str
    """`preflight`, or the case whose run it is of."""
    outcome: Outcome
    measured: str
    against: str
    limit: str
    """What it passes within."""
    floor: float | None = None
    """The ratio from which a number passes."""
    reason: str = ""
    """Why it did not."""
    ratio: Ratio | None = None
    """Above 1 is better."""
    ranks: tuple[int, ...] = ()
    """That it is about."""


def checks_of(
    facts: Mapping[str, Any], records: Mapping[str, Record], catalog: Catalog
) -> tuple[AcceptanceCheck, ...]:
    """Every check of an acceptance, in the order in which it was made.

    Args:
        facts: those of the certificate.
        records: the records that it names, by id.
    """
    found = [*_preflight(facts)]
    for part in facts["parts"]:
        found += _of_part(part, facts, records, catalog)
    if any(check.outcome is Outcome.FAIL for check in found):  # then no further run is begun
        return tuple(found)
    for case in facts.get("planned", ())[len(facts["parts"]) :]:
        found.append(_undecided("ran", case, "a run that ends well", "planned, but not run"))
    if facts["without_case"]:
        found.append(_undecided("ran", "case", "a run that ends well", facts["without_case"]))
    return tuple(found)


def _undecided(name: str, part: str, limit: str, reason: str) -> AcceptanceCheck:
    outcome = Outcome.INCONCLUSIVE
    return AcceptanceCheck(
        name=name, part=part, outcome=outcome, measured="nothing", against="itself", limit=limit, reason=reason
    )


def _decided(ok: bool | None, why: str) -> dict[str, Any]:
    """The outcome of a check that passes, fails, or, with None, cannot be decided; and why, unless it passed."""
    outcome = Outcome.INCONCLUSIVE if ok is None else Outcome.PASS if ok else Outcome.FAIL
    return {"outcome": outcome, "reason": "" if ok else why}


def _preflight(facts: Mapping[str, Any]) -> Iterator[AcceptanceCheck]:
    machine, gpus = facts["machine"], facts["gpus"]
    if facts["device_kind"] == "cpu":
        return
    visible, names = machine["visible"], sorted({each["name"] for each in machine["devices"]})
    outcome, why = _devices_found(machine, gpus)
    against = f"the stack {facts['stack']}"
    if facts["asked"]["gpus"]:
        against = "what was asked for"
    elif names:
        against = "what the driver shows"
    yield AcceptanceCheck(
        name="devices",
        part="preflight",
        measured=f"{visible} of {', '.join(names)}" if names else "none",
        against=against,
        limit=f"{gpus}",
        outcome=outcome,
        reason=why,
        ranks=() if machine.get("lost") else tuple(range(visible, gpus)),
    )
    floor, drivers = facts["driver_floor"], machine["drivers"]
    if floor is not None and drivers:
        yield AcceptanceCheck(
            name="driver",
            part="preflight",
            measured=", ".join(drivers),
            against=f"the stack {facts['stack']}",
            limit=f"{floor} or newer",
            **_decided(not older_drivers(drivers, floor), "the driver is older than the stack needs"),
        )
    busy = [*machine["foreign"], *machine["partitions"], *machine["capped"]]
    if busy or drivers:  # else its tool is not asked
        yield AcceptanceCheck(
            name="undisturbed",
            part="preflight",
            measured=brief("; ".join(busy)) or "nothing",
            against="an idle machine",
            limit="no other process, whole devices, full power",
            **_decided(None if busy else True, "what else is on the devices, or limits them, may slow them"),
        )


def _devices_found(machine: Mapping[str, Any], gpus: int) -> tuple[Outcome, str]:
    """Whether `gpus` devices can be used, and why not."""
    visible = machine["visible"]
    if machine.get("lost"):
        return Outcome.FAIL, "; ".join((*machine["lost"], LOST_REMEDY))
    if machine["problem"]:
        outcome = Outcome.INCONCLUSIVE if machine.get("tool") in _NOT_LISTED else Outcome.FAIL
        return outcome, machine["problem"]
    if visible < gpus <= len(machine["devices"]):
        return Outcome.INCONCLUSIVE, f"CUDA_VISIBLE_DEVICES hides {gpus - visible}"
    if not machine["devices"]:
        return Outcome.FAIL, "no device was found"
    if visible < gpus:
        return Outcome.FAIL, f"{gpus - visible} of {gpus} devices are missing"
    return Outcome.PASS, ""


def _of_part(
    part: Mapping[str, Any], facts: Mapping[str, Any], records: Mapping[str, Record], catalog: Catalog
) -> Iterator[AcceptanceCheck]:
    """The checks of one run."""
    record, name = records.get(part["record_id"] or ""), part["case"]
    case = catalog.cases[name]
    yield _ran(part, record, case)
    if record is None:
        return
    subject = recompute(record, case)
    record = subject.record
    if case.kind == MEASURE:
        yield from _devices(record, facts)
    if record.status.state != "ok":
        return
    disturbed = disturbance(record)
    if record.telemetry is not None and record.telemetry.devices:
        yield AcceptanceCheck(
            name="alone",
            part=name,
            measured=disturbed or "nothing else",
            against="a device of its own",
            limit=f"no other process, at most {MEMORY_BEFORE / 2**30:g} GiB in use before",
            **_decided(None if disturbed else True, "another process uses a device"),
        )
        slowed = throttled(record.telemetry.devices)
        if any(each.throttle_seconds or each.power_limit_default_w for each in record.telemetry.devices):  # by NVML
            yield AcceptanceCheck(
                name="throttled",
                part=name,
                measured=", ".join(f"{reason} {seconds:.0f} s" for reason, seconds in slowed.items()) or "no",
                against="its own clocks",
                limit="by nothing but its own power limit",
                **_decided(None if slowed else True, "a device was slowed by heat or by its supply"),
            )
    history = [records[each] for each in part["history"] if each in records]
    yield from _numbers(subject, catalog, part, history, disturbed)
    if case.kind != MEASURE and (ceiling := record.flops and record.flops.measured_ceiling):
        share = subject.achieved / ceiling.flops if subject.achieved and ceiling.flops else None
        yield AcceptanceCheck(
            name="flops",
            part=name,
            measured="unknown" if share is None else f"{share:.0%} of a matrix product",
            against=f"a matrix product in {ceiling.precision} in the same run",
            limit=f"at most {CEILING:.0%}",
            **_decided(None if share is None or share > CEILING else True, "a clock or a count is wrong"),
        )


def _ran(part: Mapping[str, Any], record: Record | None, case: Case) -> AcceptanceCheck:
    """Whether a run ended well, and its record is sound."""
    why, ok = part["reason"] or "it left no record", None
    if record is not None:
        failed = [check for check in record.checks if not check.ok]
        # A product in another precision than asked for is another library's choice, such as fp32 for tf32 on AMD.
        wrong = [one for one in failed if one.name in WRONG and (one.name != "precision" or "wrong" in one.detail)]
        found = rules.invalid(recompute(record, case))
        why = "; ".join(f"{check.name}: {check.detail}" for check in wrong or failed) or record.status.reason or why
        if wrong:
            ok = False
        elif record.status.state == "ok":
            ok = None if found else True
            why = "; ".join(each.message for each in found[:2])
    return AcceptanceCheck(
        name="ran",
        part=case.name,
        measured=part["state"],
        against="its own checks",
        limit="it ends well, and its record follows from its evidence",
        **_decided(ok, brief(why, 300)),
    )


def _devices(record: Record, facts: Mapping[str, Any]) -> Iterator[AcceptanceCheck]:
    """Of the roofs: whether each device computes the same bits as before and as the others, and as fast as these."""
    world = record.system.nodes * record.system.devices_per_node
    wrong = [(each.name, rank) for each in record.results for rank in dict.fromkeys((*each.changed, *each.apart))]
    ranks = tuple(sorted({rank for _, rank in wrong}))
    yield AcceptanceCheck(
        name="same bits",
        part=record.case,
        measured=f"{len(record.results)} operations, twice on {world} device{'s' * (world > 1)}"
        if record.results
        else "nothing",
        against="itself and the other devices" if world > 1 else "itself",
        limit="no bit differs",
        **_decided(
            not wrong if record.results else None,
            "; ".join(f"{name} on rank {rank}" for name, rank in wrong[:8]) or "it was not computed twice",
        ),
        ranks=ranks,
    )
    if world > 1:
        slow = record.slow_devices
        known = any(len(each.devices) > 1 for each in record.measurements)
        shares = ", ".join(f"rank {one.rank} reaches {one.share:.0%} of the others" for one in slow)
        others = disturbance(record) if facts["device_kind"] == "cpu" and not _confined(record) else ""
        why = f"{shares}, beside {others}" if slow and others else shares
        yield AcceptanceCheck(
            name="devices alike",
            part=record.case,
            measured=shares or _slowest_device(record),
            against="the other devices",
            limit="none slower by 5% and three standard errors",
            **_decided(
                None if not known or (slow and others) else not slow, why or "nothing was measured on all of them"
            ),
            ranks=tuple(one.rank for one in slow),
        )
    cpu = record.telemetry.cpu if record.telemetry is not None else None
    if facts["device_kind"] == "cpu" and cpu is not None and cpu.quota is not None:
        yield AcceptanceCheck(
            name="quota",
            part=record.case,
            measured=f"{cpu.quota:g} processors",
            against="the control group",
            limit=f"{world} for {world} ranks",
            **_decided(cpu.quota >= world, "the control group allows fewer processors than there are ranks"),
        )


def device_shares(record: Record) -> list[float | None]:
    """Of each device of a node, the median share of the others' rate over all measurements; None for one alone."""
    measured = [each.devices for each in record.measurements if len(each.devices) > 1]
    shares: list[float | None] = []
    for rank in range(len(record.system.devices)):
        of_rank = []
        for rates in measured:
            if rank < len(rates):
                of_rank.append(rates[rank] / median([*rates[:rank], *rates[rank + 1 :]]))
        shares.append(median(of_rank) if of_rank else None)
    return shares


def _slowest_device(record: Record) -> str:
    """`rank 1 reaches 98% of the others`."""
    shares = [(share, rank) for rank, share in enumerate(device_shares(record)) if share is not None]
    if not shares:
        return "nothing"
    share, rank = min(shares)
    return f"rank {rank} reaches {share:.0%} of the others"


def _confined(record: Record) -> bool:
    """Whether a slow rank may use fewer processors than another one: then it is slow by its place, not by chance."""
    allowed = {rank.rank: rank.processors for rank in record.ranks if rank.processors}
    return any(allowed.get(one.rank, math.inf) < max(allowed.values(), default=0) for one in record.slow_devices)


def disturbance(record: Record) -> str:
    """What else used the machine during a run; empty if nothing did."""
    telemetry = record.telemetry
    if telemetry is None:
        return ""
    found = others_on_devices(telemetry.devices)
    if record.software.cuda is None and record.software.hip is None:
        found += others_on_processors(telemetry.cpu)
    return ", ".join(found)


def _numbers(
    subject: Subject, catalog: Catalog, part: Mapping[str, Any], history: Sequence[Record], disturbed: str
) -> Iterator[AcceptanceCheck]:
    """What a run measured, beside claims, rows of the catalogue and earlier runs of this store."""
    record, case = subject.record, subject.case
    terms = Terms(priors={name: _read_prior(prior) for name, prior in part["priors"].items()})
    claimed = set()
    for claim in claims_for(record, case, catalog.claims.values()):
        if claim.conditions.get(DEVICE_MODEL) != record.conditions.get(DEVICE_MODEL):
            continue
        gate = case.held_to(claim.metrics).gate
        for result in verify_claim([record], claim, case, terms=terms).metrics:
            if not result.comparable or result.ratio is None or result.name != gate:
                continue
            if "pageable" in gate or gate.startswith(MAMF):  # depends on the host's pages; held below
                continue
            claimed.add(result.name)
            other = agreement(record.conditions.get(LAYERS), claim.conditions.get(LAYERS)) is Agreement.DIFFERS
            limit = CATALOGUED if other else LOW
            if steady := _steady(result, record):
                metric, value = steady
                ratio = quotient(estimate([metric], terms.prior(metric.name)), Estimate(value, runs=0))
                yield _compared(metric, subject, f"claim {claim.id}", ratio, value, limit, disturbed)
            else:
                yield _number(result, subject, f"claim {claim.id}", limit, disturbed)
    for metric, row, value in _nearby(record, case, catalog):
        if metric.name not in claimed:
            ratio = quotient(estimate([metric], terms.prior(metric.name)), Estimate(value, runs=0))
            yield _compared(metric, subject, row, ratio, value, CATALOGUED, disturbed)
    if history:
        try:
            compared = verify_baseline([record], history, case, any_seed=True, terms=terms)
        except FlagbenchError as error:
            yield _undecided("history", case.name, "it can be compared", error.message)
            return
        kind = "cpu" if record.stack == "cpu" else "cuda"
        held = HELD[kind] if case.kind == MEASURE else (case.gate,)
        against = f"{len(history)} earlier run{'s' * (len(history) > 1)} of this store"
        for result in compared.metrics:
            if result.ratio is not None and result.comparable and result.name in held:
                yield _number(result, subject, against, EARLIER[kind], disturbed)


def plain_prior(prior: Prior) -> dict[str, Any]:
    """What is known of the spread between runs, as JSON, which has no infinite numbers."""
    session = prior.session and {**prior.session._asdict(), "df": min(prior.session.df, _MOST_DF)}
    return {**prior._asdict(), "df": min(prior.df, _MOST_DF), "session": session}


def _read_prior(plain: Mapping[str, Any]) -> Prior:
    session = plain["session"] and SessionSpread(**plain["session"])
    return Prior(**{**plain, "session": session})


_MOST_DF = 1e9
"""Degrees of freedom that are as good as infinitely many."""


def _steady(result: MetricResult, record: Record) -> tuple[Metric, float] | None:
    """Instead of the mean of a short run, which has no interval: its median and the published value in its unit."""
    name, factor = result.name.removesuffix("_mean"), 1.0
    if name == "all_reduce":  # published as twice the bus bandwidth
        name, factor = "all_reduce_busbw", 2.0
    metric = record.metric(name)
    return (metric, result.expected.value / factor) if metric is not None and name != result.name else None


def _nearby(record: Record, case: Case, catalog: Catalog) -> Iterator[tuple[Metric, str, float]]:
    """Rows of the catalogue on this device, and MAMF's products in any shape, each after the metric that is compared
    with it, and with its value."""
    if case.kind != MEASURE:
        gate = gate_spec(case)
        measured = record.metric(gate.held_by or gate.name)
        for row in rows_beside(record, catalog):
            published = row.metric(gate.name)
            if measured is not None and published is not None and measured.unit == published.unit:
                yield measured, f"catalogue {row.id}", published.value
        return
    for claim in catalog.claims.values():
        published = claim.metrics[0]
        if published.name.startswith(MAMF) and claim.conditions[DEVICE_MODEL] == record.conditions.get(DEVICE_MODEL):
            both = record.metric(published.name), record.metric(f"{published.name.replace(MAMF, 'matmul')}_best")
            known = [metric for metric in both if metric is not None]
            if known:
                yield next((m for m in known if m.ci95), known[0]), f"claim {claim.id}", published.value


def _number(result: MetricResult, subject: Subject, against: str, limit: float, disturbed: str) -> AcceptanceCheck:
    assert result.measured is not None
    metric = Metric(result.held_by, result.measured.value, result.unit, "job")
    return _compared(metric, subject, against, result.ratio, result.expected.value, limit, disturbed)


def _fifths(subject: Subject, name: str) -> tuple[float, float] | None:
    """The lowest and the highest median rate of five consecutive parts of what a metric was measured in, relative to
    the median of all; None where there is no evidence of so many."""
    measured, section = subject.case.kind == MEASURE, subject.section
    if section is None:
        return None
    name = name.removesuffix("_busbw")
    window = window_of(section.stretch(name) if measured else section.stretch(kind_of(subject.config), WINDOW))
    if window is None or len(window.micro) < 4 * PARTS or not all(window.micro):
        return None
    rates = [amount / micro for amount, micro in zip(window.stretch.amount("samples"), window.micro, strict=True)]
    n, middle = len(rates), median(rates)
    parts = [median(rates[n * part // PARTS : n * (part + 1) // PARTS]) for part in range(PARTS)]
    return min(parts) / middle, max(parts) / middle


def _compared(
    metric: Metric, subject: Subject, against: str, ratio: Ratio | None, expected: float, limit: float, disturbed: str
) -> AcceptanceCheck:
    """A number beside what it is held against: it fails where its whole interval is below the limit.

    Instead of an interval, one that is not steady has the median rates of the slowest and the fastest fifth of its
    repeats or steps. It passes by them, and does not fail.
    """
    steady = ratio is not None and ratio.ci95 is not None
    if ratio is not None and not steady and (ends := _fifths(subject, metric.name)):
        ratio = Ratio(ratio.value, (ratio.value * ends[0], ratio.value * ends[1]), BY_PARTS)
    low, high = ratio.ci95 if ratio is not None and ratio.ci95 is not None else (-math.inf, math.inf)
    ok = None
    why = "its interval contains the limit" if steady else "it was not steady"
    if low >= limit:
        ok = True
    elif steady and high < limit:
        ok, why = (
            (None, f"below the limit, while there were {disturbed}") if disturbed else (False, "below the limit")
        )
    return AcceptanceCheck(
        name=metric.name,
        part=subject.case.name,
        measured=f"{four_digits(metric.value)} {metric.unit}",
        against=f"{four_digits(expected)} of {against}",
        limit=f"at least {limit:.0%}",
        floor=limit,
        ratio=ratio,
        **_decided(ok, why),
    )


def conclude(
    checks: Sequence[AcceptanceCheck], facts: Mapping[str, Any], records: Mapping[str, Record]
) -> dict[str, Any]:
    """The outcome of the whole, why, and what to do: `use`, `run again` with so many minutes, or `drain`."""
    failed = [check for check in checks if check.outcome is Outcome.FAIL]
    open_ = [check for check in checks if check.outcome is Outcome.INCONCLUSIVE]
    outcome, minutes = Outcome.INCONCLUSIVE, facts["asked"]["minutes"]
    action: dict[str, Any] = {"do": "run again", "ranks": [], "devices": [], "minutes": minutes}
    if failed:
        outcome = Outcome.FAIL
        reason = "; ".join(f"the check {check.name} failed: {check.reason}" for check in failed[:3])
        ranks = sorted({rank for check in failed for rank in check.ranks})
        own = (records[part["record_id"]] for part in facts["parts"] if part["record_id"] in records)
        known = {rank.rank: rank.uuid for record in own for rank in record.ranks if rank.uuid}
        uuids = [known[rank] for rank in ranks if rank in known]
        action.update(do="drain", ranks=ranks, devices=uuids, minutes=None)
    elif facts["ending"] == "interrupted":
        reason = "interrupted"
    elif open_:
        named = []
        for check in open_[:3]:
            where = check.part if check.name == "ran" else f"{check.part}, {check.name}"
            named.append(f"{where}: {check.reason}")
        reason = "; ".join(named) + (f"; and {len(open_) - 3} more" if len(open_) > 3 else "")
        if any(check.name == "ran" or check.ratio is not None for check in open_):
            action["minutes"] = 2 * minutes
    elif not any(check.ratio is not None or check.name == "devices alike" for check in checks):
        reason = "no published row of this device and no earlier run in the store to compare its speed with"
    else:
        outcome, reason = Outcome.PASS, f"all {len(checks)} checks passed"
        action.update(do="use", minutes=None)
    return {"outcome": outcome.value, "reason": reason, "action": action}
