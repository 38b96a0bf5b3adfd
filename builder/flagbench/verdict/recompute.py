"""All numbers of a record, computed again from its evidence, and where the record has others.

Only names that the record has and this version derives are compared: an earlier version derived fewer, a later one
derives more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
    digest = digest_of(raw)
    if digest != record.evidence_digest:
        problem = f"evidence_digest is {record.evidence_digest}, and its evidence gives {digest}"
        return Subject(record, case, unreadable=(problem,))
    try:
        section = read_section(raw)
        problems = _extent_problems(record, section)
        if problems:
            return Subject(record, case, unreadable=tuple(problems))
        derived = derive(section, facts(record, case, section))
    except msgspec.ValidationError as error:
        return Subject(record, case, unreadable=(f"its evaluations cannot be read: {error}",))
    except EvidenceError as error:
        return Subject(record, case, unreadable=(f"its evidence contradicts itself: {error}",))
    except OverflowError:
        return Subject(record, case, unreadable=("its evidence has numbers that are too large to compute with",))
    derived_metrics = _by_name_and_scope(derived)
    metrics = []
    for metric in record.metrics:
        if (metric.name, metric.scope) in derived_metrics:
            metrics.append(_replace_numbers(metric, derived_metrics[metric.name, metric.scope]))
    return Subject(
        replace(record, metrics=tuple(metrics)),
        case,
        section,
        differences=tuple(_differences(record, derived, section)),
        unmatched=(*_unmatched(record, derived), *_checks_since(record, case)),
    )


def _by_name_and_scope(derived: Derived) -> dict[tuple[str, str], dict[str, Any]]:
    """The metrics that the evidence gives, by name and scope."""
    return {(metric["name"], metric["scope"]): metric for metric in derived.metrics}


_STATED_FLOPS = {"formula", "peak", "peak_reason"}
"""Fields of `flops` that do not follow from evidence."""
_FLOPS = ("executed", "recomputed", "useful")


def _unmatched(record: Record, derived: Derived) -> Iterator[str]:
    """Metrics and fields that only one of the record and this version has, like `metric f1` and `window.drift`."""
    recorded_metrics = {(metric.name, metric.scope) for metric in record.metrics}
    for name, _ in sorted(recorded_metrics ^ _by_name_and_scope(derived).keys()):
        yield f"metric {name}"
    for section in ("timing", "window", "work", "flops"):
        recorded_names, derived_names = _field_names(record.raw.get(section)), _field_names(getattr(derived, section))
        names = sorted((recorded_names ^ derived_names) - _STATED_FLOPS)
        if not names:
            continue
        if recorded_names and derived_names:
            yield from (f"{section}.{name}" for name in names)
        else:
            yield section


def _checks_since(record: Record, case: Case) -> Iterator[str]:
    """Checks that the case may have got after another version made the record."""
    if record.flagbench.version != __version__:
        yield from (f"check {name}" for name in checks.missing(record, case))


def _field_names(section: Mapping[str, Any] | None) -> set[str]:
    """The fields of a section that are not null."""
    if section is None:
        return set()
    return {name for name, value in section.items() if value is not None}


def _differences(record: Record, derived: Derived, section: Section) -> Iterator[str]:
    """Every number of a record that does not follow from its evidence, with both numbers."""
    yield from _metric_differences(record, derived)
    yield from _differing_fields("timing", record.timing, derived.timing)
    yield from _differing_fields("window", record.window, derived.window, scale=1.0)
    yield from _differing_fields("work", record.work, derived.work)
    if record.flops is not None and derived.flops is not None:
        yield from _differing_fields("flops", record.flops, derived.flops, _FLOPS)
        ceiling = {"flops": derived.flops["measured_ceiling"]}
        yield from _differing_fields("flops.measured_ceiling", record.flops.measured_ceiling, ceiling, ("flops",))
    yield from _measurement_differences(record, derived)
    for rank in record.ranks:
        derived_rank = {**derived.ranks[rank.rank], "steps": section.steps}
        yield from _differing_fields(f"rank {rank.rank}", rank, derived_rank)
    if record.quality is not None:
        yield from _differing_fields("quality.training", record.quality.training, derived.pipeline, scale=1.0)


def _metric_differences(record: Record, derived: Derived) -> Iterator[str]:
    """The metrics that both have and that differ."""
    derived_metrics = _by_name_and_scope(derived)
    for metric in record.metrics:
        expected = derived_metrics.get((metric.name, metric.scope))
        if expected is None:
            continue
        names = ["value", "unit", "n", "stdev"]
        # Another version may have another method; a verdict rests on the interval that is computed here.
        if metric.ci95 is None or metric.ci_method in (None, expected.get("ci_method")):
            names.append("ci95")
        yield from _differing_fields(f"metric {metric.name}", metric, expected, names, abs(expected["value"]))
        slowest = expected.get("slowest_device")
        yield from _differing_fields(f"slowest device of {metric.name}", metric.slowest_device, slowest)


def _measurement_differences(record: Record, derived: Derived) -> Iterator[str]:
    """The measurements and slow devices that differ."""
    names = [measurement.name for measurement in record.measurements]
    expected_names = [measurement["name"] for measurement in derived.measurements]
    if names != expected_names:
        yield f"measurements has {', '.join(names)}, and its evidence gives {', '.join(expected_names)}"
    slow_devices = [msgspec.convert(device, SlowDevice) for device in derived.slow_devices]
    if [device.rank for device in record.slow_devices] != [device.rank for device in slow_devices]:
        yield f"slow_devices has {len(record.slow_devices)} entries, and its evidence gives {slow_devices}"
    for measurement, expected in zip(record.measurements, derived.measurements, strict=False):
        yield from _differing_fields(f"measurement {measurement.name}", measurement, expected)


def _differing_fields(
    where: str,
    section: msgspec.Struct | Mapping[str, Any] | None,
    derived: Mapping[str, Any] | None,
    names: Iterable[str] | None = None,
    scale: float = 0.0,
) -> Iterator[str]:
    """The fields of a section that both the record and its evidence have, and that differ.

    Args:
        where: the path of the section, for messages.
        section: as the record has it.
        derived: as the evidence gives it.
        names: the fields to compare; None for all.
        scale: the size of the terms of a number that may be near zero.
    """
    if section is None or derived is None:
        return
    fields = section if isinstance(section, Mapping) else msgspec.structs.asdict(section)
    if names is None:
        names = derived
    for name in names:
        recorded, expected = fields.get(name), derived.get(name)
        if recorded is None or expected is None or _agree(recorded, expected, scale):
            continue
        recorded, expected = _first_difference(recorded, expected, scale)
        field = where if name == "value" else f"{where}: {name}"
        yield f"{field} is {_number_text(recorded)}, and its evidence gives {_number_text(expected)}"


def _agree(recorded: Any, expected: Any, scale: float) -> bool:
    if _is_list(recorded) and _is_list(expected):
        if len(recorded) != len(expected):
            return False
        return all(_agree(a, b, scale) for a, b in zip(recorded, expected, strict=True))
    if _is_number(recorded) and _is_number(expected):
        allowed = TOLERANCE * max(abs(recorded), abs(expected)) + _NEAR_ZERO * scale
        return bool(abs(recorded - expected) <= allowed)  # `<=` and not `>`, which a NaN would pass
    return bool(recorded == expected)


def _first_difference(recorded: Any, expected: Any, scale: float) -> tuple[Any, Any]:
    """Of two lists of equal length the first elements that differ; else both as they are."""
    if _is_list(recorded) and _is_list(expected) and len(recorded) == len(expected) > 2:
        for a, b in zip(recorded, expected, strict=True):
            if not _agree(a, b, scale):
                return a, b
    return recorded, expected


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_text(value: Any) -> str:
    """A number with the digits that tell it from another within TOLERANCE."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if not _is_list(value):
        return str(value)
    if len(value) > 2:
        return f"{len(value)} values"
    return f"[{', '.join(_number_text(element) for element in value)}]"


