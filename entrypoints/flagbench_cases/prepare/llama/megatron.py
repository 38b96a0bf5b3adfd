"""Converts a checkpoint of Megatron-LM, split over tensor-parallel ranks, into the format llama-safetensors/v1.

A checkpoint folder contains:

latest_checkpointed_iteration.txt           the number of an iteration, or `release`
iter_0135000/ or release/
    mp_rank_00/model_optim_rng.pt           the shard of rank 0, and so on

Each shard has under ["model"]["language_model"] three tables of tensors: `embedding` and `output_layer`, each with a
part of the rows of the padded vocabulary, and `encoder`. These matrices of the encoder are split over the ranks, and
the others are the same on all ranks:
    query_key_value     by rows: for each key-value head, its queries, its key, its value
    dense_h_to_4h       by rows: a rank has its rows of the gate, then its rows of the other input of the SwiGLU
    dense, dense_4h_to_h    by columns
Source: Megatron-LM of 2023 as vendored by FlagPerf (megatron/checkpointing.py, megatron/model/transformer.py).
"""

from __future__ import annotations

import os
import re
from typing import Any, Iterator, NamedTuple, Tuple

import torch

from flagbench_cases.prepare import pickles
from flagbench_cases.prepare.llama import convert as conversion
from flagbench_cases.prepare.llama import weights_format
from flagbench_cases.prepare.writer import Writer
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import Report, open_file

TRACKER = "latest_checkpointed_iteration.txt"
"""The file that names the iteration to load."""
MAX_TRACKER_BYTES = 100
"""The bytes read of it, more than the number of any iteration has."""
SHARD = "model_optim_rng.pt"
ROOT = ("model", "language_model")
"""The keys of the dict in a shard that has the tables."""
EMBEDDING = "embedding"
ENCODER = "encoder"
OUTPUT = "output_layer"
TABLES = {EMBEDDING: ROOT + (EMBEDDING, "word_embeddings"), ENCODER: ROOT + (ENCODER,), OUTPUT: ROOT + (OUTPUT,)}
"""The keys of each table in a shard."""
MAX_RANKS = 64
"""The vocabulary is padded for at most this number of ranks; a larger embedding is that of another model."""
MIN_VERSION = 2.0
"""The oldest supported version of checkpoints; earlier ones order the rows of query_key_value differently."""
MAX_NAME_LENGTH = 80
"""Most characters of a name from a checkpoint that an error shows."""
SHARDS_REMEDY = "download all shards of one checkpoint of this model, and no others"

Shape = Tuple[int, ...]


class Folder(NamedTuple):
    """A checkpoint folder."""

    path: str
    iteration: str
    """The number of an iteration, or `release`."""
    files: list[str]
    """The paths of the ranks' shards, in the order of ranks."""

    @property
    def tracker(self) -> str:
        """The path of the file that names the iteration."""
        return os.path.join(self.path, TRACKER)


class Shard(NamedTuple):
    """The part of a checkpoint that one rank wrote."""

    path: str
    tables: dict[str, dict[str, torch.Tensor]]
    """The tensors, memory-mapped, by table and name."""

    @property
    def size(self) -> int:
        """The bytes of all tensors."""
        size = 0
        for table in self.tables.values():
            size += sum(tensor.numel() * tensor.element_size() for tensor in table.values())
        return size


def convert(source: str, section: dict[str, Any], writer: Writer, report: Report) -> None:
    """Convert a checkpoint folder through a Writer, for any number of tensor-parallel ranks.

    `section`: a `model` section with the keys of engines/megatron/shape.py. The rows that pad the vocabulary are
    dropped from the embedding; those of the output layer become the tensor weights_format.PADDING. All shards are
    checked before the first tensor is read. In memory are one assembled tensor and the file being written. Raises
    DataError.
    """
    folder = find_checkpoint(source)
    shards = [_open_shard(path) for path in folder.files]
    padding = check_shards(shards, section)
    checkpoint = MegatronCheckpoint(shards, section)
    sizes = [shard.size for shard in shards]
    conversion.write(source, checkpoint.tensors(padding), section, sizes, writer, report, padding)
    writer.fact(
        iteration=folder.iteration,
        tensor_parallel=len(shards),
        vocabulary_padding=checkpoint.kind_of_padding(padding),
        vocabulary_padding_rows=padding,
    )
    for path in [folder.tracker] + folder.files:
        writer.source(path, os.path.relpath(path, source))


