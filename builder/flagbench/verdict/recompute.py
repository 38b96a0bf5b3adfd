"""Compute all numbers of a record again from its evidence, and find those that the record states otherwise.

A verdict does not rest on the summary of a record, but on its evidence: the time, work and loss of each step and
rank. `recompute` is the first step of `verify`. Only numbers that both the record has and this version of flagbench
derives are compared, because an earlier version derived fewer and a later one derives more.
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
from flagbench_core.case_kinds import MEASURE, TRAIN, kind_of
from flagbench_core.evidence import Derived, EvidenceError, Facts, RecordEvidence, derive
from flagbench_core.evidence.document import WARMUP, WINDOW, digest_of, read_evidence
from flagbench_core.evidence.generation import generation_of
from flagbench_core.evidence.metrics import LOSS_TAIL
from flagbench_core.evidence.roofs import MAMF, MAMF_REPEATS

_WHOLE_NUMBER = 1e-3
"""How far a number of right answers may be from a whole number, because it is computed from a rounded share."""
TOLERANCE = 1e-6
"""Largest relative difference between a number and what the evidence gives: both are computed by the same code."""
_NEAR_ZERO = 1e-9
"""Largest difference between two results of the same sum, relative to its terms. It is for differences and spreads,
which may be near zero although their terms are not."""
_SHORT_LIST = 2
"""The most numbers of a list that a message shows, so that it shows the ends of an interval."""


class _Extra(msgspec.Struct):
    """A metric that a case adds to its evaluations, such as an F1 score."""

    name: str
    value: float
    unit: str
    note: str
    """How the case computes it."""


class _Evaluation(msgspec.Struct):
    """The part of an entry of `quality.evaluations` that metrics follow from."""

    epoch: int
    """The epoch after which it was made; -1 before training."""
    counted: int
    """The number of examples that the accuracy is of."""
    accuracy: float | None
    published_accuracy: float | None
    """The accuracy as the publisher's code computes it, if that differs."""
    extra: list[_Extra]


def recompute(record: Record, case: Case) -> Subject:
    """Return the record as a Subject, with the metrics and intervals that this version computes from its evidence.

    A record without evidence keeps its own numbers, and so does one whose run did not end well. If the evidence
    cannot be read, the Subject says why in `unreadable`.
    """
    if record.evidence is None or record.config is None:
        return Subject(record, case)
    if record.status.state != "ok":
        return Subject(record, case)
    raw = record.raw["evidence"]
    digest = digest_of(raw)
    if digest != record.evidence_digest:
        problem = f"evidence_digest is {record.evidence_digest}, and its evidence gives {digest}"
        return Subject(record, case, unreadable=(problem,))
    try:
        evidence = read_evidence(raw)
        problems = _find_extent_problems(record, evidence)
        if problems:
            return Subject(record, case, unreadable=tuple(problems))
        derived = derive(evidence, collect_facts(record, case, evidence))
    except msgspec.ValidationError as error:
        return Subject(record, case, unreadable=(f"its evaluations cannot be read: {error}",))
    except EvidenceError as error:
        return Subject(record, case, unreadable=(f"its evidence contradicts itself: {error}",))
    except OverflowError:
        return Subject(record, case, unreadable=("its evidence has numbers that are too large to compute with",))
    derived_metrics = _by_name_and_scope(derived)
    metrics = []
    for metric in record.metrics:
        derived_metric = derived_metrics.get((metric.name, metric.scope))
        if derived_metric is not None:
            metrics.append(_replace_numbers(metric, derived_metric))
    return Subject(
        replace(record, metrics=tuple(metrics)),
        case,
        evidence,
        differences=tuple(_differences(record, derived, evidence)),
        unmatched=(*_unmatched(record, derived), *_checks_since(record, case)),
    )


def _by_name_and_scope(derived: Derived) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the metrics that the evidence gives, by name and scope; each has the fields of a record's metric."""
    return {(metric["name"], metric["scope"]): metric for metric in derived.metrics}


_STATED_FLOPS = {"formula", "peak", "peak_reason"}
"""Fields of `flops` that do not follow from evidence."""
_FLOPS = ("executed", "recomputed", "useful")
"""Fields of `flops` that are sums over the evidence."""


