"""Converts a checkpoint of Megatron-LM, split over tensor-parallel ranks, into llama-safetensors/v1.

latest_checkpointed_iteration.txt           the number of an iteration, or `release`
iter_0135000/ or release/
    mp_rank_00/model_optim_rng.pt           the shard of rank 0, and so on

Each shard has under ["model"]["language_model"] the tables `embedding` (rows of the padded vocabulary), `encoder` and
`output_layer` (rows again). Of the encoder, the ranks share:
    query_key_value     rows: for each key-value head, its queries, its key, its value
    dense_h_to_4h       rows: on every rank, its share of the gate above its share of the input of the SwiGLU
    dense, dense_4h_to_h    columns
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
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

TRACKER = "latest_checkpointed_iteration.txt"
SHARD = "model_optim_rng.pt"
ROOT = ("model", "language_model")
EMBEDDING, ENCODER, OUTPUT = "embedding", "encoder", "output_layer"
TABLES = {EMBEDDING: ROOT + (EMBEDDING, "word_embeddings"), ENCODER: ROOT + (ENCODER,), OUTPUT: ROOT + (OUTPUT,)}
MAX_RANKS = 64
"""The vocabulary is padded for at most this number of ranks; a larger embedding is that of another model."""
MIN_VERSION = 2.0
"""Older checkpoint versions order the rows of query_key_value differently."""
SHARDS_REMEDY = "download all shards of one checkpoint of this model, and no others"

Shape = Tuple[int, ...]


class Folder(NamedTuple):
    """A checkpoint folder: its iteration, or `release`, and the files of the ranks in order."""

    path: str
    iteration: str
    files: list[str]

    @property
    def tracker(self) -> str:
        """The file that names the iteration."""
        return os.path.join(self.path, TRACKER)


class Shard(NamedTuple):
    """The file of one rank, and its tensors by table and name, memory-mapped."""

    path: str
    tables: dict[str, dict[str, torch.Tensor]]

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        size = 0
        for table in self.tables.values():
            size += sum(tensor.numel() * tensor.element_size() for tensor in table.values())
        return size


def convert(source: str, section: dict[str, Any], writer: Any, report: conversion.Report) -> None:
    """Convert a checkpoint folder through a Writer, for any number of tensor-parallel ranks.

    `section`: a `model` section with the keys of engines/megatron/shape.py. Rows after the vocabulary are left out of
    the embedding, but kept of the output layer, as weights_format.PADDING. All shards are checked before the first
    tensor is read; one assembled tensor is in memory at a time, besides the file being written. Raises DataError.
    """
    folder = find(source)
    shards = [_open_shard(path) for path in folder.files]
    padding = check(shards, section)
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


def find(source: str) -> Folder:
    """The files of the checkpoint that the tracker file of a folder names. Raises DataError."""
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
    try:
        with open_file(path, "rb") as file:
            text = file.read(100).decode("ascii", "replace").strip()
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
    """The files of ranks 0 to n. Raises DataError if one is missing, or for pipeline parallelism."""
    piped = sorted(name for name in names if re.fullmatch("mp_rank_[0-9]+_[0-9]+", name))
    if piped:
        raise DataError(
            f"{folder} is split over pipeline stages ({piped[0]}), which is not supported",
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
    """Open a shard. Raises DataError if it has other tables than the model's."""
    content = pickles.read(path)
    version = pickles.dict_in(path, content, ()).get("checkpoint_version")
    if isinstance(version, (int, float)) and version < MIN_VERSION:
        raise DataError(
            f"{path} has the checkpoint version {version}; {MIN_VERSION} or newer is needed",
            "load and save it with a Megatron-LM of 2023",
        )
    names_inside = {ROOT: set(TABLES), ROOT + (EMBEDDING,): {"word_embeddings"}}
    for inside, names in names_inside.items():
        for name in pickles.dict_in(path, content, inside):
            if name not in names:
                raise DataError(
                    f"{path} has {repr(name)[:80]} in {inside[-1]}, which is not in this model",
                    conversion.MODEL_REMEDY,
                )
    return Shard(path, {name: pickles.table_in(path, content, inside) for name, inside in TABLES.items()})


def check(shards: list[Shard], section: dict[str, Any]) -> int:
    """Check names and shapes of all tensors of all shards; returns the number of rows after the vocabulary.

    Raises DataError for another model, and for a shard of another number of ranks.
    """
    tp = len(shards)
    for key, what in (("heads", "heads"), ("kv_heads", "key-value heads"), ("ffn", "columns of the MLP")):
        if section[key] % tp:
            raise DataError(
                f"{section['name']} has {section[key]} {what}, which {tp} shards cannot share",
                SHARDS_REMEDY,
            )
    rows = _rows(shards[0])
    wanted = _shapes(section, tp, rows)
    for shard in shards:
        for table, shapes in wanted.items():
            _check_table(shard, table, shapes, tp)
    total, vocabulary = rows * tp, section["vocab_size"]
    if not vocabulary <= total < vocabulary + section["vocab_multiple"] * MAX_RANKS:
        folder = os.path.dirname(os.path.dirname(shards[0].path))
        raise DataError(
            f"the {tp} shards of {folder} have {total} rows of the vocabulary ({rows} each), "
            f"but the model has {vocabulary}",
            SHARDS_REMEDY,
        )
    return total - vocabulary