def find_checkpoint(source: str) -> Folder:
    """Find the files of the checkpoint that the tracker file of a folder names. Raises DataError."""
    iteration = _read_tracker(os.path.join(source, TRACKER))
    name = iteration
    if iteration != "release":
        name = f"iter_{int(iteration):07d}"
    path = os.path.join(source, name)
    try:
        names = os.listdir(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); {TRACKER} names it",
            f"download the folder of this iteration, or correct {os.path.join(source, TRACKER)}",
        ) from None
    return Folder(source, iteration, _shard_files(path, names))


def _read_tracker(path: str) -> str:
    """Read the number of an iteration, or `release`. Raises DataError."""
    try:
        with open_file(path, "rb") as file:
            text = file.read(MAX_TRACKER_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror})",
            f"set --weights to the checkpoint folder with {TRACKER} and iter_* or release/",
        ) from None
    if not re.fullmatch("[0-9]{1,18}|release", text):
        raise DataError(
            f"{path} contains {text[:40]!r}, which is neither the number of an iteration nor release",
            "write the number of the iter_* folder to it, or `release`",
        )
    return text


def _shard_files(folder: str, names: list[str]) -> list[str]:
    """Return the paths of the shards of ranks 0 to n. Raises DataError if one is missing, or for pipeline stages.

    `names`: the content of the folder.
    """
    stage_names = sorted(name for name in names if re.fullmatch("mp_rank_[0-9]+_[0-9]+", name))
    if stage_names:
        raise DataError(
            f"{folder} is split over pipeline stages ({stage_names[0]}), which is not supported",
            "convert the checkpoint to pipeline size 1 with Megatron-LM's tools/checkpoint_util.py",
        )
    ranks = [int(name[len("mp_rank_") :]) for name in names if re.fullmatch("mp_rank_[0-9]{2,4}", name)]
    files = [os.path.join(folder, f"mp_rank_{rank:02d}", SHARD) for rank in range(max(ranks, default=0) + 1)]
    missing = [path for path in files if not os.path.isfile(path)]
    if missing:
        raise DataError(
            f"the shard {missing[0]} is missing ({len(missing)} of {len(files)} are)",
            "download the missing shards of this iteration",
        )
    return files


def _open_shard(path: str) -> Shard:
    """Open a shard. Raises DataError if it does not have exactly the tables of the model."""
    content = pickles.read(path)
    version = pickles.dict_in(path, content, ()).get("checkpoint_version")
    if isinstance(version, (int, float)) and version < MIN_VERSION:
        raise DataError(
            f"{path} has the checkpoint version {version}; {MIN_VERSION} or newer is needed",
            "load and save it with a Megatron-LM of 2023",
        )
    expected_names = {ROOT: set(TABLES), ROOT + (EMBEDDING,): {"word_embeddings"}}
    for inside, names in expected_names.items():
        for name in pickles.dict_in(path, content, inside):
            if name not in names:
                raise DataError(
                    f"{path} has {repr(name)[:MAX_NAME_LENGTH]} in {inside[-1]}, which is not in this model",
                    conversion.MODEL_REMEDY,
                )
    return Shard(path, {name: pickles.table_in(path, content, inside) for name, inside in TABLES.items()})


