"""Checkpoint folders: Hugging Face's load to equal logits; others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flagbench_cases.cases.distilbert.model import DistilBertClassifier, config_from
from flagbench_cases.cases.distilbert.workload import load_checkpoint
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.manifests import load_case
from unit.cases.prepare.pickled import CURRENT_TORCH, FORMATS, save, save_tensors
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

SECTION = {**load_case("distilbert")["presets"]["reference"]["model"], "layers": 2, "dim": 24, "heads": 2}
SECTION.update(hidden_dim=40, vocab_size=60, positions=16)
CONFIG = {"n_layers": 2, "dim": 24, "n_heads": 2, "hidden_dim": 40, "vocab_size": 60, "max_position_embeddings": 16}
IDS = torch.tensor([[7, 21, 3, 0, 0], [5, 9, 2, 30, 4]])
MASK = (IDS != 0).long()


def classifier(seed: int) -> DistilBertClassifier:
    torch.manual_seed(seed)
    return DistilBertClassifier(config_from(SECTION)).eval()


def write(folder: Path, state: dict[str, torch.Tensor], config: dict[str, Any] = CONFIG) -> Path:
    """A checkpoint folder with a model.safetensors."""
    (folder / "config.json").write_text(json.dumps(config))
    save_tensors(folder / "model.safetensors", state)
    return folder


def load(folder: Path) -> DistilBertClassifier:
    model = classifier(1)
    load_checkpoint(model, str(folder), SECTION)
    return model


# What loads


def test_folder_written_by_transformers_loads_to_equal_logits(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle is Hugging Face's implementation")
    oracle = transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(**CONFIG, num_labels=2, attn_implementation="eager")
    ).eval()
    oracle.save_pretrained(str(tmp_path), safe_serialization=True)
    model = load(tmp_path)
    with torch.no_grad():
        expected = oracle(input_ids=IDS, attention_mask=MASK).logits
        assert torch.allclose(model(IDS, MASK), expected, rtol=0, atol=1e-6)


@CURRENT_TORCH
@FORMATS
def test_a_pickled_checkpoint(tmp_path: Path, zipped: bool) -> None:
    source = classifier(0)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    state = {name: torch.nn.Parameter(tensor) for name, tensor in source.state_dict().items()}
    save(tmp_path / "pytorch_model.bin", state, zipped)
    assert torch.equal(load(tmp_path)(IDS, MASK), source(IDS, MASK))
    write(tmp_path, classifier(2).state_dict())
    assert torch.equal(load(tmp_path)(IDS, MASK), classifier(2)(IDS, MASK)), "safetensors take precedence"


def test_half_precision_checkpoint_leaves_the_model_in_fp32(tmp_path: Path) -> None:
    source = classifier(0).half()
    write(tmp_path, source.state_dict())
    model = load(tmp_path)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.classifier.weight, source.classifier.weight.float())


@pytest.mark.parametrize("prefix", ["distilbert.", ""], ids=["masked-lm", "bare-encoder"])
def test_folder_without_the_head_keeps_the_random_head(tmp_path: Path, prefix: str) -> None:
    source = classifier(0)
    encoder = {prefix + name: tensor for name, tensor in source.distilbert.state_dict().items()}
    write(tmp_path, {**encoder, "vocab_projector.bias": torch.zeros(60)} if prefix else encoder)
    model, untouched = load(tmp_path), classifier(1)
    for name, tensor in model.state_dict().items():
        expected = source if name.startswith("distilbert.") else untouched
        assert torch.equal(tensor, expected.state_dict()[name]), name


# What does not fit


@pytest.mark.parametrize("key", sorted(CONFIG))
def test_config_of_another_size_is_refused(tmp_path: Path, key: str) -> None:
    write(tmp_path, classifier(0).state_dict(), config={**CONFIG, key: 48})
    with refuses(DataError, "config.json", f"{key} = 48"):
        load(tmp_path)


def test_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    state = {**classifier(0).state_dict(), "classifier.weight": torch.zeros(3, 24)}
    with refuses(DataError, "classifier.weight", (3, 24), (2, 24)):
        load(write(tmp_path, state))


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    state = classifier(0).state_dict()
    name = "distilbert.transformer.layer.1.ffn.lin1.weight"
    del state[name]
    with refuses(DataError, name):
        load(write(tmp_path, state))
