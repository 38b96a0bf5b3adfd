"""RMSNorm: which kernel a device gets, and that each computes the same."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from flagbench_cases.engines.megatron import norm
from reenact.inventory import TorchDispatchMode, moved

pytestmark = pytest.mark.image
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
WIDTH = 512


class Config:
    """What a norm reads of Megatron-Core's configuration."""

    use_cpu_initialization, params_dtype, sequence_parallel = True, torch.bfloat16, False


def made(name: str) -> norm.TorchNorm:
    module = norm.NORMS[name](Config(), WIDTH, 1e-5)
    torch.nn.init.normal_(module.weight)
    return module


def hidden() -> torch.Tensor:
    return torch.randn(64, 1, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()


@pytest.fixture
def with_apex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules under Apex's names that hold its function: what it computes, in torch's operators."""

    class FusedRMSNormAffineFunction:
        @staticmethod
        def apply(hidden: torch.Tensor, weight: torch.Tensor, size: Any, eps: float) -> torch.Tensor:
            assert tuple(size) == (WIDTH,)
            wide = hidden.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(hidden.dtype) * weight

    module = types.ModuleType("apex.normalization.fused_layer_norm")
    module.FusedRMSNormAffineFunction = FusedRMSNormAffineFunction  # type: ignore[attr-defined]
    for name in ("fused_layer_norm_cuda", "apex", "apex.normalization"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize(
    ("device", "release", "trains", "chosen"),
    [
        (CPU, (2, 13), False, norm.TORCH),
        (CUDA, (2, 9), False, norm.TORCH),
        (CUDA, (2, 6), False, norm.THREE_PASSES),
        (CUDA, (1, 12), False, norm.THREE_PASSES),
        (CUDA, (2, 6), True, norm.TORCH),
    ],
)
def test_choice_without_apex(
    device: torch.device, release: Any, trains: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(norm, "torch_release", lambda: release)
    assert norm.choose(device, trains) == chosen


@pytest.mark.usefixtures("with_apex")
def test_apex_is_chosen_on_a_device_alone() -> None:
    assert [norm.choose(CUDA, trains) for trains in (False, True)] == [norm.APEX] * 2
    assert norm.choose(CPU, True) == norm.TORCH


def test_apex_without_its_rms_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fused_layer_norm_cuda", "apex", "apex.normalization", "apex.normalization.fused_layer_norm"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert norm.choose(CUDA, True) == norm.TORCH


@pytest.mark.usefixtures("with_apex")
def test_three_passes_round_as_apex_does() -> None:
    passes, apex, torchs = (made(name) for name in (norm.THREE_PASSES, norm.APEX, norm.TORCH))
    for other in (apex, torchs):
        other.weight.data.copy_(passes.weight.data)
    with torch.no_grad():
        assert torch.equal(passes(hidden()), apex(hidden()))
        assert torch.allclose(passes(hidden()), torchs(hidden()), rtol=0.01)


class Bytes(TorchDispatchMode):
    """What operators read and write, other than those that only allocate."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if "empty" not in str(func):
            self.total += sum(moved(x) for x in (*args, result) if isinstance(x, torch.Tensor))
        return result


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 1.12 counts no operators")
def test_three_passes_move_ten_bytes_an_element() -> None:
    """As its module says, beside what they move for a row or for the weight."""
    module, given = made(norm.THREE_PASSES), hidden()
    with torch.no_grad(), Bytes() as counter:
        module(given)
    assert 10 <= counter.total / given.numel() < 10.2
