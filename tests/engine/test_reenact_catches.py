"""tests.reenact sees work that is not the publisher's: operators, copies, what is kept for backward, time."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

pytest.importorskip("transformers", reason="the publisher's models")

from flagbench_cases.cases.distilbert import workload
from flagbench_cases.shared.manifests import load_case, load_stack
from flagbench_core.config import Options, resolve
from reenact import inventory, pairs, verdict
from workloads import set_up

pytestmark = [
    pytest.mark.image,
    pytest.mark.skipif(not hasattr(torch, "compile"), reason="operators are counted from torch 2 on"),
]

ROOT = Path(__file__).resolve().parents[2]
CASE = load_case("distilbert")
ONE = {"low": 0.99, "value": 1.0, "high": 1.01}


def configured() -> dict[str, Any]:
    return resolve(CASE, load_stack("cpu"), Options(preset="tiny", source="synthetic", steps=1))


def step_of(folder: Path, change: Callable[[Any], None] = lambda module: None) -> dict[str, Any]:
    """The inventory of a step of the case, whose model `change` has changed."""
    work = set_up(workload.build, configured(), folder)
    change(work.module)
    batch = next(iter(work.batches(0)))
    return inventory.of_step(lambda: work.step(work.to_device(batch)))


def faults(
    ours: dict[str, Any],
    publisher: dict[str, Any],
    ratio: dict[str, Any],
    case: Any = CASE,
    gap: float = 0.0,
    small: bool = False,
) -> list[str]:
    case = {"quirks": [], **case} if case is not CASE else dict(case, quirks=[])
    compared = {"inventories": {"ours": ours, "publisher": publisher}, "largest_loss_difference": gap}
    judged = verdict.judge(case, {"model": {"layers": 1}, "precision": "fp32"}, compared, small)
    return judged["faults"] + verdict.judge_ratio(ratio)


@pytest.fixture(scope="module")
def faithful(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return step_of(tmp_path_factory.mktemp("faithful"))


def copied(module: Any) -> None:
    """The logits are copied once more."""
    module.register_forward_hook(lambda module, given, logits: logits.clone())


def without_bias(module: Any) -> None:
    """A linear layer leaves its bias out."""
    linear = next(m for m in module.modules() if isinstance(m, torch.nn.Linear))
    linear.forward = lambda hidden: F.linear(hidden, linear.weight)


def with_bias_apart(module: Any) -> None:
    """A linear layer adds its bias in an operator of its own."""
    linear = next(m for m in module.modules() if isinstance(m, torch.nn.Linear))
    linear.forward = lambda hidden: F.linear(hidden, linear.weight) + linear.bias


def computed_again(module: Any) -> None:
    """A layer keeps its input alone."""
    inner = next(m for m in module.modules() if isinstance(m, torch.nn.ModuleList))[0]
    forward = inner.forward
    inner.forward = lambda *given: checkpoint(forward, *given, use_reentrant=False)


def test_the_same_step_is_the_same(faithful: dict[str, Any], tmp_path: Path) -> None:
    assert faithful["saved_bytes"] > 0
    assert sum(faithful["operators"].values()) > 100
    assert faults(step_of(tmp_path), faithful, ONE) == []


@pytest.mark.parametrize("change", [copied, without_bias, with_bias_apart, computed_again])
def test_a_step_that_does_something_else_is_seen(
    faithful: dict[str, Any], tmp_path: Path, change: Callable[[Any], None]
) -> None:
    changed = step_of(tmp_path, change)
    assert faults(changed, faithful, ONE)
    assert faults(faithful, changed, ONE)


@pytest.mark.parametrize(
    ("low", "value", "high", "count"),
    [
        (0.98, 1.0, 1.02, 0),
        # The whole interval must lie there.
        (0.919, 0.943, 0.967, 1),
        (0.96, 0.98, 1.0, 1),
        (1.0, 1.02, 1.04, 1),
        # A few rounds have none.
        (None, 1.0, None, 0),
        (None, 0.95, None, 1),
        (None, 1.05, None, 1),
    ],
)
def test_a_step_that_takes_another_time_is_seen(
    faithful: dict[str, Any], low: float | None, value: float, high: float | None, count: int
) -> None:
    assert len(faults(faithful, faithful, {"low": low, "value": value, "high": high})) == count


def test_another_loss_is_seen(faithful: dict[str, Any]) -> None:
    assert faults(faithful, faithful, ONE, gap=1e-6) == []
    assert len(faults(faithful, faithful, ONE, gap=1e-4)) == 1


@pytest.mark.parametrize(("ratios", "rounds"), [([1.014], 2), ([1.016], 6), ([0.96], 6), ([1.038, 0.998], 6)])
def test_a_quick_comparison_ends_where_there_is_no_doubt(
    monkeypatch: pytest.MonkeyPatch, ratios: list[float], rounds: int
) -> None:
    """`ratios`: of one round after the other, again and again."""
    seconds = itertools.cycle(ratio for ratio in ratios for _ in range(2))
    monkeypatch.setattr(pairs, "start", lambda sides: None)
    monkeypatch.setattr(pairs, "warm_up", lambda sides: 1.0)
    monkeypatch.setattr(pairs, "end", lambda sides: None)
    monkeypatch.setattr(
        pairs, "take_turns", lambda *_: {"ours": [{"seconds": next(seconds)}], "publisher": [{"seconds": 1.0}]}
    )
    monkeypatch.setattr(pairs, "loss_difference", lambda sides: 0.0)
    made = pairs.start_again(itertools.repeat([]), pairs.Limits(6, 50, 60.0, 16, quick=True), 0.0)
    assert len(made["starts"]) == 2 * rounds
    assert made["ratio"] == {"low": None, "value": pytest.approx(sum(ratios) / len(ratios)), "high": None}


def test_few_rounds_have_a_ratio_without_an_interval() -> None:
    assert pairs.centre([1.0, 1.01, 1.08]) == (None, pytest.approx(1.025), None)
    with pytest.raises(ValueError, match="six"):
        pairs.interval([1.0, 1.01, 1.08])


@torch.jit.script
def scripted_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * x * (1.0 + 0.044715 * x * x)))


def test_a_scripted_gelu_keeps_more_than_its_input() -> None:
    """The graph of a scripted function is differentiated once it has been profiled, and counted after that."""
    x = torch.randn(64, 256, requires_grad=True)
    scripted = inventory.of_step(lambda: scripted_gelu(x).sum().backward())
    alone = inventory.of_step(lambda: F.gelu(x, approximate="tanh").sum().backward())
    assert alone["saved_bytes"] == x.numel() * 4
    assert scripted["saved_bytes"] >= 3 * x.numel() * 4
    assert faults(alone, scripted, ONE)


def test_a_listed_difference_is_none(faithful: dict[str, Any], tmp_path: Path) -> None:
    changed = step_of(tmp_path, copied)
    found = verdict.differences({"ours": changed, "publisher": faithful})
    assert {name: entry["count"] for name, entry in found.items()} == {"aten.clone.default": 1}

    def listed(count: int, share: float) -> dict[str, Any]:
        operators = {"aten.clone.default": {"step": count - 3, "layer": 3}}
        return {"quirks": [{"id": "copied", "difference": {"operators": operators, "share": share}}]}

    share = found["aten.clone.default"]["share"]
    for small in (False, True):
        assert faults(changed, faithful, ONE, listed(1, share), small=small) == []
        assert faults(changed, faithful, ONE, listed(2, share), small=small)
        assert faults(faithful, faithful, ONE, listed(1, share), small=small)  # listed, and not there
    # Of other sizes the share is not known.
    for other in (0.0, 1e-4):
        assert faults(changed, faithful, ONE, listed(1, other)) == []
        assert faults(changed, faithful, ONE, listed(1, other), small=True)


@pytest.mark.parametrize(("n", "rejected"), [(6, 0), (10, 8), (12, 13), (20, 52), (25, 89)])
def test_the_interval_has_the_ranks_of_the_published_tables(n: int, rejected: int) -> None:
    # The largest signed-rank statistic that rejects at 5 %, two-sided: Wilcoxon and Wilcox (1964), table 2.
    values = [2.0**number for number in range(n)]
    means = sorted((a + b) / 2 for number, a in enumerate(values) for b in values[number:])
    low, centre, high = pairs.interval(values)
    assert (means.index(low), means[::-1].index(high)) == (rejected, rejected)
    assert centre == statistics.median(means)
