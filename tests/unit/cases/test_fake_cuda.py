"""Set-up, forward pass and update of the published sizes on a device: no tensor is on another one.

Two layers stand for all, which are alike. No backward pass runs there: gradients are tensors of the parameters'
shapes. See docs/what-was-tested.md.
"""

from __future__ import annotations

import functools
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

if not hasattr(torch.amp, "custom_fwd"):
    pytest.skip("FakeTensorMode as it is used here needs torch 2.4", allow_module_level=True)

from flagbench_cases.shared.parallel_layout import Layout
from flagbench_core import flops
from running import need_imports, need_megatron
from unit.cases.fake_cuda import DEVICE, Rank, compile_guard
from workloads import on_ranks

pytestmark = pytest.mark.image
SMALL_SET = {"source": "synthetic", "workers": 0, "examples": 64}
LAYERS = 2


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled guard of the device."""
    return compile_guard(tmp_path_factory.mktemp("guard"))


@pytest.fixture
def folder(guard: Path, tmp_path: Path) -> Path:
    """A folder that has the guard."""
    shutil.copy(guard, tmp_path)
    return tmp_path


def places(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    """Where tensors are."""
    return {tensor.device for tensor in tensors}


def train(case: str, precision: str, folder: Path, rank: int, world: int) -> None:
    """A step of a case that is not split."""
    smaller = {"model": {"layers": LAYERS}, "data": SMALL_SET, "train": {"batch_size": 2}}
    one = Rank(folder, case, precision, Layout(), 0, **smaller)
    batch, parameters = one.batch(), [each for each in one.work.module.parameters() if each.requires_grad]

    def backward(*_: Any, **__: Any) -> None:
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)

    torch.autograd.backward = backward
    with one.running():
        one.work.step(one.work.to_device(one.fake(batch)))
    optimizer = getattr(one.work.optimizer, "adamw", one.work.optimizer)
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert len(states) >= 2 * len(parameters)
    assert places([*one.work.module.parameters(), *(value for value in states if value.dim())]) == {DEVICE}


@pytest.mark.parametrize(
    ("case", "precision"), [("distilbert", "tf32"), ("glm", "fp16"), ("llama3.1-8b-lora", "bf16")]
)
def test_a_step(folder: Path, case: str, precision: str) -> None:
    need_imports(case)
    on_ranks(1, folder, functools.partial(train, case, precision))


# Split models, by Megatron-Core as it is: without what lets it run on processors


def score(release: tuple[int, int], folder: Path, rank: int, world: int) -> dict[str, Any]:
    """Aquila's published layout: what a rank did in a step, and its share of the FLOPs."""
    from torch.utils.flop_counter import FlopCounterMode

    from flagbench_cases.engines.megatron import norm

    norm.torch_release = lambda: release
    one = Rank(folder, "aquila-33b", "bf16", Layout(tp=8), 5, model={"layers": LAYERS}, data=SMALL_SET)
    batch = one.batch()
    with one.running(), FlopCounterMode(display=False) as counter:
        loss = one.work.infer(one.work.to_device(one.fake(batch)))
        one.work.after_step()
    assert places([loss, *one.work.module.parameters()]) == {DEVICE}
    return {
        "norm": one.work.describe()["conditions"]["norm"],
        "share": counter.get_total_flops() / one.work.work(batch).flops_executed,
        "collectives": one.trace.collectives,
    }


@pytest.mark.parametrize(("release", "kernel"), [((2, 9), "torch"), ((2, 6), "torch, three passes")])
def test_a_rank_of_aquila(folder: Path, release: tuple[int, int], kernel: str) -> None:
    need_megatron()
    (found,) = on_ranks(1, folder, functools.partial(score, release))
    assert found["norm"] == kernel
    assert found["share"] == pytest.approx(1 / 8, rel=1e-3)
    # Two in each layer, one of the embedding, three of the loss, and the one over replicas.
    assert found["collectives"]["allreduce_"] == 2 * LAYERS + 1 + 3 + 1


