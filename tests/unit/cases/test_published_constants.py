"""The publishers' constants: each with the file and line where it stands, and an input small enough to feel it.

What a manifest's reference preset has is compared with the table; of what stands in code, a result is. Paths of
FlagPerf are at 1b5a0303, but inference/ at e4c7e52d, below training/benchmarks/ unless they begin otherwise.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flagbench_cases.cases.distilbert import model as distilbert
from flagbench_cases.cases.glm import model as glm
from flagbench_cases.cases.glm import optimizer as glm_optimizer
from flagbench_cases.cases.llama2_7b_lora import decoder
from flagbench_cases.cases.llama2_7b_lora import forward as lora_forward
from flagbench_cases.cases.llama2_7b_lora.model import shape_from
from flagbench_cases.cases.llama2_7b_lora.random_weights import RandomWorkload
from flagbench_cases.cases.roofs.workload import CLEARED_BYTES
from flagbench_cases.engines import products
from flagbench_cases.shared.manifests import load_case, load_stack
from flagbench_core.config import Options, resolve
from unit.cases.distilbert import test_workload as distilbert_bench
from unit.cases.glm import small_glm
from unit.cases.llama2_7b_lora import lora_bench
from workloads import set_up

pytestmark = pytest.mark.image

BASE = "%s/pytorch/config/_base.py:%d"
BERT = "transformers 4.33.0, models/distilbert/configuration_distilbert.py:%d"
GLM_LAYERS = "training/nvidia/glm-pytorch/extern/layers/transformer.py:%d"
LORA = "llama2_7b_finetune/pytorch/model/model.py:%d"
MEGATRON = "llama2_70B/megatron/megatron_main.sh:%d"
FLAGSCALE = "FlagScale 26cd6643, megatron/%s:%d"
AQUILA = "inference/benchmarks/Aquila_33b/flagscale/%s:%d"
LLAMA_2 = "config.json of Llama-2-7b-hf"
LLAMA_3 = "llama3_8B/megatron/pretrain_llama3.sh:%d"
MEGATRON_LM = "Megatron-LM cac60ce4, megatron/training/arguments.py:%d"
META = "meta-llama/llama3 a0940f9, llama/model.py:%d"
META_CONFIG = "config.json of Meta-Llama-3-8B"
AUTOMODEL = "Automodel 507bfb75, examples/llm_finetune/%s:%d"
LLAMA_LORA = "llama3_1/llama3_1_8b_peft_benchmark.yaml"
QWEN_LORA = "qwen/qwen2_5_7b_peft_benchmark.yaml"
AUTOMODEL_CASES = ("llama3.1-8b-lora", "qwen2.5-7b-lora")
LLAMA_31, QWEN = "config.json of Llama-3.1-8B", "config.json of Qwen2.5-7B"
A100 = "base/benchmarks/%s/nvidia/A100/case_config.yaml:%d"
BENCHMARK = "base/benchmarks/%s/case_config.yaml:%d"
MAMF = "ml-engineering 744d01e1, compute/accelerator/benchmarks/mamf-finder.py:%d"

LLAMA_3_8B: dict[str, tuple[float, str]] = {
    "model.norm_eps": (1e-5, LLAMA_3 % 40),
    "model.initializer_range": (0.008, LLAMA_3 % 54),
    "model.vocab_multiple": (128, MEGATRON_LM % 725),
    "model.dropout": (0.1, MEGATRON_LM % 854),
    "train.learning_rate": (1e-5, LLAMA_3 % 45),
    "train.min_learning_rate": (1e-6, LLAMA_3 % 49),
    "train.warmup_share": (0.0, MEGATRON_LM % 1128),
    "train.schedule_samples": (300 * 512, "training/nvidia/llama3_8B-megatron/config/config_A100x1x8.py:3"),
    "train.weight_decay": (0.1, LLAMA_3 % 50),
    "train.beta1": (0.9, LLAMA_3 % 52),
    "train.beta2": (0.95, LLAMA_3 % 53),
    "train.epsilon": (1e-8, MEGATRON_LM % 875),
    "train.clip": (1.0, LLAMA_3 % 51),
}

MANIFESTS: dict[str, dict[str, tuple[float, str]]] = {
    "distilbert": {
        "model.dropout": (0.1, BERT % 117),
        "model.attention_dropout": (0.1, BERT % 118),
        "model.classifier_dropout": (0.2, BERT % 122),
        "model.initializer_range": (0.02, BERT % 120),
        "train.learning_rate": (5e-5, BASE % ("distilbert", 15)),
        "train.weight_decay": (0.0, BASE % ("distilbert", 16)),
        "train.max_epochs": (10, BASE % ("distilbert", 24)),
    },
    "glm": {
        "model.dropout": (0.1, BASE % ("glm", 30)),
        "model.attention_dropout": (0.1, BASE % ("glm", 31)),
        "model.embedding_dropout": (0.1, "glm/pytorch/model/__init__.py:11"),
        "model.initializer_range": (0.02, "glm/pytorch/model/models/modeling.py:55"),
        "train.learning_rate": (1e-5, BASE % ("glm", 56)),
        "train.weight_decay": (0.1, BASE % ("glm", 57)),
        "train.clip_norm": (1.0, BASE % ("glm", 66)),
        "train.decay_steps": (4338, BASE % ("glm", 61)),
        "train.warmup_share": (0.1, BASE % ("glm", 63)),
        "train.final_share": (0.1, BASE % ("glm", 64)),
        "train.loss_scale": (2**32, "glm/pytorch/optimizers/loss_scaler.py:92"),
        "train.loss_scale_window": (1000, BASE % ("glm", 45)),
        "train.loss_scale_min": (1, BASE % ("glm", 46)),
        "train.loss_scale_hysteresis": (2, BASE % ("glm", 47)),
    },
    "llama2-7b-lora": {
        "model.norm_eps": (1e-5, LLAMA_2),
        "model.rope_theta": (10000.0, "transformers 4.31.0, models/llama/modeling_llama.py:93"),
        "model.initializer_range": (0.02, LLAMA_2),
        "model.lora.r": (8, LORA % 10),
        "model.lora.alpha": (32, LORA % 11),
        "model.lora.dropout": (0.05, LORA % 16),
        "train.learning_rate": (1e-4, BASE % ("llama2_7b_finetune", 43)),
        "train.weight_decay": (0.0, BASE % ("llama2_7b_finetune", 44)),
        "train.gamma": (0.85, BASE % ("llama2_7b_finetune", 45)),
    },
    "llama2-70b": {
        "model.norm_eps": (1e-5, FLAGSCALE % ("arguments.py", 750)),
        "model.rope_theta": (10000.0, FLAGSCALE % ("core/models/common/embeddings/rotary_pos_embedding.py", 46)),
        "model.initializer_range": (0.02, MEGATRON % 110),
        "train.learning_rate": (1.5e-4, MEGATRON % 124),
        "train.min_learning_rate": (1e-5, MEGATRON % 125),
        "train.warmup_share": (0.01, MEGATRON % 127),
        "train.weight_decay": (0.01, MEGATRON % 117),
        "train.beta1": (0.9, MEGATRON % 118),
        "train.beta2": (0.95, MEGATRON % 119),
        "train.epsilon": (1e-8, FLAGSCALE % ("arguments.py", 890)),
        "train.clip": (1.0, MEGATRON % 120),
    },
    "aquila-33b": {
        "model.norm_eps": (1e-5, AQUILA % ("main.sh", 45)),
        "model.norm_init": (0.3, AQUILA % ("main.sh", 46)),
        "model.rope_theta": (10000.0, AQUILA % ("megatron/core/models/common/rotary_pos_embedding.py", 15)),
    },
    "llama3-8b": LLAMA_3_8B,
    "llama3-8b-rope": {
        **LLAMA_3_8B,
        "model.norm_eps": (1e-5, META % 28),
        "model.rope_theta": (500000.0, META % 29),
        "model.initializer_range": (0.02, META_CONFIG),
        "model.dropout": (0.0, META_CONFIG),
    },
    "llama3.1-8b-lora": {
        "model.norm_eps": (1e-5, LLAMA_31),
        "model.rope_theta": (500000.0, LLAMA_31),
        "model.rope_factor": (8.0, LLAMA_31),
        "model.initializer_range": (0.02, LLAMA_31),
        "model.lora.r": (16, AUTOMODEL % (LLAMA_LORA, 55)),
        "model.lora.alpha": (32, AUTOMODEL % (LLAMA_LORA, 56)),
        "model.lora.dropout": (0.1, AUTOMODEL % (LLAMA_LORA, 57)),
        "data.token_ids": (100, AUTOMODEL % (LLAMA_LORA, 74)),
        "data.sequence_length": (4096, AUTOMODEL % (LLAMA_LORA, 75)),
        "train.batch_size": (32, AUTOMODEL % (LLAMA_LORA, 33)),
        "train.micro_batch_size": (2, AUTOMODEL % (LLAMA_LORA, 34)),
        "train.learning_rate": (1e-5, AUTOMODEL % (LLAMA_LORA, 97)),
        "train.weight_decay": (0.01, AUTOMODEL % (LLAMA_LORA, 98)),
        "train.warmup_steps": (5, AUTOMODEL % (LLAMA_LORA, 25)),
    },
    "qwen2.5-7b-lora": {
        "model.norm_eps": (1e-6, QWEN),
        "model.rope_theta": (1000000.0, QWEN),
        "model.rope_factor": (1.0, QWEN),
        "model.initializer_range": (0.02, QWEN),
        "model.lora.r": (16, AUTOMODEL % (QWEN_LORA, 55)),
        "model.lora.alpha": (32, AUTOMODEL % (QWEN_LORA, 56)),
        "model.lora.dropout": (0.0, AUTOMODEL % (QWEN_LORA, 57)),
        "data.token_ids": (100, AUTOMODEL % (QWEN_LORA, 74)),
        "data.sequence_length": (4096, AUTOMODEL % (QWEN_LORA, 75)),
        "train.batch_size": (32, AUTOMODEL % (QWEN_LORA, 32)),
        "train.micro_batch_size": (2, AUTOMODEL % (QWEN_LORA, 33)),
        "train.learning_rate": (1e-5, AUTOMODEL % (QWEN_LORA, 88)),
        "train.weight_decay": (0.01, AUTOMODEL % (QWEN_LORA, 89)),
        "train.warmup_steps": (5, AUTOMODEL % (QWEN_LORA, 24)),
    },
    "roofs": {
        "products.m": (8192, A100 % ("computation-BF16", 1)),
        "products.n": (8192, A100 % ("computation-BF16", 2)),
        "products.k": (8192, A100 % ("computation-BF16", 3)),
        "copies.bytes": (4 * 2**30, BENCHMARK % ("main_memory-bandwidth", 1)),
        "collectives.largest": (4 * 2**30, BENCHMARK % ("interconnect-MPI_intraserver", 1)),
        "measure.iterations.matmul_fp64": (10000, BENCHMARK % ("computation-FP64", 5)),
        "measure.iterations.matmul_fp32": (10000, BENCHMARK % ("computation-FP32", 5)),
        "measure.iterations.matmul_tf32": (100000, BENCHMARK % ("computation-TF32", 5)),
        "measure.iterations.matmul_fp16": (50000, BENCHMARK % ("computation-FP16", 5)),
        "measure.iterations.matmul_bf16": (50000, BENCHMARK % ("computation-BF16", 5)),
        "measure.iterations.memory_bandwidth": (100000, BENCHMARK % ("main_memory-bandwidth", 3)),
        "measure.iterations.h2d_pageable": (1000, BENCHMARK % ("interconnect-h2d", 3)),
        "measure.iterations.all_reduce": (10000, BENCHMARK % ("interconnect-MPI_intraserver", 3)),
    },
}


@pytest.mark.parametrize(
    ("case", "path", "value", "source"),
    [(case, path, *row) for case, rows in MANIFESTS.items() for path, row in rows.items()],
)
def test_a_reference_preset_has_the_published_constant(case: str, path: str, value: float, source: str) -> None:
    found: Any = load_case(case)["presets"]["reference"]
    for key in path.split("."):
        found = found[key]
    assert found == value, source


# Norms


def built(case: str, folder: Path) -> nn.Module:
    """A small model of a case, in fp32."""
    if case == "distilbert":
        return distilbert.DistilBertClassifier(distilbert.config_from({**DISTILBERT, "layers": 1}))
    if case == "glm":
        return small_glm.workload(folder).module
    return lora_bench.workload(folder).module


DISTILBERT = {**load_case("distilbert")["presets"]["reference"]["model"], "dim": 48, "heads": 3, "hidden_dim": 80}
EPSILONS = {
    "distilbert": (1e-12, "transformers 4.33.0, models/distilbert/modeling_distilbert.py:101, 273, 276"),
    "glm": (1e-5, GLM_LAYERS % 75),
    "llama2-7b-lora": (1e-5, LLAMA_2),
}


def halved(norm: nn.Module, epsilon: float) -> bool:
    """Whether an input whose variance is epsilon leaves a norm, whose gain is one, with half of a variance of one."""
    width = norm.weight.numel()
    x = torch.tensor([1.0, -1.0]).repeat(width // 2) * math.sqrt(epsilon)
    with torch.no_grad():
        norm.weight.fill_(1.0)
        return torch.allclose(norm(x).square(), torch.full((width,), 0.5), atol=1e-3)


@pytest.mark.parametrize("case", EPSILONS)
def test_every_norm_has_the_published_epsilon(tmp_path: Path, case: str) -> None:
    norms = [module for module in built(case, tmp_path).modules() if "Norm" in type(module).__name__]
    assert len(norms) >= 3
    epsilon, source = EPSILONS[case]
    assert all(halved(norm, epsilon) for norm in norms), source


@pytest.mark.parametrize("name", ["TorchNorm", "PassesNorm"])
def test_the_norms_of_split_models_use_their_epsilon(name: str) -> None:
    pytest.importorskip("megatron.core")
    from types import SimpleNamespace

    from flagbench_cases.engines.megatron import norm

    config = {"sequence_parallel": False, "params_dtype": torch.float32, "use_cpu_initialization": True}
    assert halved(getattr(norm, name)(SimpleNamespace(**config), 16, 1e-5), 1e-5)


# Masks


def test_glm_hides_columns_with_the_lowest_fp16_number() -> None:
    """glm/pytorch/model/layers/attention.py:202: a visible score that is as low gets as much as a hidden one."""
    config = {**small_glm.SMALL["model"], "dim": 1, "heads": 1, "recompute": False}
    attention = glm.SelfAttention(glm.config_from(config))
    with torch.no_grad():
        # Queries of 1, keys and values from the input.
        attention.query_key_value.weight.copy_(torch.tensor([[0.0], [-65504.0], [1.0]]))
        attention.query_key_value.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))
        attention.dense.weight.fill_(1.0)
        attention.dense.bias.zero_()
        found = attention(torch.tensor([[[1.0], [0.0]]]), torch.ones(1, 1, 2, 2).tril())
    assert found[0, 0].item() == pytest.approx(0.5)


def test_distilbert_hides_columns_with_the_lowest_number() -> None:
    """transformers 4.33.0, models/distilbert/modeling_distilbert.py:223: every finite score is above it."""
    attention = distilbert.SelfAttention(distilbert.config_from({**DISTILBERT, "dim": 1, "heads": 1})).eval()
    with torch.no_grad():
        for linear, weight, bias in ((attention.q_lin, 0.0, 1.0), (attention.k_lin, -1e30, 0.0)):
            linear.weight.fill_(weight)
            linear.bias.fill_(bias)
        for linear in (attention.v_lin, attention.out_lin):
            linear.weight.fill_(1.0)
            linear.bias.zero_()
        found = attention(torch.tensor([[[1.0], [0.0]]]), torch.tensor([[1, 0]]))
    assert found[0, 0].item() == 1.0


def test_llama_hides_columns_with_the_lowest_number() -> None:
    """transformers 4.31.0, models/llama/modeling_llama.py:50, 72."""
    lowest = torch.finfo(torch.float32).min
    assert lora_forward.causal(2, torch.zeros(1))[0, 0].tolist() == [[0.0, lowest], [0.0, 0.0]]
    assert lora_forward.expanded(torch.tensor([[1, 0]]), torch.float32)[0, 0, 0].tolist() == [0.0, lowest]


def test_glm_trains_with_padding_choices_of_minus_ten_thousand() -> None:
    """glm/pytorch/train/trainer.py:229: a right choice of that score is as likely as a padding choice."""
    loss = glm.cloze_loss(torch.tensor([[-1e4, 7.0]]), torch.tensor([[1, 0]]), torch.tensor([0]))
    assert loss.item() == pytest.approx(math.log(2))


def test_glm_evaluates_with_padding_choices_of_minus_a_billion(tmp_path: Path) -> None:
    """glm/pytorch/train/evaluator.py:52: a score just above it is chosen, one just below it is not."""
    work = small_glm.workload(tmp_path)
    batch = next(batch for batch in work.eval_loader if 0 in batch.choice_mask)
    row = batch.choice_mask.tolist().index(min(batch.choice_mask.tolist(), key=sum))
    count = int(batch.choice_mask[row].sum())
    for score, chosen in ((-0.99e9, 0), (-1.01e9, count)):
        work.module.forward = lambda tokens, *_, score=score: torch.full(tokens.shape[:2], score)
        assert work._choose(batch)[row] == chosen


# Optimizers


@pytest.mark.parametrize(
    ("case", "source"),
    [
        ("distilbert", "distilbert/pytorch/optimizers/__init__.py:26: torch's defaults"),
        ("glm", BASE % ("glm", 58)),
        ("llama2-7b-lora", "llama2_7b_finetune/pytorch/optimizers/__init__.py:5: torch's defaults"),
        ("llama3.1-8b-lora", AUTOMODEL % (LLAMA_LORA, 95)),
        ("qwen2.5-7b-lora", AUTOMODEL % (QWEN_LORA, 86)),
    ],
)
def test_adamw_has_the_published_betas_and_epsilon(tmp_path: Path, case: str, source: str) -> None:
    if case == "glm":
        groups = small_glm.workload(tmp_path).optimizer.adamw.param_groups
    elif case == "distilbert":
        groups = distilbert_bench.workload(tmp_path).optimizer.param_groups
    elif case in AUTOMODEL_CASES:
        config = resolve(load_case(case), load_stack("cpu"), Options(preset="tiny"))
        groups = set_up(RandomWorkload, config, tmp_path).optimizer.param_groups
    else:
        pytest.importorskip("peft")
        groups = lora_bench.workload(tmp_path).engine.optimizer.param_groups
    for group in groups:
        assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8), source


def test_glm_clips_with_the_published_epsilon() -> None:
    """glm/pytorch/optimizers/fp16_optimizer.py:57: a gradient of that norm is halved by a limit of it."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.full((1,), 1e-6)
    glm_optimizer.clip([parameter], 1e-6)
    assert parameter.grad.item() == pytest.approx(0.5e-6)


