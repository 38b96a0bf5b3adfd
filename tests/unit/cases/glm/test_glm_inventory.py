"""What parts of the model do and keep: operators, and the storages that autograd keeps.

`make bench` compares both of a whole step with the same model written a second time in tests/reenact.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from flagbench_cases.cases.glm import model as glm
from flagbench_cases.cases.glm.model import GlmForCloze, OutputLinear, config_from, gelu
from flagbench_cases.shared.manifests import load_case
from reenact.inventory import Operators, Saved
from unit.cases.glm.small_glm import workload

pytestmark = pytest.mark.image

TORCH_2 = pytest.mark.skipif(not hasattr(torch, "compile"), reason="operators are counted by an interface of torch 2")
WARMUP = 3
MODEL = {"layers": 1, "dim": 32, "heads": 2, "vocab_size": 64, "positions": 25, "recompute": True}


@pytest.fixture(autouse=True)
def uncompiled() -> None:
    """What a compiled function does depends on what it has seen first, here and in other tests."""
    gelu._debug_flush_compilation_cache()


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
