"""Attention in one kernel: the function it computes, and which kernel a device gets."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from flagbench_cases.engines.megatron import attention

pytestmark = [
    pytest.mark.image,
    pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="its keys in groups need torch 2.5"),
]


def module(kernel: str = attention.SDPA, dropout: float = 0.0) -> Any:
    """The module of a kernel, as Megatron-Core makes it inside a parallel region."""
    config = types.SimpleNamespace(attention_dropout=dropout, sequence_parallel=True)
    return attention.ATTENTIONS[kernel](config=config)


def separate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Scores, softmax and context one after another: [T, B, H, D] to [T, B, H x D]."""
    times, length = query.shape[2] // key.shape[2], query.shape[0]
    key, value = key.repeat_interleave(times, dim=2), value.repeat_interleave(times, dim=2)
    scores = torch.einsum("qbhd,kbhd->bhqk", query, key) / query.shape[3] ** 0.5
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
    return torch.einsum("bhqk,kbhd->qbhd", scores.softmax(-1), value).flatten(2)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_it_is_causal_attention_of_grouped_queries(groups: int) -> None:
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(12, 3, 8, 16, generator=generator, requires_grad=True)
    key, value = (torch.randn(12, 3, groups, 16, generator=generator, requires_grad=True) for _ in range(2))
    found, expected = module()(query, key, value, None), separate(query, key, value)
    assert found.shape == (12, 3, 128)
    assert found.is_contiguous()
    assert torch.allclose(found, expected, atol=1e-5)
    direction = torch.randn(found.shape, generator=generator)
    for ours, theirs in zip(
        torch.autograd.grad((found * direction).sum(), (query, key, value)),
        torch.autograd.grad((expected * direction).sum(), (query, key, value)),
    ):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_dropout_is_of_training_alone() -> None:
    """Of the probabilities: a quarter is left out, and the others are larger."""
    query, ones = torch.randn(64, 4, 8, 16), torch.ones(64, 4, 8, 16)
    drops = module(dropout=0.25)
    trained = drops(query, query, ones, None)
    assert trained.std() > 0.05
    assert float(trained.mean()) == pytest.approx(1.0, abs=0.02)
    assert torch.allclose(drops.eval()(query, query, ones, None), torch.ones(64, 4, 128))


def test_flash_attn_is_chosen_where_it_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def flash_attn_func(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, causal: bool
    ) -> Any:
        calls.append((query.shape, key.shape, dropout, causal))
        return query

    device = torch.device("cuda")
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert attention.choose(device) == attention.SDPA
    package = types.ModuleType("flash_attn")
    package.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    assert attention.choose(device) == attention.FLASH
    assert attention.choose(torch.device("cpu")) == attention.SDPA
    query, key = torch.randn(5, 2, 4, 8), torch.randn(5, 2, 1, 8)
    found = module(attention.FLASH, dropout=0.1)(query, key, key, None)
    assert torch.equal(found, query.flatten(2))  # what the stand-in gives, in Megatron-Core's shape
    assert calls == [((2, 5, 4, 8), (2, 5, 1, 8), 0.1, True)]
