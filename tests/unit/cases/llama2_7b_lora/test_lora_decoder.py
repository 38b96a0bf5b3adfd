"""The geometries on random weights: the same as transformers' models, in micro-batches and on replicas too."""

from __future__ import annotations

import functools
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.cases.llama2_7b_lora.decoder import (
    IGNORED,
    PROJECTIONS,
    Adapted,
    Decoder,
    keep_inputs,
    rotate,
    swiglu,
)
from flagbench_cases.cases.llama2_7b_lora.model import shape_from
from flagbench_cases.cases.llama2_7b_lora.random_weights import RandomWorkload, batch_of
from flagbench_cases.shared.manifests import load_case, load_stack
from flagbench_core.config import Options, merge, resolve
from reenact.inventory import Operators
from workloads import on_ranks, set_up, train

pytestmark = pytest.mark.image

CASES = ("llama3.1-8b-lora", "qwen2.5-7b-lora")


def configured(case: str, **changes: Any) -> dict[str, Any]:
    """The tiny preset in fp32 without dropout."""
    options = Options(preset="tiny", precision="fp32", steps=9, settings=("lora_dropout=0",))
    return merge(resolve(load_case(case), load_stack("cpu"), options), changes)


def decoder(case: str, fused: bool) -> Decoder:
    """A tiny model of a geometry; all its numbers, those of B and of norms too, are random."""
    model = Decoder(shape_from(configured(case)["model"]), fused)
    model.initialise(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "lora_b")):
                parameter.normal_(std=0.5)
    return model


def counterpart(case: str, model: Decoder) -> Any:
    """transformers' model with the adapters merged into its weights."""
    transformers = pytest.importorskip("transformers", minversion="4.43", reason="rope type llama3")
    shape = model.shape
    sizes: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.dim,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": False,
    }
    if case == CASES[0]:
        sizes["rope_scaling"] = {
            **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            "original_max_position_embeddings": 8192,
            "rope_theta": shape.rope_theta,
        }
        other = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    else:
        other = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes))
    state = {
        "model.embed_tokens.weight": model.embedding,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.head,
    }
    for index, layer in enumerate(model.layers):
        at = f"model.layers.{index}."
        state[at + "input_layernorm.weight"] = layer.attention_norm.weight
        state[at + "post_attention_layernorm.weight"] = layer.mlp_norm.weight
        for name in PROJECTIONS.split("+"):
            part = getattr(layer, name)
            place = f"{at}mlp.{name}_proj." if name in ("gate", "up", "down") else f"{at}self_attn.{name}_proj."
            state[place + "weight"] = part.weight + part.scale * part.lora_b @ part.lora_a
            if part.bias is not None:
                state[place + "bias"] = part.bias
    other.load_state_dict({name: tensor.detach() for name, tensor in state.items()})
    return other.eval()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_loss_is_that_of_transformers(case: str, fused: bool) -> None:
    model = decoder(case, fused and hasattr(torch.nn.functional, "scaled_dot_product_attention"))
    batch = batch_of(torch.randint(0, 512, (3, 200)).unbind())
    with torch.no_grad():
        logits = counterpart(case, model)(batch["tokens"]).logits
        expected = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED, reduction="sum"
        )
    assert model(**batch).item() == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("case", "frozen", "trained", "published"),
    [(CASES[0], 8_030_261_248, 41_943_040, 32.250e9), (CASES[1], 7_615_616_512, 40_370_176, 30.005e9)],
)
def test_parameters_and_published_flops(case: str, frozen: int, trained: int, published: float) -> None:
    """AutoModel's formula is llama3_flops of its components/utils/flops_utils.py, times its factor for adapters."""
    manifest = load_case(case)
    model = manifest["presets"]["reference"]["model"]
    parameters = list(Decoder(shape_from(model), True, device=torch.device("meta")).parameters())
    assert sum(each.numel() for each in parameters if not each.requires_grad) == frozen
    assert sum(each.numel() for each in parameters if each.requires_grad) == trained
    dim, length = model["dim"], manifest["presets"]["reference"]["data"]["sequence_length"]
    layer = 12 + 12 * model["kv_heads"] / model["heads"] + 18 * model["ffn"] / dim + 6 * length / dim
    whole = model["layers"] * dim**2 * layer + 6 * dim * model["vocab_size"]
    found = manifest["flops"]["published"]["flops_per_unit"]
    assert found == pytest.approx(whole * (2 + trained / frozen) / 3, rel=1e-9)
    assert found == pytest.approx(published, rel=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_adapters_are_on_seven_projections(case: str) -> None:
    """AutoModel 507bfb75: `match_all_linear: true` of the recipe, without lm_head (_peft/module_matcher.py)."""
    model = load_case(case)["presets"]["reference"]["model"]
    assert model["lora"]["projections"] == "q+k+v+o+gate+up+down"
    layer = Decoder(shape_from(model), True, device=torch.device("meta")).layers[0]
    adapted = [name for name, part in layer.named_children() if isinstance(part, Adapted)]
    assert adapted == ["q", "k", "v", "o", "gate", "up", "down"]


def test_adapters_in_other_places_are_refused() -> None:
    model = configured(CASES[0])["model"]
    model["lora"]["projections"] = "qkv+o+gate_up+down"
    with pytest.raises(ValueError, match="qkv"):
        Decoder(shape_from(model), True)


def moved(function: Any, *shapes: tuple[int, ...]) -> int:
    """The bytes that a function of bf16 tensors moves, forward and backward."""
    inputs = [torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True) for shape in shapes]
    counter = Operators()
    with counter:
        result = function(*inputs)
    gradient = torch.empty_like(result)
    with counter:
        torch.autograd.grad(result, inputs, gradient)
    return sum(counter.bytes.values())


