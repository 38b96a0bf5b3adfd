"""All numbers of a record, computed again from its evidence, and where the record has others.

Only names that the record has and this version derives are compared: an earlier version derived fewer, a later one
derives more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from flagbench.manifests.model import Case
from flagbench.records.model import Metric, Record, SlowDevice, SlowestDevice
from flagbench.verdict import checks
from flagbench.verdict.derivation import UNKNOWN, count, leaves, look_up
from flagbench.verdict.subject import Subject
from flagbench_core import __version__
from flagbench_core.evidence import Derived, EvidenceError, Facts, Section, derive
from flagbench_core.evidence.metrics import LOSS_TAIL
from flagbench_core.evidence.roofs import MAMF, MAMF_REPEATS
from flagbench_core.evidence.section import MEASURE, TRAIN, WARMUP, WINDOW, digest_of, kind_of, read_section

_WHOLE_NUMBER = 1e-3
"""How far a number of right answers, computed from a share, may be from a whole number."""
TOLERANCE = 1e-6
"""Largest relative difference between a number and what the evidence gives: both are computed by the same code."""
_NEAR_ZERO = 1e-9
"""What two results of the same sum may differ by, relative to the terms: for differences and spreads near zero."""


class _Extra(msgspec.Struct):
    name: str
    value: float
    unit: str
    note: str


class _Evaluation(msgspec.Struct):
    """The part of an entry of `quality.evaluations` that metrics follow from."""

    epoch: int
    counted: int
    accuracy: float | None
    published_accuracy: float | None
    extra: list[_Extra]


def recompute(record: Record, case: Case) -> Subject:
    """The record with the metrics that its evidence gives; as it is without evidence, or if its run did not end well.

    Its intervals are always those of this version.
    """
    if record.evidence is None or record.config is None or record.status.state != "ok":
        return Subject(record, case)
    raw = record.raw["evidence"]
    if (digest := digest_of(raw)) != record.evidence_digest:
        wrong = f"evidence_digest is {record.evidence_digest}, and its evidence gives {digest}"
        return Subject(record, case, unreadable=(wrong,))
    try:
        section = read_section(raw)
        if unfit := (*_extent(record, section),):
            return Subject(record, case, unreadable=unfit)
        found = derive(section, facts(record, case, section))
    except msgspec.ValidationError as error:
        return Subject(record, case, unreadable=(f"its evaluations cannot be read: {error}",))
    except EvidenceError as error:
        return Subject(record, case, unreadable=(f"its evidence contradicts itself: {error}",))
    except OverflowError:
        return Subject(record, case, unreadable=("its evidence has numbers that are too large to compute with",))
    computed = {(entry["name"], entry["scope"]): entry for entry in found.metrics}
    both = (metric for metric in record.metrics if (metric.name, metric.scope) in computed)
    metrics = tuple(_computed(metric, computed[metric.name, metric.scope]) for metric in both)
    return Subject(
        replace(record, metrics=metrics),
        case,
        section,
        differences=(*_differences(record, found, section),),
        unmatched=(*_unmatched(record, found), *_checks_since(record, case)),
    )


_STATED_FLOPS = {"formula", "peak", "peak_reason"}
"""Fields of `flops` that do not follow from evidence."""
_FLOPS = ("executed", "recomputed", "useful")


def _unmatched(record: Record, found: Derived) -> Iterator[str]:
    """Metrics and fields that only one of the record and this version has, like `metric f1` and `window.drift`."""
    here, there = ({(m.name, m.scope) for m in record.metrics}, {(m["name"], m["scope"]) for m in found.metrics})
    yield from (f"metric {name}" for name, _ in sorted(here ^ there))
    for section in ("timing", "window", "work", "flops"):
        mine, theirs = (_named(side) for side in (record.raw.get(section), getattr(found, section)))
        names = sorted((mine ^ theirs) - _STATED_FLOPS)
        if names:
            yield from (f"{section}.{name}" for name in names) if mine and theirs else (section,)


def _checks_since(record: Record, case: Case) -> Iterator[str]:
    """Checks that the case may have got after another version made the record."""
    if record.flagbench.version != __version__:
        yield from (f"check {name}" for name in checks.missing(record, case))


def _named(section: Mapping[str, Any] | None) -> set[str]:
    return {name for name, value in (section or {}).items() if value is not None}


def _differences(record: Record, found: Derived, section: Section) -> Iterator[str]:
    """Every number of a record that does not follow from its evidence, with both numbers."""
    expected = {(entry["name"], entry["scope"]): entry for entry in found.metrics}
    for metric in record.metrics:
        if entry := expected.get((metric.name, metric.scope)):
            names = ["value", "unit", "n", "stdev"]
            # Another version may have another method; a verdict rests on the interval that is computed here.
            if metric.ci95 is None or metric.ci_method in (None, entry.get("ci_method")):
                names.append("ci95")
            yield from _fields(f"metric {metric.name}", metric, entry, names, abs(entry["value"]))
            yield from _fields(
                f"slowest device of {metric.name}", metric.slowest_device, entry.get("slowest_device") or {}
            )
    for part in ("timing", "window", "work"):
        yield from _fields(part, getattr(record, part), getattr(found, part), scale=1.0 if part == "window" else 0.0)
    if record.flops is not None and found.flops is not None:
        yield from _fields("flops", record.flops, found.flops, _FLOPS)
        ceiling = record.flops.measured_ceiling
        if ceiling is not None:
            there = {"flops": found.flops["measured_ceiling"]}
            yield from _fields("flops.measured_ceiling", ceiling, there, ("flops",))
    names = [measurement.name for measurement in record.measurements]
    if names != (expected_names := [entry["name"] for entry in found.measurements]):
        yield f"measurements has {', '.join(names)}, and its evidence gives {', '.join(expected_names)}"
    slow = [msgspec.convert(entry, SlowDevice) for entry in found.slow_devices]
    if [device.rank for device in record.slow_devices] != [device.rank for device in slow]:
        yield f"slow_devices has {len(record.slow_devices)} entries, and its evidence gives {slow}"
    for measurement, entry in zip(record.measurements, found.measurements, strict=False):
        yield from _fields(f"measurement {measurement.name}", measurement, entry)
    for rank in record.ranks:
        yield from _fields(f"rank {rank.rank}", rank, {**found.ranks[rank.rank], "steps": section.steps})
    training = record.quality.training if record.quality is not None else None
    yield from _fields("quality.training", training, found.pipeline, scale=1.0)


def _fields(
    where: str, mine: Any, theirs: Mapping[str, Any] | None, names: Sequence[str] | None = None, scale: float = 0.0
) -> Iterator[str]:
    """The fields that both have and that differ; `scale`: the size of the terms of a number that may be near zero."""
    here = mine if isinstance(mine, Mapping) else msgspec.structs.asdict(mine) if mine is not None else {}
    there = theirs or {}
    for name in there if names is None else names:
        one, other = here.get(name), there.get(name)
        if one is not None and other is not None and not _agree(one, other, scale):
            one, other = _first_difference(one, other, scale)
            what = where if name == "value" else f"{where}: {name}"
            yield f"{what} is {_shown(one)}, and its evidence gives {_shown(other)}"


def _agree(mine: Any, theirs: Any, scale: float) -> bool:
    if _is_list(mine) and _is_list(theirs):
        return len(mine) == len(theirs) and all(_agree(a, b, scale) for a, b in zip(mine, theirs, strict=True))
    if _is_number(mine) and _is_number(theirs):
        # `<=` and not `>`, which a NaN would pass.
        return bool(abs(mine - theirs) <= TOLERANCE * max(abs(mine), abs(theirs)) + _NEAR_ZERO * scale)
    return bool(mine == theirs)


def _first_difference(mine: Any, theirs: Any, scale: float) -> tuple[Any, Any]:
    """Of two lists of equal length the first entries that differ; else both as they are."""
    if _is_list(mine) and _is_list(theirs) and len(mine) == len(theirs) > 2:
        return next((a, b) for a, b in zip(mine, theirs, strict=True) if not _agree(a, b, scale))
    return mine, theirs


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """A number with the digits that tell it from another within TOLERANCE."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if _is_list(value):
        return f"{len(value)} values" if len(value) > 2 else f"[{', '.join(map(_shown, value))}]"
    return str(value)


