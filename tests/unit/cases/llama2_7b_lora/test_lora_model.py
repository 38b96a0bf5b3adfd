"""Llama as transformers and peft build it, in both versions: names, rotary tables, sizes, weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.cases.llama2_7b_lora import forward, lora, model
from flagbench_cases.prepare.llama import convert, weights_format
from flagbench_cases.prepare.writer import writing
from flagbench_cases.shared.errors import DataError
from flagbench_core.config import merge
from unit.cases.llama2_7b_lora.lora_bench import REFERENCE, SMALL, fixed_weights, small_shape
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

CPU, META = torch.device("cpu"), torch.device("meta")


def filled(shape: model.LlamaShape) -> Any:
    built = model.build(shape, torch.float32, CPU)
    fixed_weights(dict(built.named_parameters()))
    return built


def test_parameters_are_those_that_peft_adds_to_transformers_model() -> None:
    """By name and order, which a checksum of them depends on; adapters begin with the same random numbers."""
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")

    shape = small_shape(kv_heads=2)
    sizes = {"hidden_size": shape.dim, "intermediate_size": shape.ffn, "vocab_size": shape.vocab_size}
    heads = {"num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads}
    config = transformers.LlamaConfig(num_hidden_layers=shape.layers, **sizes, **heads)
    theirs = transformers.LlamaForCausalLM(config)
    settings = peft.LoraConfig(r=4, lora_alpha=16, target_modules=list(lora.TARGETS), task_type="CAUSAL_LM")
    torch.manual_seed(1)
    published = dict(peft.get_peft_model(theirs, settings).named_parameters())
    built = filled(shape)
    torch.manual_seed(1)
    ours = dict(lora.attach(built, shape, recompute=False).named_parameters())
    names = [name.replace("base_model.model.", "", 1).replace(".default.", ".") for name in published]
    assert list(ours) == names
    for name, parameter, other in zip(ours, ours.values(), published.values()):
        assert parameter.shape == other.shape, name
        assert ".lora_" not in name or torch.equal(parameter, other), name


def test_rotary_tables_in_fp16_differ_by_rounding_alone() -> None:
    """As published they are made in fp32 and become half with the model; frequencies in half would be far off."""
    shape = small_shape(positions=512, dim=512)
    exact, half = (forward.PublishedForward(None, shape, d, CPU).tables for d in (torch.float32, torch.float16))
    assert {table.dtype for table in half} == {torch.float16}
    assert all(0 < float((a - b.float()).abs().max()) < 2.5e-4 for a, b in zip(exact, half))
    assert forward.PublishedForward(None, shape, torch.bfloat16, CPU).tables[0].dtype == torch.float32


def test_the_reference_model_has_the_published_sizes() -> None:
    shape = model.shape_from(REFERENCE["model"])
    module = lora.attach(model.build(shape, torch.float32, META), shape, recompute=False)
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert sum(p.numel() for p in module.parameters()) - trainable == 6_738_415_616
    assert trainable == shape.adapter_parameters == 4_194_304


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


def test_what_prepare_writes_is_what_a_run_reads(tmp_path: Path) -> None:
    """Hugging Face's own names and config.json, through `prepare`, into the model, which stays fp32."""
    from safetensors.torch import save_file

    section = merge(REFERENCE["model"], SMALL)
    shape, source = model.shape_from(section), tmp_path / "source"
    source.mkdir()
    state = {name: parameter.detach().half() for name, parameter in filled(shape).named_parameters()}
    save_file(state, str(source / "model.safetensors"))
    (source / "config.json").write_text(json.dumps({**weights_format.sizes(section), "model_type": "llama"}))
    with writing(str(tmp_path / "out"), "llama2-7b-lora", "weights") as writer:
        convert.convert(str(source), section, writer, lambda *_: None)
    built = model.build(shape, torch.float32, CPU)
    model.load_prepared(built, str(tmp_path / "out"), section, lambda: None)
    for name, parameter in built.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, state[name].float()), name
    with refuses(DataError, "config.json", "num_hidden_layers = 2"):
        model.load_prepared(built, str(tmp_path / "out"), {**section, "layers": 3}, lambda: None)
