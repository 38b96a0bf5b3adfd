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
from flagbench_cases.cases.llama2_7b_lora import forward as lora_forward
from flagbench_cases.shared.manifests import load_case
from unit.cases.distilbert import test_workload as distilbert_bench
from unit.cases.glm import small_glm
from unit.cases.llama2_7b_lora import lora_bench

pytestmark = pytest.mark.image

BASE = "%s/pytorch/config/_base.py:%d"
BERT = "transformers 4.33.0, models/distilbert/configuration_distilbert.py:%d"
GLM_LAYERS = "training/nvidia/glm-pytorch/extern/layers/transformer.py:%d"
LORA = "llama2_7b_finetune/pytorch/model/model.py:%d"
MEGATRON = "llama2_70B/megatron/megatron_main.sh:%d"
FLAGSCALE = "FlagScale 26cd6643, megatron/%s:%d"
AQUILA = "inference/benchmarks/Aquila_33b/flagscale/%s:%d"
LLAMA_2 = "config.json of Llama-2-7b-hf"

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
    pytest.importorskip("peft")
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
    ],
)
def test_adamw_has_the_published_betas_and_epsilon(tmp_path: Path, case: str, source: str) -> None:
    if case == "glm":
        groups = small_glm.workload(tmp_path).optimizer.adamw.param_groups
    elif case == "distilbert":
        groups = distilbert_bench.workload(tmp_path).optimizer.param_groups
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