def _computed(metric: Metric, entry: Mapping[str, Any]) -> Metric:
    """A metric with its numbers as computed here."""
    interval = entry.get("ci95")
    return replace(
        metric,
        value=entry["value"],
        n=entry.get("n"),
        stdev=entry.get("stdev"),
        ci95=None if interval is None else (interval[0], interval[1]),
        ci_method=entry.get("ci_method"),
        ci_reason=entry.get("ci_reason"),
        slowest_device=msgspec.convert(entry.get("slowest_device"), SlowestDevice | None),
    )


def _extent(record: Record, section: Section) -> Iterator[str]:
    """Where the evidence is not of the ranks and steps that the record says it ran."""
    config = record.config or {}
    nodes, gpus = config.get("nodes"), config.get("gpus")
    world = nodes * gpus if isinstance(nodes, int) and isinstance(gpus, int) else None
    numbers = sorted(rank.rank for rank in record.ranks)
    if section.world != world or section.world != len(numbers) or numbers != list(range(len(numbers))):
        yield (
            f"its evidence is of {section.world} ranks, its configuration of {world}, and its list of ranks has "
            f"{len(set(numbers))}"
        )
        return
    kind = _kind(record)
    planned = config.get(kind)
    plan = planned if isinstance(planned, Mapping) else {}
    warmup, window = (plan.get(f"{part}_steps") for part in (WARMUP, WINDOW))
    if not isinstance(warmup, int) or not isinstance(window, int | None) or f"{WINDOW}_steps" not in plan:
        yield f"its configuration does not say how many steps it had: {kind}.warmup_steps, {kind}.window_steps"
        return
    phases = dict.fromkeys(span.phase for span in section.spans)
    if not phases or (kind == TRAIN and [*phases] != [TRAIN]) or (kind != TRAIN and TRAIN in phases):
        yield f"its evidence is of the phases {', '.join(phases) or 'none'}, and the run is of {kind}"
        return
    expected = []
    for phase in phases:
        steps = section.stretch(phase).steps
        middle = min(max(warmup, 0), steps)
        parts = ((phase, WARMUP, middle), (phase, WINDOW, steps - middle))
        expected += [part for part in parts if part[2]]
        most = MAMF_REPEATS if phase.startswith(MAMF) else window or 0
        short = kind == MEASURE and steps <= warmup + most  # an operation may be too slow for all repeats
        if window is not None and steps != warmup + window and not short:
            yield f"its evidence has {steps} steps of {phase}, and its configuration {warmup} + {window}"
    if expected != [(span.phase, span.part, span.steps) for span in section.spans]:
        yield f"its evidence does not separate the first {warmup} steps of each phase, as its configuration does"