def _replace_numbers(metric: Metric, derived: Mapping[str, Any]) -> Metric:
    """A metric with its numbers as computed here."""
    interval = derived.get("ci95")
    if interval is not None:
        low, high = interval
        interval = (low, high)
    return replace(
        metric,
        value=derived["value"],
        n=derived.get("n"),
        stdev=derived.get("stdev"),
        ci95=interval,
        ci_method=derived.get("ci_method"),
        ci_reason=derived.get("ci_reason"),
        slowest_device=msgspec.convert(derived.get("slowest_device"), SlowestDevice | None),
    )


class _Plan(NamedTuple):
    """The steps of each phase by the configuration."""

    warmup: int
    window: int | None
    """None where the window ends with the training."""


def _extent_problems(record: Record, section: Section) -> list[str]:
    """Where the ranks and steps of the evidence are not those of the record."""
    rank_problem = _rank_problem(record, section)
    if rank_problem is not None:
        return [rank_problem]
    kind = _kind(record)
    plan = _planned_steps(record, kind)
    if plan is None:
        return [f"its configuration does not say how many steps it had: {kind}.warmup_steps, {kind}.window_steps"]
    phases = list(dict.fromkeys(span.phase for span in section.spans))
    if not _are_phases_of(kind, phases):
        return [f"its evidence is of the phases {', '.join(phases) or 'none'}, and the run is of {kind}"]
    problems = []
    parts = []
    for phase in phases:
        steps = section.stretch(phase).steps
        warmup = min(max(plan.warmup, 0), steps)
        if warmup > 0:
            parts.append((phase, WARMUP, warmup))
        if steps > warmup:
            parts.append((phase, WINDOW, steps - warmup))
        if not _is_planned(plan, kind, phase, steps):
            problems.append(
                f"its evidence has {steps} steps of {phase}, and its configuration {plan.warmup} + {plan.window}"
            )
    if parts != [(span.phase, span.part, span.steps) for span in section.spans]:
        problems.append(
            f"its evidence does not separate the first {plan.warmup} steps of each phase, as its configuration does"
        )
    return problems


