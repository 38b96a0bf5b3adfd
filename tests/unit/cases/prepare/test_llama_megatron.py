"""Checkpoints of Megatron-LM as safetensors: every tensor from any number of shards, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.llama import load, megatron, weights_format
from flagbench_cases.prepare.prepared_folder import Verification
from flagbench_cases.shared.errors import DataError
from unit.cases.prepare.megatron_checkpoint import ITERATION, ROWS, SECTION, save, shard, split, state
from unit.cases.prepare.pickled import CURRENT_TORCH
from unit.cases.refusal import refuses

pytestmark = [pytest.mark.image, CURRENT_TORCH]

EXTRA = ROWS - SECTION["vocab_size"]
ZEROS = torch.zeros(EXTRA, SECTION["dim"])
OTHERS = torch.randn(EXTRA, SECTION["dim"], generator=torch.Generator().manual_seed(1)).bfloat16()
QKV = "layers.1.self_attention.query_key_value.weight"
NORM = "layers.0.input_layernorm.weight"


def convert(source: Path, section: dict[str, Any] = SECTION) -> Path:
    """The prepared weights folder of a source."""
    out = source.parent / "out"
    with prepared_folder.writing(str(out), "aquila-33b", "weights") as writer:
        megatron.convert(str(source), section, writer, lambda what, done, of: None)
    return out / "weights"


def facts(made: Path) -> dict[str, Any]:
    return prepared_folder.open_folder(str(made), "aquila-33b", "weights", verify=Verification.CHECKSUMS).facts


def stored(made: Path) -> dict[str, torch.Tensor]:
    """All tensors of a prepared folder."""
    files = set(json.loads((made / "index.json").read_text(encoding="utf-8")).values())
    return {name: tensor for file in files for name, tensor in load_file(str(made / file)).items()}


def refused(source: Path, *named: Any, section: dict[str, Any] = SECTION) -> None:
    """Converting the source ends in a DataError that names these; nothing of it is left."""
    with refuses(DataError, *named):
        convert(source, section)
    assert not (source.parent / "out" / "weights").exists()


# what is converted


@pytest.mark.parametrize(("tp", "dtype"), [(1, torch.bfloat16), (2, torch.float16), (4, torch.float32)])
def test_every_number_of_ranks(tmp_path: Path, tp: int, dtype: torch.dtype) -> None:
    source = save(tmp_path / "source", split(state(dtype), tp, OTHERS.to(dtype)))
    made = convert(source)
    found, wanted = stored(made), {**state(dtype), weights_format.PADDING: OTHERS.to(dtype)}
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor), name
    place = prepared_folder.open_folder(str(made), "aquila-33b", "weights", (weights_format.FORMAT,))
    assert place.facts == {
        "model": SECTION["name"],
        "tensors": len(state()),
        "parameters": sum(tensor.numel() for tensor in state().values()),
        "dtypes": [str(dtype).replace("torch.", "")],
        "iteration": "135000",
        "tensor_parallel": tp,
        "vocabulary_padding": "other rows",
        "vocabulary_padding_rows": EXTRA,
    }
    files = [str(shard(source, rank).relative_to(source)) for rank in range(tp)]
    assert [entry["name"] for entry in place.sources] == [megatron.TRACKER, *files]


@pytest.mark.parametrize("kind", ["zeros", "last row repeated", "other rows", "none"])
def test_kinds_of_padding(tmp_path: Path, kind: str) -> None:
    section = {**SECTION, "vocab_size": ROWS} if kind == "none" else SECTION
    repeated = state()["lm_head.weight"][-1:].expand(EXTRA, -1)
    rows = {"zeros": ZEROS, "last row repeated": repeated, "other rows": OTHERS, "none": None}[kind]
    made = convert(save(tmp_path / "source", split(state(section=section), 4, rows, section)), section)
    count = 0 if rows is None else EXTRA
    assert (facts(made)["vocabulary_padding"], facts(made)["vocabulary_padding_rows"]) == (kind, count)
    padding = load.Weights(str(made), section).padding()
    assert (padding is None) == (rows is None)
    assert padding is None or torch.equal(padding, rows.bfloat16())


def test_padding_over_several_ranks(tmp_path: Path) -> None:
    """With 17 of 32 rows, the fourth rank has only padding, and the third has both."""
    section = {**SECTION, "vocab_size": 17}
    rows = torch.arange(15.0 * 16).reshape(15, 16).bfloat16()
    made = convert(save(tmp_path / "source", split(state(section=section), 4, rows, section)), section)
    found = stored(made)
    assert torch.equal(found["lm_head.weight"], state(section=section)["lm_head.weight"])
    assert torch.equal(found[weights_format.PADDING], rows)


def test_the_tracker_chooses_the_iteration(tmp_path: Path) -> None:
    source = save(tmp_path / "source", split(state(), 2, ZEROS), "release", "release\n")
    for name in ("iter_0000001/mp_rank_07", "release/mp_rank_copy"):
        (source / name).mkdir(parents=True)
    made = facts(convert(source))
    assert (made["iteration"], made["tensor_parallel"]) == ("release", 2)


# folders that are refused


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint of two shards."""
    return save(tmp_path / "source", split(state(), 2, ZEROS))