def _unmatched(record: Record, derived: Derived) -> Iterator[str]:
    """Yield the metrics and fields that either the record or this version lacks, as `metric f1` or `window.drift`."""
    recorded_metrics = {(metric.name, metric.scope) for metric in record.metrics}
    derived_metrics = set(_by_name_and_scope(derived))
    for name, _ in sorted(recorded_metrics.symmetric_difference(derived_metrics)):
        yield f"metric {name}"
    for section in ("timing", "window", "work", "flops"):
        recorded_names = _field_names(record.raw.get(section))
        derived_names = _field_names(getattr(derived, section))
        names = sorted(recorded_names.symmetric_difference(derived_names) - _STATED_FLOPS)
        if not names:
            continue
        if not recorded_names or not derived_names:
            yield section
            continue
        for name in names:
            yield f"{section}.{name}"


def _checks_since(record: Record, case: Case) -> Iterator[str]:
    """Yield the checks that a record of another version lacks: its case may not have had them yet."""
    if record.flagbench.version == __version__:
        return
    for name in checks.find_missing(record, case):
        yield f"check {name}"


def _field_names(section: Mapping[str, Any] | None) -> set[str]:
    """Return the names of the fields of a section that are not null."""
    if section is None:
        return set()
    return {name for name, value in section.items() if value is not None}


def _differences(record: Record, derived: Derived, evidence: RecordEvidence) -> Iterator[str]:
    """Yield a clause with both numbers for every number of a record that does not follow from its evidence."""
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
        derived_rank = {**derived.ranks[rank.rank], "steps": evidence.steps}
        yield from _differing_fields(f"rank {rank.rank}", rank, derived_rank)
    if record.quality is not None:
        yield from _differing_fields("quality.training", record.quality.training, derived.pipeline, scale=1.0)


def _metric_differences(record: Record, derived: Derived) -> Iterator[str]:
    """Yield the differences in metrics that both the record and its evidence have."""
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
    """Yield the differences in measurements (operations of the case `roofs`) and in the devices found slow."""
    names = [measurement.name for measurement in record.measurements]
    expected_names = [measurement["name"] for measurement in derived.measurements]
    if names != expected_names:
        yield f"measurements has {', '.join(names)}, and its evidence gives {', '.join(expected_names)}"
    slow_devices = [msgspec.convert(device, SlowDevice) for device in derived.slow_devices]
    if [device.rank for device in record.slow_devices] != [device.rank for device in slow_devices]:
        yield f"slow_devices has {len(record.slow_devices)} entries, and its evidence gives {slow_devices}"
    # If the lengths differ, the names do too, which is said above.
    for measurement, expected in zip(record.measurements, derived.measurements, strict=False):
        yield from _differing_fields(f"measurement {measurement.name}", measurement, expected)


def _differing_fields(
    where: str,
    section: msgspec.Struct | Mapping[str, Any] | None,
    derived: Mapping[str, Any] | None,
    names: Iterable[str] | None = None,
    scale: float = 0.0,
) -> Iterator[str]:
    """Yield the fields of a section that both the record and its evidence have, and that differ.

    Args:
        where: the path of the section, for messages.
        section: the section as the record has it.
        derived: the section as the evidence gives it.
        names: the fields to compare; None for all.
        scale: the size of the terms from which a field is computed, if it may be near zero.
    """
    if section is None or derived is None:
        return
    fields = section
    if not isinstance(fields, Mapping):
        fields = msgspec.structs.asdict(fields)
    if names is None:
        names = derived
    for name in names:
        recorded = fields.get(name)
        expected = derived.get(name)
        if recorded is None or expected is None or _agree(recorded, expected, scale):
            continue
        difference = _first_difference(recorded, expected, scale)
        field = f"{where}: {name}"
        if name == "value":  # the value of a metric is named by the metric alone
            field = where
        yield (
            f"{field} is {_number_text(difference.recorded)}, and its evidence gives "
            f"{_number_text(difference.expected)}"
        )