def check_shards(shards: list[Shard], section: dict[str, Any]) -> int:
    """Check the names and shapes of all tensors; returns the number of rows that pad the vocabulary.

    Raises DataError if the shards are from another model, or from another number of ranks.
    """
    tp = len(shards)
    for key, words in (("heads", "heads"), ("kv_heads", "key-value heads"), ("ffn", "columns of the MLP")):
        if section[key] % tp:
            raise DataError(
                f"{section['name']} has {section[key]} {words}, which {tp} shards cannot share",
                SHARDS_REMEDY,
            )
    rows = _vocabulary_rows(shards[0])
    expected = _expected_shapes(section, tp, rows)
    for shard in shards:
        for table, shapes in expected.items():
            _check_table(shard, table, shapes, tp)
    total = rows * tp
    vocabulary = section["vocab_size"]
    if not vocabulary <= total < vocabulary + section["vocab_multiple"] * MAX_RANKS:
        folder = os.path.dirname(os.path.dirname(shards[0].path))
        raise DataError(
            f"the {tp} shards of {folder} have {total} rows of the vocabulary ({rows} each), "
            f"but the model has {vocabulary}",
            SHARDS_REMEDY,
        )
    return total - vocabulary


def _vocabulary_rows(shard: Shard) -> int:
    """Return the number of rows of the embedding in a shard; 0 if it has no embedding, or one that is no matrix."""
    weight = shard.tables[EMBEDDING].get("weight")
    if weight is None or weight.dim() != 2:
        return 0
    return weight.shape[0]


