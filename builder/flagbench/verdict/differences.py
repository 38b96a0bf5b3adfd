"""Where a record differs from what its evidence gives, one clause for each number, with both numbers.

Only names that the record has and this version derives are compared: an earlier version derived fewer, a later one
derives more. `not_compared` lists the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from flagbench.records.model import Metric, Rank, Record
from flagbench_core.evidence import Derived, Section, pipeline, stats
from flagbench_core.evidence.columns import MICRO, block_sizes
from flagbench_core.evidence.derive import CURVE_POINTS
from flagbench_core.evidence.metrics import DEVICE

TOLERANCE = 1e-6
"""Largest relative difference between a number and what the evidence gives: both are computed by the same code."""
_ROUNDING = 1e-9
"""What two results of the same sum may differ by, relative to the terms: for differences and spreads near zero."""

_CLOCKS = 0.02
"""How far two clocks of a step may differ."""
_STATED = {"formula", "peak", "peak_reason"}
"""Fields of `flops` that do not follow from evidence."""
_MEASURED = ("first_collective_median", "collective_wait_median", "bubble")
"""Of a rank, where its evidence has them."""


def differences(record: Record, found: Derived, section: Section) -> Iterator[str]:
    """Every number of a record that does not follow from its evidence."""
    yield from _metrics(record, found)
    yield from _sections(record, found)
    yield from _ranks(record, found, section)
    yield from _pipeline(record, found)
    yield from _losses(record, section)


def not_compared(record: Record, found: Derived) -> Iterator[str]:
    """Metrics and fields that only one of the record and this version has, like `metric f1` and `window.drift`."""
    here, there = ({(m.name, m.scope) for m in record.metrics}, {(m["name"], m["scope"]) for m in found.metrics})
    yield from (f"metric {name}" for name, _ in sorted(here ^ there))
    for section in ("timing", "window", "work", "flops"):
        mine, theirs = (_named(side) for side in (record.raw.get(section), getattr(found, section)))
        names = sorted((mine ^ theirs) - _STATED)
        if names:
            yield from (f"{section}.{name}" for name in names) if mine and theirs else (section,)


def _named(section: Mapping[str, Any] | None) -> set[str]:
    return {name for name, value in (section or {}).items() if value is not None}


def _metrics(record: Record, found: Derived) -> Iterator[str]:
    expected = {(entry["name"], entry["scope"]): entry for entry in found.metrics}
    for metric in record.metrics:
        if entry := expected.get((metric.name, metric.scope)):
            yield from _metric(metric, entry)


def _metric(metric: Metric, entry: Mapping[str, Any]) -> Iterator[str]:
    pairs: list[tuple[str, Any, Any]] = [
        ("", metric.value, entry["value"]),
        ("unit", metric.unit, entry["unit"]),
        ("n", metric.n, entry.get("n")),
        ("stdev", metric.stdev, entry.get("stdev")),
    ]
    # Another version may have another method; a verdict rests on the interval that is computed here.
    if metric.ci95 is None or metric.ci_method in (None, entry.get("ci_method")):
        pairs.append(("ci95", metric.ci95, entry.get("ci95")))
    yield from _differences(f"metric {metric.name}", pairs, abs(entry["value"]))


def _sections(record: Record, found: Derived) -> Iterator[str]:
    """Differences in timing, window, work and flops."""
    yield from _fields("timing", record.timing, found.timing)
    yield from _fields("window", record.window, found.window)
    yield from _fields("work", record.work, found.work)
    flops = None
    if found.flops is not None:
        flops = {name: found.flops[name] for name in ("executed", "recomputed", "useful")}
        ceiling = record.flops and record.flops.measured_ceiling
        mine = ceiling.flops if ceiling else None
        yield from _differences("flops", [("measured_ceiling", mine, found.flops["measured_ceiling"])])
    names = ("executed", "recomputed", "useful")
    yield from _fields("flops", record.flops and {name: getattr(record.flops, name) for name in names}, flops)


def _fields(section: str, mine: Any, theirs: Mapping[str, Any] | None) -> Iterator[str]:
    """Differences of the fields of a section; `mine`: as the record has it, None if it lacks it."""
    here = {} if mine is None else mine if isinstance(mine, Mapping) else msgspec.structs.asdict(mine)
    there = theirs or {}
    # A drift is a difference of shares: its terms are of size 1.
    scale = {"drift": 1.0}
    for name in dict.fromkeys((*here, *there)):
        one, other = here.get(name), there.get(name)
        yield from _differences(section, [(name, one, other)], scale.get(name, 0.0))


def _ranks(record: Record, found: Derived, section: Section) -> Iterator[str]:
    for rank in record.ranks:
        entry = found.ranks[rank.rank]
        names = ["step_median", "data_wait_total", *(name for name in _MEASURED if name in entry)]
        pairs = [("steps", rank.steps, section.steps), *((name, getattr(rank, name), entry[name]) for name in names)]
        yield from _differences(f"rank {rank.rank}", pairs)
        yield from _unproven(rank, entry, section)


def _unproven(rank: Rank, entry: Mapping[str, Any], section: Section) -> Iterator[str]:
    """Medians of a record whose evidence does not have these times, as before: at most what its steps allow.

    Half of the steps took at least the median, and a collective is part of its step.
    """
    most = section.stretch().rank_time(DEVICE, rank.rank) / MICRO / -(-section.steps // 2)
    for name in _MEASURED[:2]:
        value = getattr(rank, name)
        if name not in entry and value is not None and value > most * (1 + _CLOCKS):
            yield f"rank {rank.rank}: {name} is {_text(value)}, and its steps allow at most {_text(most)}"


def _pipeline(record: Record, found: Derived) -> Iterator[str]:
    """The measured and the predicted bubble."""
    training = (record.quality and record.quality.training) or {}
    bubbles = [rank.bubble for rank in sorted(record.ranks, key=lambda rank: rank.rank) if rank.bubble is not None]
    stages = record.layout.pp if record.layout is not None else 1
    facts = found.pipeline
    if not facts and len(bubbles) == len(record.ranks) and len(bubbles) % stages == 0:
        facts = pipeline.facts(bubbles, stages)  # the evidence of an earlier version does not have its times
    pairs = [(name, training.get(name), facts.get(name)) for name in ("measured_bubble", "measured_bubble_of_stages")]
    batches = record.conditions.get("gradient_accumulation_steps")
    if "predicted_bubble" in training and isinstance(batches, int) and batches > 0:
        pairs.append(("predicted_bubble", training["predicted_bubble"], (stages - 1) / (batches + stages - 1)))
    yield from _differences("quality.training", pairs, 1.0)


def _losses(record: Record, section: Section) -> Iterator[str]:
    """Where the curves of losses differ from each other, or from the losses of ranks."""
    quality = record.quality
    if quality is None or quality.losses is None:
        return
    losses = quality.losses
    yield from _differences("quality.losses", [("steps", losses.steps, section.steps)])
    if losses.steps == len(losses.values):
        points = map(int, stats.thin(range(losses.steps), CURVE_POINTS))
        curve = [(step, value) for step in points if (value := losses.values[step]) is not None]
        yield from _differences("quality", [("loss_curve", quality.loss_curve, curve)])
    for span in section.spans:
        having = [loss for loss in span.loss if loss is not None]
        at = span.first
        for block, size in enumerate(block_sizes(span.steps, section.block) if having else ()):
            mine = losses.values[at : at + size]
            theirs = [loss[block] for loss in having]
            at += size
            if len(mine) == size and (None in mine) != (None in theirs):
                yield f"quality.losses: steps {at - size} to {at} and those of the ranks are not both finite"
            elif len(mine) == size and None not in mine:
                mean, total = math.fsum(filter(None, theirs)) / len(theirs), math.fsum(filter(None, mine))
                if not _agree(total, mean, 0.0):  # of thousands of steps
                    yield from _differences("quality.losses", [(f"steps {at - size} to {at}", total, mean)])


def _differences(where: str, pairs: Iterable[tuple[str, Any, Any]], scale: float = 0.0) -> Iterator[str]:
    """A clause for each (name, in the record, from the evidence) that differs; None is a name that a side lacks."""
    for name, mine, theirs in pairs:
        if mine is not None and theirs is not None and not _agree(mine, theirs, scale):
            mine, theirs = _first_difference(mine, theirs, scale)
            what = f"{where}: {name}" if name else where
            yield f"{what} is {_text(mine)}, and its evidence gives {_text(theirs)}"


def _agree(mine: Any, theirs: Any, scale: float) -> bool:
    if _is_list(mine) and _is_list(theirs):
        return len(mine) == len(theirs) and all(_agree(a, b, scale) for a, b in zip(mine, theirs, strict=True))
    if _is_number(mine) and _is_number(theirs):
        # `<=` and not `>`, which a NaN would pass.
        return bool(abs(mine - theirs) <= TOLERANCE * max(abs(mine), abs(theirs)) + _ROUNDING * scale)
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


def _text(value: Any) -> str:
    """A number with the digits that tell it from another within TOLERANCE."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if _is_list(value):
        return f"{len(value)} values" if len(value) > 2 else f"[{', '.join(map(_text, value))}]"
    return str(value)
