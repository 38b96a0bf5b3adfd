"""Llama through transformers, on both its versions: types, attention, rotary tables, sizes, weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the case needs it")
pytest.importorskip("peft", reason="the case needs it")


from flagbench_cases.cases.llama2_7b_lora import forward, lora, model
from flagbench_cases.prepare.llama import load as llama_load
from flagbench_cases.prepare.llama import weights_format
from flagbench_cases.shared.config import merge
from flagbench_cases.shared.errors import DataError
from reenact import inventory
from unit.cases.llama2_7b_lora.lora_bench import REFERENCE, SMALL, fixed_weights, small_shape
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

CPU, META = torch.device("cpu"), torch.device("meta")
TOKENS = [1, 17, 5, 5, 90, 33, 2, 61, 44, 8]


def filled(shape: model.LlamaShape) -> Any:
    built = model.build(shape, torch.float32, CPU)
    fixed_weights(dict(built.named_parameters()))
    return built


def logits(network: Any, tokens: list[int]) -> torch.Tensor:
    ids = torch.tensor([tokens])
    with torch.no_grad():
        return network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]


# What it computes


def test_rotary_tables_in_fp16_differ_by_rounding_alone() -> None:
    """As published they are made in fp32 and become half with the model; frequencies in half would be far off."""
    shape = small_shape(positions=512, dim=512)
    exact, half = (forward.PublishedForward(None, shape, d, CPU, None).tables for d in (torch.float32, torch.float16))
    assert {table.dtype for table in half} == {torch.float16}
    assert all(0 < float((a - b.float()).abs().max()) < 2.5e-4 for a, b in zip(exact, half))
    assert forward.PublishedForward(None, shape, torch.bfloat16, CPU, None).tables[0].dtype == torch.float32


def test_what_is_kept_for_the_backward_pass_is_the_publishers() -> None:
    """The loss copies the logits without the last ones; attention keeps its fp32 weights once."""
    shape = small_shape()
    module, ids = lora.attach(filled(shape), shape, recompute=False), torch.tensor([TOKENS, TOKENS[::-1]])
    saved = inventory.Saved()
    with saved:
        module(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
    kinds = saved.found()["saved"]
    assert kinds["float32%s" % [2 * (len(TOKENS) - 1), shape.vocab_size]] == 1
    assert "float32%s" % [2 * len(TOKENS), shape.vocab_size] not in kinds
    assert kinds["float32%s" % [2, shape.heads, len(TOKENS), len(TOKENS)]] == shape.layers


# What transformers decides by itself where it is not told


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_have_the_type_asked_for(dtype: torch.dtype) -> None:
    built = model.build(small_shape(), dtype, CPU)
    assert {parameter.dtype for parameter in built.parameters()} == {dtype}
    assert not any(parameter.requires_grad for parameter in built.parameters())


def test_attention_is_eager_and_nothing_is_cached() -> None:
    built = filled(small_shape())
    assert built.config._attn_implementation == "eager"
    ids = torch.tensor([TOKENS])
    assert built(input_ids=ids, attention_mask=torch.ones_like(ids)).past_key_values is None


# Sizes and FLOPs


def test_the_reference_model_has_the_published_sizes() -> None:
    shape = model.shape_from(REFERENCE["model"])
    module = lora.attach(model.build(shape, torch.float32, META), shape, recompute=False)
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert sum(p.numel() for p in module.parameters()) - trainable == 6_738_415_616
    assert trainable == shape.adapter_parameters == 4_194_304


# Random weights


def test_random_weights_follow_the_seed_alone() -> None:
    shape = small_shape()
    models = [model.build(shape, dtype, CPU) for dtype in (torch.float32, torch.float32, torch.bfloat16)]
    for number, built in enumerate(models):
        torch.manual_seed(number)
        model.initialise(built, shape, 3)
    states = [dict(built.named_parameters()) for built in models]
    for name, parameter in states[0].items():
        assert torch.equal(parameter, states[1][name])
        assert torch.equal(parameter.bfloat16(), states[2][name])
    other = model.build(shape, torch.float32, CPU)
    model.initialise(other, shape, 4)
    assert not torch.equal(other.lm_head.weight, models[0].lm_head.weight)


# Prepared weights

SECTION = merge(REFERENCE["model"], SMALL)
CONFIG = weights_format.sizes(SECTION)


def prepared_folder(folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    """Two files of fp16 weights, an index and a config; returns the weights."""
    from safetensors.torch import save_file

    base = filled(model.shape_from(SECTION))
    state = {name: parameter.detach().half() for name, parameter in base.named_parameters()}
    names = sorted(state)
    index = {name: f"weights-0000{1 + i % 2}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(index.values())):
        save_file({name: state[name] for name in names if index[name] == file}, str(folder / file))
    (folder / "index.json").write_text(json.dumps({**index, **changes.get("index", {})}))
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes.get("config", {})}))
    return state


def load(folder: Path) -> Any:
    built = model.build(model.shape_from(SECTION), torch.float32, CPU)
    beats: list[None] = []
    model.fill(built, llama_load.Weights(str(folder), SECTION), lambda: beats.append(None))
    assert beats
    return built


def test_half_precision_weights_fill_an_fp32_model(tmp_path: Path) -> None:
    """transformers 5 would have made the model fp16 of them."""
    state = prepared_folder(tmp_path)
    built = load(tmp_path)
    for name, parameter in built.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, state[name].float()), name


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"config": {"num_hidden_layers": 32}}, ("config.json", "num_hidden_layers = 32")),
        ({"index": {"lm_head.weight": "absent.safetensors"}}, ("absent.safetensors",)),
    ],
)
def test_weights_that_do_not_fit_are_data_errors(tmp_path: Path, changes: dict[str, Any], named: Any) -> None:
    prepared_folder(tmp_path, **changes)
    with refuses(DataError, *named):
        load(tmp_path)


def test_what_prepare_writes_is_what_a_run_reads(tmp_path: Path) -> None:
    """Hugging Face's own names and config.json, through `prepare`, into the model: the same logits."""
    from safetensors.torch import save_file

    from flagbench_cases.prepare import prepared_folder
    from flagbench_cases.prepare.llama import convert

    base, source = filled(model.shape_from(SECTION)), tmp_path / "source"
    source.mkdir()
    state = {name: parameter.detach().clone() for name, parameter in base.named_parameters()}
    save_file(state, str(source / "model.safetensors"))
    (source / "config.json").write_text(json.dumps({**CONFIG, "model_type": "llama"}))
    with prepared_folder.writing(str(tmp_path / "out"), "llama2-7b-lora", "weights") as writer:
        convert.convert(str(source), SECTION, writer, lambda *_: None)
    built = model.build(model.shape_from(SECTION), torch.float32, CPU)
    model.load_prepared(built, str(tmp_path / "out"), SECTION, lambda: None)
    assert torch.equal(logits(built, TOKENS), logits(base, TOKENS))
