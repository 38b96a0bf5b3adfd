"""What a step of the case does and keeps, against the same model written a second time in tests/reenact.

The operators of a step by name and count, and the distinct storages that autograd keeps, after three steps to warm
up: TorchScript compiles a function by what it has seen in the first.
"""

from __future__ import annotations

import copy
import sys
import types
from pathlib import Path
from typing import Any, Callable

import pytest
import torch
from torch import nn

from flagbench_cases.cases.glm import data
from flagbench_cases.cases.glm import model as glm
from flagbench_cases.cases.glm.model import GlmForCloze, OutputLinear, config_from, gelu
from flagbench_cases.shared.manifests import load_case
from flagbench_core.config import merge
from reenact import glm as reenacted
from reenact import glm_model
from reenact.inventory import Operators, Saved
from unit.cases.glm.small_glm import workload

pytestmark = pytest.mark.image

TORCH_2 = pytest.mark.skipif(not hasattr(torch, "compile"), reason="operators are counted by an interface of torch 2")
WARMUP = 3
MODEL = {"layers": 1, "dim": 32, "heads": 2, "vocab_size": 64, "positions": 25, "recompute": True}
SMALL = {
    "model": {**MODEL, "initializer_range": 0.2},
    "data": {
        **{"source": "synthetic", "sequence_length": 24, "workers": 0, "train_examples": 20, "eval_examples": 2},
        "synthetic": {"mean_context": 12, "min_context": 6, "max_answer": 4, "mean_choices": 3, "max_choices": 4},
    },
    "train": {"batch_size": 2, "learning_rate": 1e-3, "loss_scale": 2.0**10},
    "precision": "fp32",
    "seed": 0,
}


@pytest.fixture(autouse=True)
def uncompiled() -> None:
    """What a compiled function does depends on what it has seen first, here and in other tests."""
    for function in (gelu, glm_model.gelu):
        function._debug_flush_compilation_cache()


def turns(config: dict[str, Any], folder: Path) -> tuple[Callable[[], float], Callable[[], float]]:
    """One whole iteration of the case, and one of its re-enactment from the same weights; each returns its loss."""
    whole = merge(load_case("glm")["presets"]["reference"], config)
    sets = data.load(whole["data"], whole["model"], None, whole["seed"])
    work = workload(folder, sets=sets, **config)
    weights = copy.deepcopy(work.module.state_dict())
    batches = (batch for epoch in range(99) for batch in work.batches(epoch))
    ahead = [next(batches)]

    def ours() -> float:
        loss = work.step(work.to_device(ahead.pop()))
        work.after_step()
        ahead.append(next(batches))
        return loss

    theirs = reenacted.steps(work.config, torch.device("cpu"), weights)
    assert next(theirs) is None
    return ours, lambda: next(theirs)


def counted(side: Callable[[], float]) -> dict[str, Any]:
    """What one iteration does and keeps, and its loss."""
    saved = Saved()
    with saved:
        loss = side()
    with Operators() as operators:
        side()
    return {"loss": loss, **saved.found(), **operators.found()}


def both(config: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """What the case and its re-enactment do in a step, once they are warm, under the same random numbers."""
    found = []
    for side in turns(config, folder):
        for number in range(WARMUP):
            torch.manual_seed(number)
            side()
        torch.manual_seed(WARMUP)
        found.append(counted(side))
    return found


@TORCH_2
@pytest.mark.parametrize(("precision", "recompute"), [("fp32", True), ("fp32", False), ("fp16", True)])
def test_a_step_has_the_operators_and_bytes_of_the_second_model(
    tmp_path: Path, precision: str, recompute: bool
) -> None:
    ours, theirs = both(merge(SMALL, {"precision": precision, "model": {"recompute": recompute}}), tmp_path)
    assert ours["loss"] == theirs["loss"]
    assert ours["operators"] == theirs["operators"]
    assert ours["bytes"] == theirs["bytes"]
    assert (ours["saved_bytes"], ours["saved"]) == (theirs["saved_bytes"], theirs["saved"])
    assert sum(ours["operators"].values()) > 300


def test_gelu_keeps_its_input_and_six_results() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    for _ in range(WARMUP):
        gelu(x).sum().backward()
    saved = Saved()
    with saved:
        result = gelu(x)
    assert saved.found()["saved_bytes"] == 7 * x.numel() * x.element_size()
    assert torch.allclose(result, nn.functional.gelu(x, approximate="tanh"), atol=1e-6)


@TORCH_2
def test_an_output_bias_is_added_on_its_own() -> None:
    x, layer = torch.randn(2, 3, 8), OutputLinear(8, 4)
    with Operators() as operators:
        result = layer(x)
    moving = {name: operators.count[name] for name, size in operators.bytes.items() if size and "view" not in name}
    assert moving == {"aten.mm.default": 1, "aten.add.Tensor": 1}
    assert torch.allclose(result, nn.functional.linear(x, layer.weight, layer.bias), atol=1e-6)


def small_model() -> GlmForCloze:
    return GlmForCloze(config_from({**load_case("glm")["presets"]["reference"]["model"], **MODEL}))


def apex_with(norm: type) -> dict[str, types.ModuleType]:
    """Modules under apex's names that hold this layer norm: a stand-in for the import alone."""
    apex, normalization = types.ModuleType("apex"), types.ModuleType("apex.normalization")
    normalization.FusedLayerNorm = apex.normalization = norm  # type: ignore[attr-defined]
    return {"apex": apex, "apex.normalization": normalization}


def test_layer_norms_are_apexs_where_it_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fused(nn.LayerNorm):
        """Another type than torch's, as apex's is."""

    names = [name for name, _ in small_model().named_parameters()]
    for name, module in apex_with(Fused).items():
        monkeypatch.setitem(sys.modules, name, module)
    model = small_model()
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert {type(norm) for norm in norms} == {Fused}
    assert len(norms) == 2 * MODEL["layers"] + 1
    assert {norm.eps for norm in norms} == {glm.LAYER_NORM_EPSILON}
    assert [name for name, _ in model.named_parameters()] == names
    assert workload(tmp_path).training_facts()["layer_norm"] == "apex"