# Adapters and angles


@pytest.mark.parametrize("case", AUTOMODEL_CASES)
def test_adapters_begin_as_xavier_has_them(case: str) -> None:
    """Automodel 507bfb75, nemo_automodel/components/_peft/lora.py:132-135: a gain of 1; B is zero."""
    tiny = resolve(load_case(case), load_stack("cpu"), Options(preset="tiny"))["model"]
    model = decoder.Decoder(shape_from({**tiny, "dim": 512, "ffn": 512}), False)
    model.initialise(1)
    adapters = {name: values for name, values in model.named_parameters() if values.requires_grad}
    assert len(adapters) >= 8
    for name, values in adapters.items():
        if name.endswith("lora_b"):
            assert not values.any(), name
        else:
            xavier = math.sqrt(2.0 / sum(values.shape))
            assert values.std().item() == pytest.approx(xavier, rel=0.05), name


def test_an_adapter_adds_its_product_twice_and_then_drops_some() -> None:
    """Automodel 507bfb75, llama3_1_8b_peft_benchmark.yaml:55-57 and nemo_automodel/components/_peft/lora.py:44.

    alpha / r is 2. The dropout of 0.1 follows the product and scales what is left by 1 / 0.9.
    """
    shape = shape_from(load_case("llama3.1-8b-lora")["presets"]["reference"]["model"])
    adapted = decoder.Adapted(shape.lora, 16, 4096)
    with torch.no_grad():
        adapted.weight.zero_()
        adapted.lora_a.fill_(0.25)
        adapted.lora_b.fill_(0.5)
        product = 16 * 0.25 * 16 * 0.5
        torch.manual_seed(1)
        assert adapted.eval()(torch.ones(1, 16)).unique().tolist() == [2 * product]
        trained = adapted.train()(torch.ones(1, 16))
    assert trained.unique().tolist() == pytest.approx([0.0, 2 * product / 0.9])
    assert (trained == 0).float().mean().item() == pytest.approx(0.1, abs=0.02)


