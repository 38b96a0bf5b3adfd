"""Whether a record's numbers follow from its evidence: all that can be computed is computed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from flagbench.manifests.model import Case
from flagbench.records.model import Metric, Record
from flagbench.verdict.derivation import count
from flagbench.verdict.differences import differences, not_compared
from flagbench_core.evidence import EvidenceError, Facts, Section, derive
from flagbench_core.evidence.derive import INFER, TRAIN
from flagbench_core.evidence.metrics import LOSS_TAIL
from flagbench_core.evidence.section import WARMUP, WINDOW, digest_of, read_section

_WHOLE = 1e-3
"""How far a number of right answers, computed from a share, may be from a whole number."""
_SHOWN = 5
"""How many differences are named."""


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


def repeated_metrics(record: Record) -> Iterator[str]:
    """Metrics that a record has more than once: which of them holds could be chosen."""
    seen: set[tuple[str, str]] = set()
    for metric in record.metrics:
        key = (metric.name, metric.scope)
        if key in seen:
            yield f"metric {metric.name} is given twice"
        seen.add(key)


class Checked(NamedTuple):
    """A record as far as its evidence bears it out: its metrics computed again, and what contradicts them."""

    record: Record
    problems: tuple[str, ...] = ()
    """One clause each, with both numbers."""
    section: Section | None = None
    """The evidence, if it can be read; the record's numbers need not follow from it."""
    not_compared: tuple[str, ...] = ()
    """Names that only one of the record and this version knows, so that nothing can be said of them."""


def check(record: Record, case: Case) -> Checked:
    """Compute a record's numbers again; as it is without evidence, or if its run did not end well.

    The record returned has the metrics that its evidence gives, as computed here: its intervals are always those of
    this version.
    """
    if record.evidence is None or record.config is None or record.status.state != "ok":
        return Checked(record)
    raw = record.raw["evidence"]
    if (digest := digest_of(raw)) != record.evidence_digest:
        return Checked(record, (f"evidence_digest is {record.evidence_digest}, and its evidence gives {digest}",))
    try:
        section = read_section(raw)
        if wrong := [*_extent(record, section)]:
            return _shortened(record, wrong)
        found = derive(section, _facts(record, case, section))
    except msgspec.ValidationError as error:
        return Checked(record, (f"its evaluations cannot be read: {error}",))
    except EvidenceError as error:
        return Checked(record, (f"its evidence contradicts itself: {error}",))
    except OverflowError:
        return Checked(record, ("its evidence has numbers that are too large to compute with",))
    computed = {(entry["name"], entry["scope"]): entry for entry in found.metrics}
    both = (metric for metric in record.metrics if (metric.name, metric.scope) in computed)
    metrics = (_computed(metric, computed[metric.name, metric.scope]) for metric in both)
    checked = _shortened(replace(record, metrics=tuple(metrics)), list(differences(record, found, section)))
    return checked._replace(section=section, not_compared=tuple(not_compared(record, found)))


def _shortened(record: Record, problems: Sequence[str]) -> Checked:
    """The first of many problems, and the number of the others."""
    more = len(problems) - _SHOWN
    rest = (f"{more} more numbers do not follow from its evidence",) if more > 0 else ()
    return Checked(record, (*problems[:_SHOWN], *rest))


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
    if not phases or (kind == TRAIN and [*phases] != [TRAIN]) or (kind == INFER and TRAIN in phases):
        yield f"its evidence is of the phases {', '.join(phases) or 'none'}, and the run is of {kind}"
        return
    expected = []
    for phase in phases:
        steps = section.stretch(phase).steps
        middle = min(max(warmup, 0), steps)
        parts = ((phase, WARMUP, middle), (phase, WINDOW, steps - middle))
        expected += [part for part in parts if part[2]]
        if window is not None and steps != warmup + window:
            yield f"its evidence has {steps} steps of {phase}, and its configuration {warmup} + {window}"
    if expected != [(span.phase, span.part, span.steps) for span in section.spans]:
        yield f"its evidence does not separate the first {warmup} steps of each phase, as its configuration does"


def _kind(record: Record) -> str:
    return INFER if record.config is not None and INFER in record.config else TRAIN


def _facts(record: Record, case: Case, section: Section) -> Facts:
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
    flops = record.flops
    return Facts(
        kind=kind,
        unit=case.unit,
        replicas=section.world // share,
        complete=config[kind]["window_steps"] is None and not (quality and quality.resumed),
        precision=str(config.get("precision")),
        published=case.raw["flops"].get("published") if case.formula and record.preset == "reference" else None,
        peak=float(flops.peak.flops) if flops is not None and flops.peak is not None else None,
        device_kind="",
        evaluations=_evaluations(quality.evaluations if quality is not None else ()),
        losses=losses[-LOSS_TAIL:],
        stages=pp,
        counted=case.formula is not None,
    )


def _evaluations(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Evaluations whose accuracy is that of a whole number of right answers.

    Raises msgspec.ValidationError for other types, EvidenceError for another accuracy.
    """
    found = msgspec.convert(entries, list[_Evaluation])
    for entry in found:
        right = (entry.accuracy or 0.0) * entry.counted
        if not 0 <= right <= entry.counted or abs(right - round(right)) > _WHOLE:
            raise EvidenceError(
                f"an accuracy of {entry.accuracy} is not that of {entry.counted} examples: {right:.9g} would be right"
            )
    builtins: list[dict[str, Any]] = msgspec.to_builtins(found)
    return builtins