def _rank_problem(record: Record, section: Section) -> str | None:
    """That the evidence, the configuration and the list of ranks are not of the same ranks."""
    config = record.config or {}
    nodes, gpus = config.get("nodes"), config.get("gpus")
    world = None
    if isinstance(nodes, int) and isinstance(gpus, int):
        world = nodes * gpus
    ranks = sorted(rank.rank for rank in record.ranks)
    if section.world == world == len(ranks) and ranks == list(range(len(ranks))):
        return None
    return (
        f"its evidence is of {section.world} ranks, its configuration of {world}, and its list of ranks has "
        f"{len(set(ranks))}"
    )


def _planned_steps(record: Record, kind: str) -> _Plan | None:
    """The steps of each phase by the configuration; None if it does not say."""
    plan = (record.config or {}).get(kind)
    if not isinstance(plan, Mapping) or f"{WINDOW}_steps" not in plan:
        return None
    warmup, window = plan.get(f"{WARMUP}_steps"), plan[f"{WINDOW}_steps"]
    if not isinstance(warmup, int) or not isinstance(window, int | None):
        return None
    return _Plan(warmup, window)


def _are_phases_of(kind: str, phases: Sequence[str]) -> bool:
    """Whether a run of this kind can have these phases."""
    if kind == TRAIN:
        return phases == [TRAIN]
    return bool(phases) and TRAIN not in phases


def _is_planned(plan: _Plan, kind: str, phase: str, steps: int) -> bool:
    """Whether a phase has as many steps as planned; an operation may be too slow for all of its repeats."""
    if plan.window is None or steps == plan.warmup + plan.window:
        return True
    most = MAMF_REPEATS if phase.startswith(MAMF) else plan.window
    return kind == MEASURE and steps <= plan.warmup + most


def _kind(record: Record) -> str:
    return kind_of(record.config or {})


def facts(record: Record, case: Case, section: Section) -> Facts:
    """What the numbers of a record depend on besides its evidence. Raises msgspec.ValidationError, EvidenceError."""
    config, quality, flops = record.config or {}, record.quality, record.flops
    kind = _kind(record)
    stages = count(config, "layout.pp") or 1
    ranks_of_replica = (count(config, "layout.tp") or 1) * stages
    if ranks_of_replica < 1 or section.world % ranks_of_replica:
        raise EvidenceError(f"its layout of {ranks_of_replica} ranks per replica does not fit {section.world} ranks")
    resumed = quality is not None and bool(quality.resumed)
    losses = _last_losses(record, section)
    evaluations: list[dict[str, Any]] = []
    if quality is not None:
        evaluations = _evaluations(quality.evaluations)
    peak, published = None, None
    if flops is not None and flops.peak is not None:
        peak = float(flops.peak.flops)
    if _has_published_flops(record, case):
        published = case.raw["flops"].get("published")
    return Facts(
        kind=kind,
        unit=case.unit,
        replicas=section.world // ranks_of_replica,
        complete=config[kind]["window_steps"] is None and not resumed,
        precision=str(config.get("precision")),
        published=published,
        peak=peak,
        device_kind="",
        evaluations=evaluations,
        losses=losses,
        stages=stages,
        counted=case.formula is not None,
        nodes=record.system.nodes,
    )


def _last_losses(record: Record, section: Section) -> list[float | None]:
    """The losses of the last steps: those of the record, or the evidence's where the record has only the first ones.

    Raises EvidenceError where neither has them.
    """
    losses: list[float | None] = []
    if record.quality is not None and record.quality.losses is not None:
        losses = list(record.quality.losses.values)
    if section.steps > len(losses) and _kind(record) == TRAIN:
        if len(section.loss_tail) != min(LOSS_TAIL, section.steps):
            raise EvidenceError(f"it has {len(losses)} losses of {section.steps} steps, and not the last {LOSS_TAIL}")
        losses = section.loss_tail
    return losses[-LOSS_TAIL:]


def _has_published_flops(record: Record, case: Case) -> bool:
    """Whether the publisher's FLOPs are those of the record's model: the whole one of this version's preset."""
    if not case.formula or record.preset != "reference":
        return False
    layers = case.presets["reference"].get("model", {}).get("layers")
    if count(record.config, "model.layers") != layers:
        return False
    # An earlier version may have had another reference preset.
    return not any(look_up(record.config, path) is UNKNOWN for path, _ in leaves(case.absent))


def _evaluations(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Evaluations whose accuracy is that of a whole number of right answers.

    Raises msgspec.ValidationError for other types, EvidenceError for another accuracy.
    """
    evaluations = msgspec.convert(entries, list[_Evaluation])
    for evaluation in evaluations:
        right = (evaluation.accuracy or 0.0) * evaluation.counted
        if not 0 <= right <= evaluation.counted or abs(right - round(right)) > _WHOLE_NUMBER:
            raise EvidenceError(
                f"an accuracy of {evaluation.accuracy} is not that of {evaluation.counted} examples: "
                f"{right:.9g} would be right"
            )
    builtins: list[dict[str, Any]] = msgspec.to_builtins(evaluations)
    return builtins
