"""Loads the training set: blocks of tokens from an indexed dataset, as Megatron-LM draws them, or random ones."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any, Iterator, NamedTuple

import numpy as np
import torch

from flagbench_cases.cases.llama2_70b import indexed
from flagbench_cases.engines.megatron import sample_index
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.llama.vocabulary import EOS
from flagbench_cases.prepare.synthetic import RandomBlocks
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import sum_of

CASE = "llama2-70b"
TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny")
"""The folder of the set shipped here."""


class TrainingBlocks(NamedTuple):
    """A training set."""

    blocks: Any
    """Blocks int64 [T + 1], by their number in the order of training."""
    condition: str
    """The `data` condition of a run with it, which is compared with that of a published result."""
    facts: dict[str, Any]
    """Facts about the set for the record."""


class IndexedBlocks:
    """`count` blocks of an indexed dataset, drawn by Megatron-Core.

    Documents are shuffled and concatenated, cut into blocks, and the blocks shuffled.
    """

    def __init__(self, prefix: str, count: int, length: int, vocabulary_size: int, seed: int) -> None:
        """Open the dataset PREFIX.bin and PREFIX.idx and draw its blocks of `length` + 1 tokens."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about optional packages, which users cannot fix
            from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
            from megatron.core.datasets.utils import Split
        sample_index.provide()
        logging.getLogger(GPTDataset.__module__).setLevel(logging.ERROR)  # else it warns that it keeps no cache
        config = GPTDatasetConfig(
            random_seed=seed,
            sequence_length=length,
            blend=([prefix], None),
            split="1",
            path_to_cache="",  # the set may be on a read-only volume, and the index takes only seconds to make
            tokenizer=_TokenizerStub(vocabulary_size),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        indexed_dataset = GPTDataset.build_low_level_dataset(prefix, config)
        sequences = np.arange(GPTDataset.numel_low_level_dataset(indexed_dataset), dtype=np.int32)
        self.set = GPTDataset(indexed_dataset, prefix, sequences, count, Split.train, config)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        item = self.set[index]
        return torch.cat([item["tokens"], item["labels"][-1:]])


class _TokenizerStub:
    """Has the attributes of a tokeniser that Megatron-Core reads: its size, the end of a document and padding."""

    eod = EOS
    pad = -1  # no token is padding
    unique_identifiers = {"class": "ids"}

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size


def load(
    data: dict[str, Any], model: dict[str, Any], folder: str | None, needed: int, seed: int, case: str = CASE
) -> TrainingBlocks:
    """Load the set selected by the resolved `data` section, with `needed` blocks. Raises DataError.

    `folder` was written by `flagbench prepare` for the case `case`.
    """
    length = data["sequence_length"]
    vocabulary_size = model["vocab_size"]
    if data["source"] == "synthetic":
        return TrainingBlocks(RandomBlocks(needed, length + 1, vocabulary_size, seed), "synthetic", {})
    if data["source"] == "shipped":
        condition = "shipped"
        prefix = os.path.join(TINY, indexed.STEM)
        sums: list[Any] = [sum_of(prefix + ending) for ending in indexed.ENDINGS]
    else:
        condition = "files"
        prepared = prepared_folder.open_folder(folder or "", case, "data", (indexed.FORMAT,))
        prefix = os.path.join(prepared.folder, indexed.STEM)
        sums = [prepared.files.get(indexed.STEM + ending, {}).get("sha256") for ending in indexed.ENDINGS]
    index = indexed.read_index(prefix)
    indexed.check_tokens(prefix, index, vocabulary_size)
    if index.tokens <= length:
        raise DataError(f"{prefix}.bin has {index.tokens} tokens, fewer than a block", "use more data")
    facts = {"tokens": index.tokens, "documents": index.documents, "train_sha256": sums[0], "index_sha256": sums[1]}
    return TrainingBlocks(IndexedBlocks(prefix, needed, length, vocabulary_size, seed), condition, facts)


def batches(
    blocks: Any, steps: int, replica: int, replicas: int, micro_batch_size: int, count: int
) -> Iterator[list[torch.Tensor]]:
    """Return the micro-batches of a replica for each step: `count` tensors [micro_batch_size, T + 1].

    Blocks are taken in order, as Megatron-LM's sampler does: a micro-batch for each replica in turn.
    """
    for step in range(steps):
        micro_batches = []
        for index in range(count):
            first = ((step * count + index) * replicas + replica) * micro_batch_size
            numbers = range(first, first + micro_batch_size)
            micro_batches.append(torch.stack([blocks[number] for number in numbers]))
        yield micro_batches
