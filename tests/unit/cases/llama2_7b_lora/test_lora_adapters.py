"""The adapters: what trains, in which type, under which names; recomputed layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flagbench_cases.cases.llama2_7b_lora import lora, model
from flagbench_cases.cases.llama2_7b_lora.data import batch_of
from flagbench_cases.cases.llama2_7b_lora.engine import loss_of
from flagbench_cases.shared.errors import DataError
from unit.cases.llama2_7b_lora.lora_bench import fixed_weights, small_shape
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

CPU = torch.device("cpu")


def attached(dtype: torch.dtype = torch.float32, recompute: bool = False, dropout: float = 0.0) -> Any:
    shape = small_shape(lora={"r": 4, "alpha": 16, "dropout": dropout})
    base = model.build(shape, dtype, CPU)
    model.initialise(base, shape, 0)
    torch.manual_seed(1)
    return lora.attach(base, shape, recompute)


def test_names_are_ours_and_in_the_order_of_the_forward_pass() -> None:
    names = [f"layers.{n}.{target}.{which}" for n in (0, 1) for target in ("q_proj", "v_proj") for which in "AB"]
    module = attached()
    assert list(lora.adapters(module)) == names
    shapes = {name: tuple(parameter.shape) for name, parameter in lora.adapters(module).items()}
    assert shapes == {name: (4, 32) if name.endswith("A") else (32, 4) for name in names}


def test_only_adapters_train_and_begin_as_nothing() -> None:
    module = attached()
    ours = {id(parameter) for parameter in lora.adapters(module).values()}
    assert {id(parameter) for parameter in module.parameters() if parameter.requires_grad} == ours
    for name, parameter in lora.adapters(module).items():
        assert bool(parameter.any()) == name.endswith("A"), name
    ids = torch.arange(3, 13)[None]
    base = model.build(small_shape(), torch.float32, CPU)
    model.initialise(base, small_shape(), 0)
    with torch.no_grad():
        assert torch.equal(module.forward(ids).logits, base.forward(ids).logits)


@pytest.mark.parametrize(
    ("base", "adapters"),
    [(torch.float32, torch.float32), (torch.float16, torch.float16), (torch.bfloat16, torch.float32)],
)
def test_adapters_have_the_type_of_the_base_but_over_bf16(base: torch.dtype, adapters: torch.dtype) -> None:
    module = attached(base)
    assert {parameter.dtype for parameter in lora.adapters(module).values()} == {adapters}
    assert module.lm_head.weight.dtype == base


@pytest.mark.parametrize("change", ["missing", "shape"])
def test_adapters_of_another_model_are_refused(change: str) -> None:
    parameters = lora.adapters(attached())
    tensors = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    name = "layers.1.v_proj.B"
    tensors[name] = tensors[name][:2]
    if change == "missing":
        del tensors[name]
    with refuses(DataError, name):
        lora.fill(parameters, tensors)


def test_recomputed_layers_give_the_same_gradients() -> None:
    tokens = torch.arange(40).reshape(2, 20) % 96
    found = []
    for recompute in (False, True):
        module = attached(recompute=recompute, dropout=0.3).train()
        fixed_weights(dict(lora.adapters(module)))
        torch.manual_seed(7)
        loss = loss_of(module, batch_of(tokens))
        loss.backward()
        found.append((loss.detach(), {name: p.grad for name, p in lora.adapters(module).items()}))
    assert torch.equal(found[0][0], found[1][0])
    for name, gradient in found[0][1].items():
        assert bool(gradient.any()), name
        assert torch.equal(gradient, found[1][1][name]), name


def test_a_recomputed_layer_runs_twice_in_training() -> None:
    calls = []
    module = attached(recompute=True)
    module.model.layers[0].input_layernorm.register_forward_hook(lambda *_: calls.append(None))
    tokens = torch.arange(20)[None]
    loss_of(module.train(), batch_of(tokens)).backward()
    assert len(calls) == 2
    with torch.no_grad():
        loss_of(module.eval(), batch_of(tokens))
    assert len(calls) == 3