@pytest.mark.skipif(find_spec("torch.utils.flop_counter") is None, reason="operators are counted from torch 2.1 on")
@pytest.mark.parametrize(("case", "tokens_per_second"), [(CASES[0], 12472.87), (CASES[1], 14110.05)])
def test_share_of_ligers_kernels(case: str, tokens_per_second: float) -> None:
    """Liger 0.5.9 does silu(gate) x up by reading two and writing one tensor, backward three and two; the rotary
    embedding in place; a norm without a second forward pass. Each of ours reads and writes more."""
    manifest = load_case(case)
    model, data = manifest["presets"]["reference"]["model"], manifest["presets"]["reference"]["data"]
    batch, length, width = 2, data["sequence_length"], model["dim"] // model["heads"]
    wide = (batch, length, model["ffn"])
    heads, groups = (batch, model["heads"], length, width), (batch, model["kv_heads"], length, width)
    angles = torch.empty(length, width, dtype=torch.bfloat16, device="meta")

    def rotated(states: torch.Tensor) -> torch.Tensor:
        return rotate(states, angles, angles)

    more = moved(lambda gate, up: keep_inputs(swiglu, gate, up), wide, wide) - 8 * 2 * math.prod(wide)
    more += moved(rotated, heads) + moved(rotated, groups) - 4 * 2 * (math.prod(heads) + math.prod(groups))
    more += 2 * 2 * 2 * batch * length * model["dim"]  # two norms, each read and written once more
    seconds = batch * length / tokens_per_second
    quirk = next(quirk for quirk in manifest["quirks"] if quirk["id"] == "liger-kernels")
    assert quirk["time"]["share"] == pytest.approx(model["layers"] * more / 3.03e12 / seconds, rel=0.01)


def losses(changes: dict[str, Any], folder: Path, rank: int, world: int) -> list[float]:
    """Of three steps."""
    return train(set_up(RandomWorkload, configured(CASES[1], **changes), folder, rank, world), 3)[0]


def test_micro_batches_and_replicas_make_the_same_steps(tmp_path: Path) -> None:
    whole = losses({"train": {"batch_size": 4, "micro_batch_size": 4}}, tmp_path, 0, 1)
    assert whole[2] < whole[0]
    for size in (1, 2):
        assert losses({"train": {"batch_size": 4, "micro_batch_size": size}}, tmp_path, 0, 1) == pytest.approx(
            whole, rel=1e-5
        )
    ranks = on_ranks(
        2, tmp_path / "ranks", functools.partial(losses, {"train": {"batch_size": 2, "micro_batch_size": 1}})
    )
    assert [sum(pair) / 2 for pair in zip(*ranks)] == pytest.approx(whole, rel=1e-5)


def test_recomputed_layers_repeat_their_dropout(tmp_path: Path) -> None:
    changes = {"model": {"lora": {"dropout": 0.5}}}
    kept, again = (losses({**changes, "train": {"recompute": on}}, tmp_path, 0, 1) for on in (False, True))
    assert kept == pytest.approx(again, rel=1e-6)
    assert kept[1:] != losses({}, tmp_path, 0, 1)[1:]


def test_ids_are_uniform_below_the_limit(tmp_path: Path) -> None:
    work = set_up(RandomWorkload, configured(CASES[0]), tmp_path)
    batch = next(iter(work.batches(0)))
    assert (int(batch["tokens"].min()), int(batch["tokens"].max())) == (0, 99)
    assert batch["labels"][:, :-1].equal(batch["tokens"][:, 1:])
    assert set(batch["labels"][:, -1].tolist()) == {IGNORED}