def test_low_frequencies_are_stretched_as_llama3_has_them() -> None:
    """transformers 4.57.3, modeling_rope_utils.py: factor 8, and low and high frequency factors 1 and 4 of 8192."""
    shape = shape_from(load_case("llama3.1-8b-lora")["presets"]["reference"]["model"])
    cosines, sines = decoder.rotary(shape, 2, torch.device("cpu"))
    rates = torch.atan2(sines, cosines)[1, : shape.dim // shape.heads // 2].tolist()
    expected = []
    for index in range(64):
        rate = 500000.0 ** (-index / 64)
        turns = 8192 * rate / (2 * math.pi)
        if turns > 4:
            expected.append(rate)
        elif turns < 1:
            expected.append(rate / 8)
        else:
            kept = (turns - 1) / (4 - 1)
            expected.append(kept * rate + (1 - kept) * rate / 8)
    assert rates == pytest.approx(expected, rel=1e-4)


# Roofs


def operators(run: Any) -> list[tuple[str, list[list[int]]]]:
    """The operators that a function calls, with the shapes of their tensors."""
    with torch.profiler.profile(record_shapes=True) as profiled:
        run()
    return [(event.name, event.input_shapes) for event in profiled.events() if event.cpu_parent is None]


def test_mamf_clears_the_caches_before_a_product() -> None:
    """mamf-finder.py:299-306, 316-317: 256 MiB of int32 are zeroed, and the last result is overwritten."""
    assert CLEARED_BYTES["cuda"] == 256 * 2**20, MAMF % 299
    one = products.mamf_product(torch.device("cpu"), "fp32", 4, 6, 8, 64)
    (zeroed, zeroed_shapes), (copied, copied_shapes) = operators(one.clear)
    assert (zeroed, zeroed_shapes[0]) == ("aten::zero_", [16])
    assert (copied, copied_shapes[:2]) == ("aten::copy_", [[4, 6], [4, 6]])
    assert [name for name, _ in operators(one.run)] == ["aten::mm"]


def test_mamf_transposes_the_second_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """mamf-finder.py:352-357: stored as (n, k), and the result is written to a tensor that is there."""
    calls = []
    multiply = torch.mm

    def mm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        calls.append((a.shape, a.stride(), b.shape, b.stride()))
        return multiply(a, b, out=out)

    monkeypatch.setattr(torch, "mm", mm)
    products.mamf_product(torch.device("cpu"), "fp32", 4, 6, 8, 64).run()
    assert set(calls) == {((4, 8), (8, 1), (8, 6), (1, 8))}
