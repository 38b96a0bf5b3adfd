"""How much work a case counts as one sample or token, and as one epoch: what its rules compute with.

All numbers follow from the reference preset in the case's manifest, and from what a row says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from flagbench.manifests.model import Case
from flagbench_core.flops import batch_of

MOST_CHOICES = 10
"""Candidate answers of a ReCoRD training example: at most 10 (THUDM/GLM, tasks/superglue/dataset.py,
max_train_candidates_per_question), each a sequence of its own."""

_LARGEST = 10**9
"""Of a length or a number of choices; a larger one is no size, and floats do not hold its FLOPs."""


@dataclass(frozen=True)
class UnitWork:
    """FLOPs that may be counted for a sample or a token, by the name of the convention; forward and backward."""

    conventions: Mapping[str, float]
    most: int = 1
    """A unit is up to so many times this, where the row does not say how many (GLM's candidate answers)."""

    @property
    def executed(self) -> float:
        """Every matrix product, attention in full: what our own `mfu` counts. FLOP."""
        return next(iter(self.conventions.values()))

    @property
    def least(self) -> float:
        """The convention that counts least, once. FLOP."""
        return min(self.conventions.values())


def unit_work(case: Case, sequence_length: int | None, choices: int | None) -> UnitWork | None:
    """The work of a sample or token of a case; None if it has no formula."""
    length = sequence_length or case.presets["reference"]["data"].get("sequence_length")
    if case.count_flops is None or length is None or max(length, choices or 0) > _LARGEST:
        return None
    conventions = _conventions(case, length)
    if "choices" not in {name for names in case.condition_groups.values() for name in names}:
        return UnitWork(conventions)
    if choices is None:
        return UnitWork(conventions, MOST_CHOICES)
    return UnitWork({name: flops * choices for name, flops in conventions.items()})


def _conventions(case: Case, length: int) -> dict[str, float]:
    """FLOPs of a sample of one sequence, or of a token, by name.

    Every matrix product, with attention in full and with half of it, as a causal mask leaves it; 6 FLOPs a parameter
    and token (2 for inference, 4 for LoRA), with and without the embeddings (Chowdhery et al. 2022, PaLM, app. B).
    """
    assert case.count_flops is not None
    model, batch = case.presets["reference"]["model"], batch_of(1, length)
    whole = case.count_flops(model, batch)
    attention = whole.executed - case.count_flops(model, batch._replace(pairs=0)).executed
    each = 2 * round(whole.executed / whole.forward)
    found: dict[str, float] = {"every matrix product": whole.executed}
    if whole.causal:
        found["every matrix product, causal attention halved"] = whole.executed - attention / 2
    found[f"{each} x parameters"] = each * length * (whole.weights + whole.embeddings)
    found[f"{each} x parameters without embeddings"] = each * length * whole.weights
    return {name: flops / (length if case.unit == "tokens" else 1) for name, flops in found.items()}


@dataclass(frozen=True)
class RunWork:
    """What a run to the end counts: it stops after one or more periods of `low` to `high` units."""

    low: float
    high: float
    most: float
    """Periods until the stop rule's limit; infinite without a limit."""
    what: str
    """What a period is, such as `an epoch of 67,584 samples`."""
    target: float | None = None
    """The accuracy that ends a run sooner; None if every run ends at the limit."""


def run_work(case: Case, batch_size: float, devices: int, limit: tuple[float, str] | None) -> RunWork | None:
    """The periods of a run of a case; None if it has no size in units (llama2-70b's token count depends on its data).

    An epoch is counted as published: every rank's part of the set in whole batches, times ranks. The low end is the
    set itself. `limit`: a row's own limit and its unit, `epochs` or `samples`.
    """
    reference = case.presets["reference"]
    data = reference["data"]
    if examples := data.get("examples"):
        # One pass over an inference set. A count without padding is anything from a token of each example on.
        per = data["sequence_length"] if case.unit == "tokens" else 1
        total = float(examples * per)
        return RunWork(float(examples), total, 1, f"the set of {examples:,} x {per:,} {case.unit}")
    train, examples = reference.get("train", {}), data.get("train_examples")
    if not examples or case.unit != "samples":
        return None
    ranks = math.ceil(examples / devices)
    epoch = math.ceil(ranks / batch_size) * batch_size * devices
    cadence = train.get("evaluate_every_samples")
    most = float(train["max_epochs"]) * examples
    if train.get("max_samples"):
        most = min(most, float(train["max_samples"]))
    if limit is not None:
        most = limit[0] * (examples if limit[1] == "epochs" else 1)
    target = train.get("target_acc")
    if cadence:
        step = batch_size * devices
        period = math.ceil(cadence / step) * step
        return RunWork(period, period, most / period, f"{period:,.0f} samples between evaluations", target)
    return RunWork(examples, epoch, most / examples, f"an epoch of {epoch:,.0f} samples", target)
