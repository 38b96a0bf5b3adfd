"""The model by the installed Megatron-Core, whichever release it is, compared with one of plain torch."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from flagbench_cases.engines import megatron
from unit.cases.engines import split_model
from unit.cases.engines.split_model import SHAPE, TOKENS
from workloads import on_ranks

pytestmark = pytest.mark.image


def installed() -> str:
    try:
        return importlib.metadata.version("megatron-core")
    except importlib.metadata.PackageNotFoundError:
        return ""


needs_megatron = pytest.mark.skipif(not installed(), reason="Megatron-Core is not installed")


def scored(angles: torch.dtype) -> torch.Tensor:
    """Logits fp32 of TOKENS by the formulas of the model, with rotary angles of this precision."""
    weights = split_model.all_weights()
    width, times = SHAPE.head_dim, SHAPE.heads // SHAPE.kv_heads
    tokens = TOKENS[:, :-1]
    batch, length = tokens.shape
    frequencies = (1.0 / SHAPE.rope_theta ** (torch.arange(0, width, 2).float() / width)).to(angles)
    turned = torch.outer(torch.arange(length).to(angles), frequencies)
    turned = torch.cat([turned, turned], -1).float()[:, None]

    def norm(values: torch.Tensor, name: str) -> torch.Tensor:
        return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + SHAPE.norm_eps) * weights[name]

    def rotary(values: torch.Tensor) -> torch.Tensor:
        low, high = values.chunk(2, -1)
        return values * turned.cos() + torch.cat([-high, low], -1) * turned.sin()

    hidden = weights["model.embed_tokens.weight"][tokens]
    for index in range(SHAPE.layers):
        layer = "model.layers.%d." % index
        x = norm(hidden, layer + "input_layernorm.weight")
        query, key, value = (
            F.linear(x, weights[layer + "self_attn.%s_proj.weight" % name]).view(batch, length, -1, width)
            for name in "qkv"
        )
        query, key = rotary(query), rotary(key).repeat_interleave(times, 2)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / width**0.5
        scores = scores.masked_fill(torch.ones(length, length).tril() < 0.5, float("-inf"))
        context = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value.repeat_interleave(times, 2))
        hidden = hidden + F.linear(context.reshape(batch, length, -1), weights[layer + "self_attn.o_proj.weight"])
        x = norm(hidden, layer + "post_attention_layernorm.weight")
        gate = F.silu(F.linear(x, weights[layer + "mlp.gate_proj.weight"]))
        wide = gate * F.linear(x, weights[layer + "mlp.up_proj.weight"])
        hidden = hidden + F.linear(wide, weights[layer + "mlp.down_proj.weight"])
    return F.linear(norm(hidden, "model.norm.weight"), weights["lm_head.weight"])


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """`split(tp)`: what so many ranks computed, whole logits, and the losses, which are equal on all ranks."""

    @functools.lru_cache(maxsize=None)
    def of(tp: int) -> dict[str, Any]:
        found = on_ranks(tp, tmp_path_factory.mktemp("ranks"), split_model.told)
        told: dict[str, Any] = {"module": found[0]["module"]}
        for name in split_model.PRECISIONS:
            told[name] = torch.cat([each[name] for each in found], -1)
            told[name + " losses"] = found[0][name + " losses"]
            assert all(torch.equal(each[name + " losses"], told[name + " losses"]) for each in found)
        return told

    return of


@pytest.fixture(params=[1, 2])
def logits(request: pytest.FixtureRequest, split: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    return split(request.param)


@needs_megatron
def test_the_module_is_that_of_the_installed_release(logits: dict[str, Any]) -> None:
    release = ".".join(installed().split(".")[:2])
    assert logits["module"].rpartition(".")[2] == megatron.MODULES[release]


@needs_megatron
def test_logits_and_losses_in_fp32_are_those_of_the_formulas(logits: dict[str, Any]) -> None:
    torch.testing.assert_close(logits["fp32"], scored(torch.float32), rtol=0, atol=2e-5)
    losses = F.cross_entropy(logits["fp32"].flatten(0, 1), TOKENS[:, 1:].flatten(), reduction="none")
    torch.testing.assert_close(logits["fp32 losses"].flatten(), losses, rtol=0, atol=1e-5)


@needs_megatron
def test_angles_have_the_precision_of_the_model(logits: dict[str, Any]) -> None:
    """The logits in bf16 differ from exact ones by what angles in bf16 change, and by roundings without relation."""
    exact = scored(torch.float32)
    expected, found = scored(torch.bfloat16) - exact, logits["bf16"] - exact
    share = float((found * expected).sum() / expected.pow(2).sum())
    assert share == pytest.approx(1, abs=0.2)