def _kind(record: Record) -> str:
    return kind_of(record.config or {})


def facts(record: Record, case: Case, section: Section) -> Facts:
    """What the numbers of a record depend on besides its evidence. Raises msgspec.ValidationError, EvidenceError."""
    config, quality = record.config or {}, record.quality
    kind = _kind(record)
    losses = list(quality.losses.values) if quality is not None and quality.losses is not None else []
    if section.steps > len(losses) and kind == TRAIN:
        if len(section.loss_tail) != min(LOSS_TAIL, section.steps):
            raise EvidenceError(f"it has {len(losses)} losses of {section.steps} steps, and not the last {LOSS_TAIL}")
        losses = section.loss_tail
    tp, pp = (count(config, f"layout.{axis}") or 1 for axis in ("tp", "pp"))
    share = tp * pp
    if share < 1 or section.world % share:
        raise EvidenceError(f"its layout of {share} ranks per replica does not fit {section.world} ranks")
    layers = case.presets["reference"].get("model", {}).get("layers")
    flops, whole = record.flops, record.preset == "reference" and count(config, "model.layers") == layers
    # The publisher's FLOPs are those of the reference preset, and an earlier version had another one.
    if any(look_up(config, path) is UNKNOWN for path, _ in leaves(case.absent)):
        whole = False
    return Facts(
        kind=kind,
        unit=case.unit,
        replicas=section.world // share,
        complete=config[kind]["window_steps"] is None and not (quality and quality.resumed),
        precision=str(config.get("precision")),
        published=case.raw["flops"].get("published") if whole and case.formula else None,
        peak=float(flops.peak.flops) if flops is not None and flops.peak is not None else None,
        device_kind="",
        evaluations=_evaluations(quality.evaluations if quality is not None else ()),
        losses=losses[-LOSS_TAIL:],
        stages=pp,
        counted=case.formula is not None,
        nodes=record.system.nodes,
    )


def _evaluations(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Evaluations whose accuracy is that of a whole number of right answers.

    Raises msgspec.ValidationError for other types, EvidenceError for another accuracy.
    """
    found = msgspec.convert(entries, list[_Evaluation])
    for entry in found:
        right = (entry.accuracy or 0.0) * entry.counted
        if not 0 <= right <= entry.counted or abs(right - round(right)) > _WHOLE_NUMBER:
            raise EvidenceError(
                f"an accuracy of {entry.accuracy} is not that of {entry.counted} examples: {right:.9g} would be right"
            )
    builtins: list[dict[str, Any]] = msgspec.to_builtins(found)
    return builtins