def _agree(recorded: Any, expected: Any, scale: float) -> bool:
    """Whether two numbers, or lists of numbers, are equal within the tolerances; other values have to be equal."""
    if _is_list(recorded) and _is_list(expected):
        if len(recorded) != len(expected):
            return False
        for recorded_element, expected_element in zip(recorded, expected, strict=True):
            if not _agree(recorded_element, expected_element, scale):
                return False
        return True
    if _is_number(recorded) and _is_number(expected):
        allowed = TOLERANCE * max(abs(recorded), abs(expected)) + _NEAR_ZERO * scale
        return bool(abs(recorded - expected) <= allowed)  # `<=` and not `>`, which a NaN would pass
    return bool(recorded == expected)


class _Difference(NamedTuple):
    """Two values that differ: numbers, short lists of numbers, or other values of a record."""

    recorded: Any
    expected: Any


def _first_difference(recorded: Any, expected: Any, scale: float) -> _Difference:
    """Return the first elements that differ in two long lists of equal length; other values as they are."""
    if not _is_list(recorded) or not _is_list(expected):
        return _Difference(recorded, expected)
    if len(recorded) == len(expected) > _SHORT_LIST:
        for recorded_element, expected_element in zip(recorded, expected, strict=True):
            if not _agree(recorded_element, expected_element, scale):
                return _Difference(recorded_element, expected_element)
    return _Difference(recorded, expected)


def _is_list(value: Any) -> bool:
    """Whether a value is a list or a tuple: records have lists, and recomputed metrics tuples."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_number(value: Any) -> bool:
    """Whether a value is a number; to Python, a boolean would be one too."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_text(value: Any) -> str:
    """Return a number as text, with enough digits to show a difference of TOLERANCE; a long list as its length."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if not _is_list(value):
        return str(value)
    if len(value) > _SHORT_LIST:
        return f"{len(value)} values"
    return f"[{', '.join(_number_text(element) for element in value)}]"


def _replace_numbers(metric: Metric, derived: Mapping[str, Any]) -> Metric:
    """Return a metric with the numbers that its evidence gives."""
    interval = derived.get("ci95")
    if interval is not None:
        low, high = interval
        interval = (low, high)  # the evidence gives a list
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
    """The number of steps that each phase has according to the configuration."""

    warmup: int
    window: int | None
    """The steps after the warm-up; None if they last until the training ends."""


def _find_extent_problems(record: Record, evidence: RecordEvidence) -> list[str]:
    """Return a clause for each difference between the ranks and steps of the evidence and those of the record."""
    rank_problem = _find_rank_problem(record, evidence)
    if rank_problem is not None:
        return [rank_problem]
    kind = _kind(record)
    plan = _planned_steps(record, kind)
    if plan is None:
        return [f"its configuration does not say how many steps it had: {kind}.warmup_steps, {kind}.window_steps"]
    phases = list(dict.fromkeys(span.phase for span in evidence.spans))
    if not _are_phases_of(kind, phases):
        return [f"its evidence is of the phases {', '.join(phases) or 'none'}, and the run is of {kind}"]
    problems = []
    expected_spans = []
    for phase in phases:
        steps = evidence.step_range(phase).steps
        warmup = min(max(plan.warmup, 0), steps)
        if warmup > 0:
            expected_spans.append((phase, WARMUP, warmup))
        if steps > warmup:
            expected_spans.append((phase, WINDOW, steps - warmup))
        if not _is_planned(plan, kind, phase, steps):
            problems.append(
                f"its evidence has {steps} steps of {phase}, and its configuration {plan.warmup} + {plan.window}"
            )
    spans = [(span.phase, span.part, span.steps) for span in evidence.spans]
    if spans != expected_spans:
        problems.append(
            f"its evidence does not separate the first {plan.warmup} steps of each phase, as its configuration does"
        )
    return problems


def _find_rank_problem(record: Record, evidence: RecordEvidence) -> str | None:
    """Return a clause if evidence, configuration and list of ranks have different ranks; None if they agree."""
    config = record.config or {}
    nodes = config.get("nodes")
    gpus = config.get("gpus")
    world = None
    if isinstance(nodes, int) and isinstance(gpus, int):
        world = nodes * gpus
    ranks = sorted(rank.rank for rank in record.ranks)
    # Not `range(evidence.world)`: a damaged record may say any number of ranks.
    are_consecutive = ranks == list(range(len(ranks)))
    if are_consecutive and evidence.world == world == len(ranks):
        return None
    return (
        f"its evidence is of {evidence.world} ranks, its configuration of {world}, and its list of ranks has "
        f"{len(set(ranks))}"
    )


def _planned_steps(record: Record, kind: str) -> _Plan | None:
    """Return the number of steps that each phase has according to the configuration; None if it does not say."""
    plan = (record.config or {}).get(kind)
    if not isinstance(plan, Mapping) or f"{WINDOW}_steps" not in plan:
        return None
    warmup = plan.get(f"{WARMUP}_steps")
    window = plan[f"{WINDOW}_steps"]
    if not isinstance(warmup, int) or not isinstance(window, int | None):
        return None
    return _Plan(warmup, window)


def _are_phases_of(kind: str, phases: Sequence[str]) -> bool:
    """Whether a run of this kind can have these phases."""
    if kind == TRAIN:
        return phases == [TRAIN]
    return bool(phases) and TRAIN not in phases


def _is_planned(plan: _Plan, kind: str, phase: str, steps: int) -> bool:
    """Whether a phase has as many steps as planned, or fewer repeats of an operation that is too slow for all."""
    if plan.window is None or steps == plan.warmup + plan.window:
        return True
    if kind != MEASURE:
        return False
    most_repeats = plan.window
    if phase.startswith(MAMF):  # these operations have a number of repeats of their own
        most_repeats = MAMF_REPEATS
    return steps <= plan.warmup + most_repeats


def _kind(record: Record) -> str:
    """Return the kind of the record's case, by its configuration: TRAIN, INFER or MEASURE."""
    return kind_of(record.config or {})