def _rows(shard: Shard) -> int:
    """Rows of the embedding in a shard; 0 if it has none, or no matrix."""
    weight = shard.tables[EMBEDDING].get("weight")
    if weight is None or weight.dim() != 2:
        return 0
    return weight.shape[0]


def _shapes(section: dict[str, Any], tp: int, rows: int) -> dict[str, dict[str, Shape]]:
    """Names and shapes of the tensors of a shard, by table."""
    dim, heads, groups, ffn = section["dim"], section["heads"], section["kv_heads"], section["ffn"]
    qkv = (heads + 2 * groups) * (dim // heads)
    encoder: dict[str, Shape] = {"final_layernorm.weight": (dim,)}
    for layer in range(section["layers"]):
        at = f"layers.{layer}."
        encoder[at + "input_layernorm.weight"] = (dim,)
        encoder[at + "self_attention.query_key_value.weight"] = (qkv // tp, dim)
        encoder[at + "self_attention.dense.weight"] = (dim, dim // tp)
        encoder[at + "post_attention_layernorm.weight"] = (dim,)
        encoder[at + "mlp.dense_h_to_4h.weight"] = (2 * ffn // tp, dim)
        encoder[at + "mlp.dense_4h_to_h.weight"] = (dim, ffn // tp)
    return {EMBEDDING: {"weight": (rows, dim)}, ENCODER: encoder, OUTPUT: {"weight": (rows, dim)}}


def _check_table(shard: Shard, table: str, wanted: dict[str, Shape], tp: int) -> None:
    tensors = shard.tables[table]
    for name in sorted({*wanted, *tensors}):
        if name not in tensors:
            raise DataError(f"{shard.path} has no tensor {name[:80]} in {table}", SHARDS_REMEDY)
        if name not in wanted:
            words = f"{shard.path} has a tensor {name[:80]} in {table}, not in this model"
            raise DataError(words, SHARDS_REMEDY)
        shape = tuple(tensors[name].shape)
        if shape != wanted[name]:
            raise DataError(
                f"{shard.path}: {name} of {table} has the shape {shape}, "
                f"but that of one of {tp} shards of this model is {wanted[name]}",
                SHARDS_REMEDY,
            )


class MegatronCheckpoint:
    """Checked shards, which it assembles to tensors by their Hugging Face names."""

    def __init__(self, shards: list[Shard], section: dict[str, Any]) -> None:
        self._shards = shards
        self._layers: int = section["layers"]
        self._vocabulary: int = section["vocab_size"]
        self._per_group: int = section["heads"] // section["kv_heads"]
        self._width: int = section["dim"] // section["heads"]
        self._dim: int = section["dim"]

    def tensors(self, padding: int) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of the model, and the `padding` rows of the output layer. Raises DataError for a damaged shard,
        and for norms that differ between the ranks."""
        yield "model.embed_tokens.weight", self._rows(EMBEDDING, 0, self._vocabulary)
        for layer in range(self._layers):
            prefix, hf_prefix = f"layers.{layer}.", f"model.layers.{layer}."
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
        """What the rows of the output layer after the vocabulary are."""
        if not padding:
            return "none"
        last = self._rows(OUTPUT, self._vocabulary - 1, self._vocabulary)
        rows = self._rows(OUTPUT, self._vocabulary, self._vocabulary + padding)
        if not rows.any():
            return "zeros"
        if torch.equal(rows, last.expand_as(rows)):
            return "last row repeated"
        return "other rows"

    def _attention(self, at: str) -> Iterator[tuple[str, torch.Tensor]]:
        groups = [
            part.reshape(-1, self._per_group + 2, self._width, self._dim)
            for part in self._parts(at + "query_key_value.weight")
        ]
        n = self._per_group
        for name, rows in (("q_proj", slice(n)), ("k_proj", slice(n, n + 1)), ("v_proj", slice(n + 1, n + 2))):
            yield name + ".weight", torch.cat([part[:, rows] for part in groups]).reshape(-1, self._dim)
        yield "o_proj.weight", torch.cat(self._parts(at + "dense.weight"), dim=1)

    def _mlp(self, at: str) -> Iterator[tuple[str, torch.Tensor]]:
        halves = [part.chunk(2) for part in self._parts(at + "dense_h_to_4h.weight")]
        yield "gate_proj.weight", torch.cat([gate for gate, _ in halves])
        yield "up_proj.weight", torch.cat([up for _, up in halves])
        yield "down_proj.weight", torch.cat(self._parts(at + "dense_4h_to_h.weight"), dim=1)

    def _norm(self, name: str) -> torch.Tensor:
        first, *rest = self._parts(name)
        for shard, norm in zip(self._shards[1:], rest):
            if not torch.equal(first, norm):
                raise DataError(
                    f"{shard.path}: {name} differs from that in {self._shards[0].path}",
                    SHARDS_REMEDY,
                )
        return first

    def _parts(self, name: str) -> list[torch.Tensor]:
        return [shard.tables[ENCODER][name] for shard in self._shards]

    def _rows(self, table: str, start: int, end: int) -> torch.Tensor:
        """Rows of the vocabulary over all shards."""
        parts, at = [], 0
        for shard in self._shards:
            count = _rows(shard)
            if at < end and start < at + count:
                parts.append(shard.tables[table]["weight"][max(start - at, 0) : end - at])
            at += count
        return torch.cat(parts)