def pretrain(case: str, layout: Layout, at: int, folder: Path, rank: int, world: int) -> dict[str, Any]:
    """Pretraining: a rank's step of two micro-batches with two layers in each stage, and its share of the FLOPs."""
    import megatron.core.optimizer.optimizer as of_core
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.tensor_parallel import layers
    from torch.utils.flop_counter import FlopCounterMode

    one = Rank(
        folder,
        case,
        "bf16",
        layout,
        at,
        model={"layers": LAYERS * layout.pp},
        data={"source": "synthetic"},
        train={"batch_size": 2, "schedule_samples": 16},
    )

    def backward(inputs: Any, *_: Any, **__: Any) -> Any:
        return None if inputs is None else [None if one is None else torch.empty_like(one) for one in inputs]

    schedules.backward_step = lambda inputs, *rest: backward(inputs if isinstance(inputs, list) else [inputs])
    before, batch = Counter(one.trace.collectives), one.batch()
    with one.running(), FlopCounterMode(display=False) as counter:
        one.work.step(one.work.to_device(one.fake(batch)))
    inner = one.work.trainer.only_optimizer.optimizer
    states = [value for state in inner.state.values() for value in state.values() if value.dim()]
    parameters = list(one.work.module.parameters())
    assert states
    assert places([*parameters, *(each.main_grad for each in parameters), *states]) == {DEVICE}
    with one.running():  # what the backward pass would call
        inputs, gradients = (torch.empty(8, size, dtype=torch.bfloat16, device=DEVICE) for size in (4, 6))
        layers.fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32(
            inputs, gradients, torch.empty(6, 4, device=DEVICE)
        )
    assert layers.torch is torch
    assert of_core.clip_grad_by_total_norm_fp32.__module__ == "megatron.core.optimizer.clip_grads"
    whole = flops.llama(
        {**one.work.config["model"], "vocab_size": one.work.shape.padded_vocabulary(layout.tp)},
        flops.batch_of(2, one.work.config["data"]["sequence_length"]),
    )
    head = whole.forward - whole.layers if layout.coordinates(at).pp == layout.pp - 1 else 0
    share = (whole.layers / layout.pp + head) / layout.tp
    assert counter.get_total_flops() == pytest.approx(share, rel=1e-3)
    return {"collectives": one.trace.collectives - before, **one.work.describe()["conditions"]}


# The optimizer's, of gradients and parameters, in a published layout and with two replicas.
UPDATE = {"reduce_scatter_tensor_coalesced_": 1, "allgather_into_tensor_coalesced_": 1}
# Sequence parallelism: before and after attention and MLP of two layers, for two micro-batches. The embedding also
# scatters, and the output layer gathers.
SEQUENCES = {"_allgather_base_": 8, "_reduce_scatter_base_": 8}


@pytest.mark.parametrize(
    ("layout", "at", "more"),
    [
        (Layout(1, 8, 4), 1, {"_reduce_scatter_base_": 10, "send": 2, "recv_": 2}),
        (Layout(1, 8, 4), 31, {"_allgather_base_": 10, "send": 2, "recv_": 2}),
        (Layout(2, 4, 1), 7, {"_allgather_base_": 10, "_reduce_scatter_base_": 10}),
    ],
    ids=["first stage", "last stage", "two replicas"],
)
def test_a_rank_of_llama2_70b(folder: Path, layout: Layout, at: int, more: dict[str, int]) -> None:
    need_megatron()
    (found,) = on_ranks(1, folder, functools.partial(pretrain, "llama2-70b", layout, at))
    kernels = {"attention": "sdpa", "norm": "torch", "weight_gradients": "fused by torch"}
    assert {name: found[name] for name in kernels} == kernels
    del found["collectives"]["allreduce_"]  # of the loss and of the norm of the gradients
    assert found["collectives"] == {**UPDATE, **SEQUENCES, **more}


@pytest.mark.parametrize(("layout", "at"), [(Layout(4, 2, 1), 7), (Layout(2, 2, 2), 7)], ids=str)
def test_a_rank_of_llama3_8b(folder: Path, layout: Layout, at: int) -> None:
    need_megatron()
    (found,) = on_ranks(1, folder, functools.partial(pretrain, "llama3-8b", layout, at))
    kernels = {
        "attention": "sdpa",
        "transformer": "local",
        "weight_gradients": "fused by torch",
        "layers": LAYERS * layout.pp,
    }
    assert {name: found[name] for name in kernels} == kernels
