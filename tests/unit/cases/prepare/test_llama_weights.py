"""Preparing Llama's weights: a Hugging Face folder as it is fetched, and everything that can be wrong with one."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.llama import convert as conversion
from unit.cases.prepare.megatron_checkpoint import SECTION, state
from unit.cases.prepare.pickled import CURRENT_TORCH, save_tensors, sharded
from unit.cases.refusal import refusal as refusal_of

pytestmark = pytest.mark.image

HEADER = 4096  # bytes, of a safetensors file
INV_FREQ = "model.layers.0.self_attn.rotary_emb.inv_freq"


def write(
    folder: Path, tensors: dict[str, torch.Tensor], shards: int = 1, pickled: bool = False, **config: Any
) -> Path:
    """A folder as Hugging Face's hub has it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**conversion.config_of(SECTION), **config}), encoding="utf-8")
    names = sorted(tensors)
    if shards > 1:
        parts = [{name: tensors[name] for name in names[shard::shards]} for shard in range(shards)]
        return sharded(folder, "bin" if pickled else "safetensors", parts)
    save_tensors(folder / ("pytorch_model.bin" if pickled else "model.safetensors"), tensors)
    return folder


def largest_shard(source: Path) -> int:
    return max(file.stat().st_size for file in source.iterdir() if file.suffix in (".safetensors", ".bin"))


def convert(source: Path, out: Path) -> Path:
    """The prepared weights folder of a source."""
    with prepared_folder.writing(str(out), "llama2-7b-lora", "weights") as writer:
        conversion.convert(str(source), SECTION, writer, lambda what, done, of: None)
    return out / "weights"


def refusal(source: Path) -> str:
    """What converting a source ends in; nothing of it is left."""
    message = refusal_of(convert, source, source.parent / "out")
    assert not (source.parent / "out" / "weights").exists()
    return message


@pytest.mark.parametrize(
    ("shards", "pickled", "dtype"),
    [
        (1, False, torch.float16),
        (3, False, torch.bfloat16),
        pytest.param(1, True, torch.float32, marks=CURRENT_TORCH),
        pytest.param(3, True, torch.bfloat16, marks=CURRENT_TORCH),
    ],
)
def test_every_form_gives_the_same_tensors(tmp_path: Path, shards: int, pickled: bool, dtype: torch.dtype) -> None:
    made = convert(write(tmp_path / "source", state(dtype), shards, pickled), tmp_path / "out")
    index = json.loads((made / "index.json").read_text(encoding="utf-8"))
    files = set(index.values())
    assert "weights-00001.safetensors" in files
    # No file, which is in memory while it is written, is larger than a shard of the source.
    assert max((made / file).stat().st_size for file in files) <= largest_shard(tmp_path / "source") + HEADER
    found = {name: tensor for file in files for name, tensor in load_file(str(made / file)).items()}
    wanted = state(dtype)
    assert set(found) == set(index) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor)


def test_files_are_of_a_limited_size_and_for_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "MAX_FILE_BYTES", 1024)
    made = convert(write(tmp_path / "source", state()), tmp_path / "out")
    index = json.loads((made / "index.json").read_text(encoding="utf-8"))
    files = sorted(set(index.values()))
    assert files == [f"weights-{number:05d}.safetensors" for number in range(1, len(files) + 1)]
    assert len(files) > 2
    found = {name: tensor for file in files for name, tensor in load_file(str(made / file)).items()}
    assert all(torch.equal(found[name], tensor) for name, tensor in state().items())
    mode = stat.S_IMODE((made / "index.json").stat().st_mode)
    assert {stat.S_IMODE((made / file).stat().st_mode) for file in files} == {mode}


def test_rotary_frequencies_are_left_out(tmp_path: Path) -> None:
    made = convert(write(tmp_path / "source", {**state(), INV_FREQ: torch.ones(1)}), tmp_path / "out")
    assert INV_FREQ not in json.loads((made / "index.json").read_text(encoding="utf-8"))


def test_theta_where_either_transformers_keeps_it(tmp_path: Path) -> None:
    parameters = {"rope_type": "default", "rope_theta": 10000.0}
    source = write(tmp_path / "five", state(), rope_parameters=parameters, rope_theta=None)
    config = json.loads((convert(source, tmp_path / "out") / "config.json").read_text(encoding="utf-8"))
    assert config["rope_theta"] == 10000.0
    assert "rope_parameters" not in config


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"num_hidden_layers": 3}, "num_hidden_layers = 3"),
        ({"num_key_value_heads": None}, "num_key_value_heads = 8"),
        ({"rope_theta": 500000.0}, "rope_theta = 500000.0"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
        ({"rope_parameters": "default"}, "rope_parameters is 'default'"),
        ({"model_type": "mistral"}, "model_type = mistral"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings = True"),
    ],
)
def test_another_models_config(tmp_path: Path, config: dict[str, Any], named: str) -> None:
    assert named in refusal(write(tmp_path / "source", state(), **config))


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({NAME: None}, NAME),
        ({"model.layers.2.mlp.up_proj.weight": torch.ones(2)}, "model.layers.2.mlp.up_proj.weight"),
        ({"lm_head.weight": torch.zeros(17, 16)}, "lm_head.weight has the shape (17, 16)"),
        ({"lm_head.weight": torch.zeros(29, 16, dtype=torch.int8)}, "lm_head.weight is torch.int8"),
    ],
    ids=["missing", "unknown", "another shape", "quantised"],
)
def test_other_tensors_are_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    tensors = {name: tensor for name, tensor in {**state(), **change}.items() if tensor is not None}
    assert named in refusal(write(tmp_path / "source", tensors))


def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "source", state(), shards=3)
    for file in (source / "model-00002-of-00003.safetensors", source / "config.json"):
        file.unlink()
        assert file.name in refusal(source)
