"""The published checkpoint as safetensors: what is taken, what is left out, what is refused."""

from __future__ import annotations

import argparse
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze_files import nothing
from flagbench_cases.cases.glm import prepare
from flagbench_cases.cases.glm.model import GlmForCloze, config_from
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare import weights as checkpoints
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.manifests import load_case
from unit.cases.glm.small_glm import parameter_count
from unit.cases.prepare.pickled import CURRENT_TORCH
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

REFERENCE = load_case("glm")["presets"]["reference"]["model"]
SMALL = {**REFERENCE, "layers": 2, "dim": 8, "heads": 2, "vocab_size": 32, "positions": 9}


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = prepare.expected_shapes(SMALL)
    return {name: torch.randn(*shape).half() for name, shape in shapes.items()}


def write(folder: Path, tensors: dict[str, Any], name: str = prepare.CHECKPOINT) -> Path:
    """A checkpoint in the published form: tensors beside what a training program kept."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    others = {"iteration": 200000, "args": argparse.Namespace(lr=1e-4), "optimizer": {"step": 1}}
    torch.save({"module": tensors, **others}, str(path))
    return path


def convert(source: Path, out: Path) -> str:
    with prepared_folder.writing(str(out), "glm", "weights") as writer:
        prepare.prepare_weights(str(source), {"model": SMALL}, writer, nothing)
    return str(out / "weights")


def test_names_and_shapes_are_the_models() -> None:
    model = GlmForCloze(config_from(SMALL))
    assert prepare.expected_shapes(SMALL) == {n: tuple(p.shape) for n, p in model.state_dict().items()}


def test_the_published_size() -> None:
    shapes = prepare.expected_shapes(REFERENCE)
    count = sum(torch.Size(shape).numel() for shape in shapes.values())
    assert count == parameter_count(config_from(REFERENCE)) == 334688256


@CURRENT_TORCH
@pytest.mark.parametrize("place", ["blocklm-large-blank/200000/", "200000/", ""])
def test_tensors_are_written_as_they_are_stored(tmp_path: Path, place: str) -> None:
    write(tmp_path, state(), place + prepare.CHECKPOINT)
    folder = convert(tmp_path, tmp_path / "out")
    read = dict(checkpoints.iter_tensors(folder))
    assert set(read) == set(state())
    modes = {stat.S_IMODE((Path(folder) / name).stat().st_mode) for name in ("model.safetensors", "prepared.json")}
    assert len(modes) == 1, "who may read the one may read the other"
    assert all(torch.equal(read[name], tensor) and tensor.dtype == torch.half for name, tensor in state().items())
    made = prepared_folder.open_folder(folder, "glm", "weights", (prepare.WEIGHTS_FORMAT,))
    assert made.facts["dtypes"] == ["float16"]
    assert made.facts["left_out"] == []
    assert made.facts["parameters"] == parameter_count(config_from(SMALL))


@CURRENT_TORCH
def test_tensors_of_one_storage_are_taken_apart(tmp_path: Path) -> None:
    tensors = state()
    flat = torch.randn(4 * 8)
    for name, at in (("transformer.final_layernorm.weight", 0), ("transformer.final_layernorm.bias", 8)):
        tensors[name] = flat[at : at + 8]
    folder = convert(write(tmp_path, tensors), tmp_path / "out")
    assert torch.equal(dict(checkpoints.iter_tensors(folder))["transformer.final_layernorm.bias"], flat[8:16])


@CURRENT_TORCH
def test_other_tensors_are_left_out_and_named(tmp_path: Path) -> None:
    folder = convert(write(tmp_path, {**state(), "mlm_head.weight": torch.zeros(2)}), tmp_path / "out")
    assert "mlm_head.weight" not in dict(checkpoints.iter_tensors(folder))
    assert prepared_folder.open_folder(folder, "glm", "weights").facts["left_out"] == ["mlm_head.weight"]


@CURRENT_TORCH
@pytest.mark.parametrize(
    ("name", "tensor", "named"),
    [
        ("word_embeddings.weight", torch.zeros(30, 8), "30 tokens"),
        ("word_embeddings.weight", torch.zeros(32, 4), "(32, 4)"),
        ("transformer.position_embeddings.weight", torch.zeros(17, 8), "(17, 8)"),
        ("transformer.layers.1.mlp.dense_h_to_4h.bias", None, "transformer.layers.1.mlp.dense_h_to_4h.bias"),
        ("transformer.final_layernorm.bias", torch.zeros(8, dtype=torch.long), "torch.int64"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, name: str, tensor: Any, named: str) -> None:
    tensors: dict[str, Any] = {**state(), name: tensor}
    if tensor is None:
        del tensors[name]
    with refuses(DataError, named):
        convert(write(tmp_path, tensors), tmp_path / "out")
    assert not (tmp_path / "out" / "weights").exists()


def test_a_folder_without_the_checkpoint_is_refused(tmp_path: Path) -> None:
    with refuses(DataError, prepare.CHECKPOINT):
        convert(tmp_path, tmp_path / "out")