def _expected_shapes(section: dict[str, Any], tp: int, rows: int) -> dict[str, dict[str, Shape]]:
    """Return the shapes of the tensors of a shard, by table and name.

    `tp`: the number of shards; `rows`: the rows of the embedding in each.
    """
    dim = section["dim"]
    heads = section["heads"]
    kv_heads = section["kv_heads"]
    ffn = section["ffn"]
    qkv_rows = (heads + 2 * kv_heads) * (dim // heads)
    encoder: dict[str, Shape] = {"final_layernorm.weight": (dim,)}
    for layer in range(section["layers"]):
        prefix = f"layers.{layer}."
        encoder[prefix + "input_layernorm.weight"] = (dim,)
        encoder[prefix + "self_attention.query_key_value.weight"] = (qkv_rows // tp, dim)
        encoder[prefix + "self_attention.dense.weight"] = (dim, dim // tp)
        encoder[prefix + "post_attention_layernorm.weight"] = (dim,)
        encoder[prefix + "mlp.dense_h_to_4h.weight"] = (2 * ffn // tp, dim)
        encoder[prefix + "mlp.dense_4h_to_h.weight"] = (dim, ffn // tp)
    return {EMBEDDING: {"weight": (rows, dim)}, ENCODER: encoder, OUTPUT: {"weight": (rows, dim)}}


def _check_table(shard: Shard, table: str, expected: dict[str, Shape], tp: int) -> None:
    """Raise DataError unless a table has exactly the expected tensors."""
    tensors = shard.tables[table]
    for name in sorted({*expected, *tensors}):
        if name not in tensors:
            raise DataError(f"{shard.path} has no tensor {name[:MAX_NAME_LENGTH]} in {table}", SHARDS_REMEDY)
        if name not in expected:
            words = f"{shard.path} has a tensor {name[:MAX_NAME_LENGTH]} in {table}, not in this model"
            raise DataError(words, SHARDS_REMEDY)
        shape = tuple(tensors[name].shape)
        if shape != expected[name]:
            raise DataError(
                f"{shard.path}: {name} of {table} has the shape {shape}, "
                f"but that of one of {tp} shards of this model is {expected[name]}",
                SHARDS_REMEDY,
            )


class MegatronCheckpoint:
    """Assembles checked shards to the tensors of the model."""

    def __init__(self, shards: list[Shard], section: dict[str, Any]) -> None:
        self._shards = shards
        self._layers: int = section["layers"]
        self._vocabulary: int = section["vocab_size"]
        self._heads_per_kv_head: int = section["heads"] // section["kv_heads"]
        self._head_dim: int = section["dim"] // section["heads"]
        self._dim: int = section["dim"]

    def tensors(self, padding: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the tensors of the model with their Hugging Face names, and the `padding` rows of the output layer.

        Raises DataError for a damaged shard, and for norms that differ between the ranks.
        """
        yield "model.embed_tokens.weight", self._rows(EMBEDDING, 0, self._vocabulary)
        for layer in range(self._layers):
            prefix = f"layers.{layer}."
            hf_prefix = f"model.layers.{layer}."
            for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
                yield hf_prefix + name, self._norm(prefix + name)
            for name, matrix in self._attention(prefix + "self_attention."):
                yield hf_prefix + "self_attn." + name, matrix
            for name, matrix in self._mlp(prefix + "mlp."):
                yield hf_prefix + "mlp." + name, matrix
        yield "model.norm.weight", self._norm("final_layernorm.weight")
        yield "lm_head.weight", self._rows(OUTPUT, 0, self._vocabulary)
        if padding:
            yield weights_format.PADDING, self._rows(OUTPUT, self._vocabulary, self._vocabulary + padding)

    def kind_of_padding(self, padding: int) -> str:
        """Return what the rows of the output layer after the vocabulary contain, as a fact of the prepared folder."""
        if not padding:
            return "none"
        last_row = self._rows(OUTPUT, self._vocabulary - 1, self._vocabulary)
        rows = self._rows(OUTPUT, self._vocabulary, self._vocabulary + padding)
        if not rows.any():
            return "zeros"
        if torch.equal(rows, last_row.expand_as(rows)):
            return "last row repeated"
        return "other rows"

    def _attention(self, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the projections of a layer's attention with their names."""
        queries = self._heads_per_kv_head
        groups = []
        for part in self._parts(prefix + "query_key_value.weight"):
            # [key-value heads of the shard, queries + key + value, W, D]
            groups.append(part.reshape(-1, queries + 2, self._head_dim, self._dim))
        query_rows = slice(queries)
        key_rows = slice(queries, queries + 1)
        value_rows = slice(queries + 1, queries + 2)
        for name, rows in (("q_proj", query_rows), ("k_proj", key_rows), ("v_proj", value_rows)):
            yield name + ".weight", torch.cat([part[:, rows] for part in groups]).reshape(-1, self._dim)
        yield "o_proj.weight", torch.cat(self._parts(prefix + "dense.weight"), dim=1)

    def _mlp(self, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the projections of a layer's MLP with their names."""
        halves = [part.chunk(2) for part in self._parts(prefix + "dense_h_to_4h.weight")]
        yield "gate_proj.weight", torch.cat([gate for gate, _ in halves])
        yield "up_proj.weight", torch.cat([up for _, up in halves])
        yield "down_proj.weight", torch.cat(self._parts(prefix + "dense_4h_to_h.weight"), dim=1)

    def _norm(self, name: str) -> torch.Tensor:
        """Return a norm, which is the same on all ranks. Raises DataError if it is not."""
        norms = self._parts(name)
        for shard, norm in zip(self._shards[1:], norms[1:]):
            if not torch.equal(norms[0], norm):
                raise DataError(
                    f"{shard.path}: {name} differs from that in {self._shards[0].path}",
                    SHARDS_REMEDY,
                )
        return norms[0]

    def _parts(self, name: str) -> list[torch.Tensor]:
        """Return each rank's part of a tensor of the encoder."""
        return [shard.tables[ENCODER][name] for shard in self._shards]

    def _rows(self, table: str, start: int, end: int) -> torch.Tensor:
        """Return the rows `start` to `end` - 1 of the embedding or output layer, over all shards."""
        parts = []
        first = 0  # the row with which the shard begins
        for shard in self._shards:
            count = _vocabulary_rows(shard)
            if first < end and start < first + count:
                parts.append(shard.tables[table]["weight"][max(start - first, 0) : end - first])
            first += count
        return torch.cat(parts)