@pytest.mark.parametrize("text", [None, "", "latest", "../x", "7"])
def test_a_tracker_file_without_an_iteration(source: Path, text: str | None) -> None:
    (source / megatron.TRACKER).unlink()
    if text is not None:
        (source / megatron.TRACKER).write_text(text, encoding="ascii")
    refused(source, source / ("iter_0000007" if text == "7" else megatron.TRACKER))


def test_missing_shards(tmp_path: Path) -> None:
    source = save(tmp_path / "source", split(state(), 4, ZEROS))
    for rank in (3, 2):
        shutil.rmtree(str(shard(source, rank).parent))
    refused(source, shard(source, 0), "one of 2 shards")
    shutil.rmtree(str(shard(source, 0).parent))
    refused(source, shard(source, 0))


def test_pipeline_stages(source: Path) -> None:
    os.rename(shard(source, 0).parent, source / ITERATION / "mp_rank_00_000")
    refused(source, source / ITERATION, "mp_rank_00_000", "pipeline")


def test_heads_that_the_shards_cannot_share(source: Path) -> None:
    shutil.copytree(str(shard(source, 1).parent), str(shard(source, 2).parent))
    refused(source, "8 heads", "3 shards")


# shards that are refused


def change(source: Path, rank: int, table: str, name: str, value: Any) -> None:
    """Replace a tensor of a shard; None removes it."""
    model = {"encoder": "encoder", "embedding": "embedding", "output": "output_layer"}[table]
    ranks = split(state(), 2, ZEROS)
    place = ranks[rank][model]["word_embeddings"] if table == "embedding" else ranks[rank][model]
    if value is None:
        del place[name]
    else:
        place[name] = value
    rewrite(source, rank, {"language_model": ranks[rank]})


def rewrite(source: Path, rank: int, model: Any, **others: Any) -> None:
    torch.save({"model": model, "checkpoint_version": 3.0, **others}, str(shard(source, rank)))


@pytest.mark.parametrize(
    ("table", "name", "value", "named"),
    [
        ("encoder", QKV, None, [QKV]),
        ("output", "weight", None, ["weight", "output_layer"]),
        ("encoder", "layers.2.mlp.dense_4h_to_h.weight", torch.ones(2), ["layers.2.mlp.dense_4h_to_h.weight"]),
        ("encoder", QKV, torch.zeros(32, 16), [QKV, (32, 16), (16, 16)]),
        ("output", "weight", torch.zeros(8, 16), ["output_layer", (8, 16), (16, 16)]),
        ("embedding", "weight", torch.zeros(16), ["embedding", (16,)]),
        ("encoder", NORM, state()["model.layers.0.input_layernorm.weight"] + 1, [NORM]),
        ("encoder", NORM, "text", ["encoder"]),
    ],
)
def test_other_tensors_in_one_shard(source: Path, table: str, name: str, value: Any, named: list[Any]) -> None:
    change(source, 1, table, name, value)
    refused(source, shard(source, 1), *named)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({"language_model": {}}, "['embedding']"),
        ({"language_model": {"embedding": {"word_embeddings": 3}}}, "['word_embeddings']"),
        ([], "['model']"),
    ],
)
def test_a_shard_without_the_tables(source: Path, model: Any, named: str) -> None:
    rewrite(source, 1, model)
    refused(source, shard(source, 1), named)


@pytest.mark.parametrize("place", ["language_model", "embedding"])
def test_tables_of_another_model(source: Path, place: str) -> None:
    model = split(state(), 2, ZEROS)[0]
    {"language_model": model, "embedding": model["embedding"]}[place]["position_embeddings"] = {
        "weight": torch.ones(2)
    }
    rewrite(source, 0, {"language_model": model})
    refused(source, shard(source, 0), "position_embeddings", place)


def test_an_old_version(source: Path) -> None:
    rewrite(source, 1, {"language_model": split(state(), 2, ZEROS)[1]}, checkpoint_version=1.0)
    refused(source, shard(source, 1), "1.0")


@pytest.mark.parametrize(("key", "value"), [("layers", 3), ("dim", 32), ("kv_heads", 2)])
def test_a_checkpoint_of_another_size(source: Path, key: str, value: int) -> None:
    refused(source, shard(source, 0), section={**SECTION, key: value})


@pytest.mark.parametrize(("rows", "vocabulary"), [(32, 33), (32 + 64 * 4, 32)])
def test_a_vocabulary_of_another_size(tmp_path: Path, rows: int, vocabulary: int) -> None:
    """It is larger than the shards' rows, or so much smaller that the others are not its padding."""
    source = save(tmp_path / "source", split(state(section={**SECTION, "vocab_size": rows}), 2))
    refused(source, rows, vocabulary, source / ITERATION, section={**SECTION, "vocab_size": vocabulary})
