"""The training set: blocks of tokens from an indexed dataset, as Megatron-LM draws them, or random ones."""

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


class TrainingBlocks(NamedTuple):
    """Blocks int64 [T + 1] by their number in the order of training, the value of a claim's `data` condition, and
    facts for the record."""

    blocks: Any
    condition: str
    facts: dict[str, Any]


class IndexedBlocks:
    """`count` blocks of an indexed dataset, drawn by Megatron-Core: documents shuffled and concatenated, cut into
    blocks, and these shuffled."""

    def __init__(self, prefix: str, count: int, length: int, vocabulary_size: int, seed: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
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
            tokenizer=_Tokens(vocabulary_size),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        low = GPTDataset.build_low_level_dataset(prefix, config)
        sequences = np.arange(GPTDataset.numel_low_level_dataset(low), dtype=np.int32)
        self.set = GPTDataset(low, prefix, sequences, count, Split.train, config)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        item = self.set[index]
        return torch.cat([item["tokens"], item["labels"][-1:]])


class _Tokens:
    """In place of a tokeniser, which Megatron-Core asks only for its size, the end of a document and padding."""

    eod = EOS
    pad = -1  # nothing is
    unique_identifiers = {"class": "ids"}

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size


def load(
    data: dict[str, Any], model: dict[str, Any], folder: str | None, needed: int, seed: int, case: str = CASE
) -> TrainingBlocks:
    """The set selected by the resolved `data` section, with `needed` blocks. Raises DataError."""
    length, size = data["sequence_length"], model["vocab_size"]
    if data["source"] == "synthetic":
        return TrainingBlocks(RandomBlocks(needed, length + 1, size, seed), "synthetic", {})
    if data["source"] == "shipped":
        prefix, condition = os.path.join(TINY, indexed.STEM), "shipped"
        sums: list[Any] = [sum_of(prefix + end) for end in (".bin", ".idx")]
    else:
        place = prepared_folder.open_folder(folder or "", case, "data", (indexed.FORMAT,))
        prefix, condition = os.path.join(place.folder, indexed.STEM), "files"
        sums = [place.files.get(indexed.STEM + end, {}).get("sha256") for end in (".bin", ".idx")]
    index = indexed.check(prefix)
    indexed.check_tokens(prefix, index, size)
    if index.tokens <= length:
        raise DataError(f"{prefix}.bin has {index.tokens} tokens, fewer than a block", "use more data")
    facts = {"tokens": index.tokens, "documents": index.documents, "train_sha256": sums[0], "index_sha256": sums[1]}
    return TrainingBlocks(IndexedBlocks(prefix, needed, length, size, seed), condition, facts)


def batches(
    blocks: Any, steps: int, replica: int, replicas: int, per: int, count: int
) -> Iterator[list[torch.Tensor]]:
    """For each step, the `count` micro-batches [per, T + 1] of a replica, as Megatron-LM's sampler deals them: a
    micro-batch to each replica in turn."""
    for step in range(steps):
        micro_batches = []
        for index in range(count):
            at = ((step * count + index) * replicas + replica) * per
            micro_batches.append(torch.stack([blocks[number] for number in range(at, at + per)]))
        yield micro_batches