def collect_facts(record: Record, case: Case, evidence: RecordEvidence) -> Facts:
    """Return what the numbers of a record depend on besides the steps of its evidence.

    Raises:
        msgspec.ValidationError: an evaluation has fields of other types.
        EvidenceError: the layout, losses or evaluations contradict the evidence or themselves, or the configuration
            does not say what is generated.
    """
    config = record.config or {}
    quality = record.quality
    flops = record.flops
    kind = _kind(record)
    stages = count(config, "layout.pp") or 1
    ranks_of_replica = (count(config, "layout.tp") or 1) * stages
    if ranks_of_replica < 1 or evidence.world % ranks_of_replica:
        raise EvidenceError(f"its layout of {ranks_of_replica} ranks per replica does not fit {evidence.world} ranks")
    resumed = quality is not None and bool(quality.resumed)
    losses = _last_losses(record, evidence)
    evaluations: list[dict[str, Any]] = []
    if quality is not None:
        evaluations = _evaluations(quality.evaluations)
    peak = None
    published = None
    if flops is not None and flops.peak is not None:
        peak = float(flops.peak.flops)
    if _has_published_flops(record, case):
        published = case.raw["flops"].get("published")
    return Facts(
        kind=kind,
        unit=case.unit,
        replicas=evidence.world // ranks_of_replica,
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
        generation=generation_of(config),
    )


def _last_losses(record: Record, evidence: RecordEvidence) -> list[float | None]:
    """Return the losses of the last steps, from the evidence if the record has only those of the first steps.

    Raises EvidenceError if neither has them.
    """
    losses: list[float | None] = []
    if record.quality is not None and record.quality.losses is not None:
        losses = list(record.quality.losses.values)
    if evidence.steps > len(losses) and _kind(record) == TRAIN:
        if len(evidence.loss_tail) != min(LOSS_TAIL, evidence.steps):
            raise EvidenceError(
                f"it has {len(losses)} losses of {evidence.steps} steps, and not the last {LOSS_TAIL}"
            )
        losses = evidence.loss_tail
    return losses[-LOSS_TAIL:]


def _has_published_flops(record: Record, case: Case) -> bool:
    """Whether the publisher's FLOPs are of the record's model: it is the published model with all of its layers."""
    if not case.formula or record.preset != "reference":
        return False
    layers = case.presets["reference"].get("model", {}).get("layers")
    if count(record.config, "model.layers") != layers:
        return False
    # A setting that the record lacks was added later: an earlier version may have had another reference preset.
    return not any(look_up(record.config, path) is UNKNOWN for path, _ in leaves(case.absent))


def _evaluations(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the evaluations of a record; each accuracy has to be that of a whole number of right answers.

    Raises msgspec.ValidationError if a field has another type, EvidenceError if an accuracy is not such a share.
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
