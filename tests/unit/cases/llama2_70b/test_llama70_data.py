"""The training set: blocks of the shipped or a prepared set, random ones, and how replicas share them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flagbench_cases.cases.llama2_70b import data, indexed, prepare
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.shared.errors import DataError
from unit.cases.refusal import refuses
from workloads import on_ranks

pytestmark = pytest.mark.image

DATA, MODEL = {"source": "shipped", "sequence_length": 64}, {"vocab_size": 448}


def loaded(folder: Path, rank: int, world: int, needed: int, seed: int, **changes: Any) -> tuple[Any, ...]:
    """The blocks [needed, T + 1], the condition and the facts of a set."""
    given = changes.pop("prepared", None)
    found = data.load({**DATA, **changes}, MODEL, given, needed, seed)
    assert len(found.blocks) == needed
    return torch.stack([found.blocks[index] for index in range(needed)]), found.condition, found.facts


def load(folder: Path, needed: int, seed: int = 1, **changes: Any) -> tuple[Any, ...]:
    """The same in a process of its own, as Megatron-Core runs."""
    return on_ranks(1, folder, functools.partial(loaded, needed=needed, seed=seed, **changes))[0]


# Blocks


def test_an_epoch_has_every_token_of_the_shipped_set_once(megatron: None, tmp_path: Path) -> None:
    """Blocks overlap by one token, the last of one being the first of the next: it is a label, then an input."""
    prefix = str(Path(data.TINY) / indexed.STEM)
    index = indexed.read_index(prefix)
    count = (index.tokens - 1) // 64
    blocks, condition, facts = load(tmp_path, count)
    sums = [hashlib.sha256(Path(prefix + end).read_bytes()).hexdigest() for end in (".bin", ".idx")]
    assert (condition, facts) == (
        "shipped",
        {"tokens": index.tokens, "documents": 1200, "train_sha256": sums[0], "index_sha256": sums[1]},
    )
    tokens = np.fromfile(prefix + ".bin", index.dtype)
    inputs = np.bincount(blocks[:, :-1].flatten().numpy(), minlength=448)
    whole = np.bincount(tokens, minlength=448)
    assert inputs.sum() == count * 64
    assert np.all(inputs <= whole)
    assert whole.sum() - inputs.sum() <= 64  # the last block is not full
    assert len({tuple(block.tolist()) for block in blocks}) == count
    # Documents are whole, in another order: each text follows <s>, and </s> is followed by the next.
    ends, starts = blocks[:, :-1] == 2, blocks[:, 1:] == 1
    assert torch.equal(ends, starts)
    assert ends.sum() > 1000


def test_documents_of_several_sequences_are_read_whole(megatron: None, tmp_path: Path) -> None:
    """Megatron-Core numbers sequences; only the first of each document's would be drawn otherwise."""

    def body(folder: Path, rank: int, world: int) -> Any:
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        prefix = str(folder / indexed.STEM)
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)
        for document in range(4):
            for sequence in range(5):
                builder.add_item(torch.full((32,), document * 5 + sequence))
            builder.end_document()
        builder.finalize(prefix + ".idx")
        blocks = data.IndexedBlocks(prefix, 9, 64, 448, 1)
        return sorted({int(token) for index in range(9) for token in blocks[index]})

    (found,) = on_ranks(1, tmp_path, body)
    assert len(found) >= 19  # of 20; what the last block cannot hold is left


def test_a_prepared_set(megatron: None, tmp_path: Path) -> None:
    with prepared_folder.writing(str(tmp_path / "out"), data.CASE, "data") as writer:
        prepare.prepare_data(data.TINY, None, {"model": MODEL}, writer, lambda *_: None)
    blocks, condition, facts = load(tmp_path / "1", 20, source="files", prepared=str(tmp_path / "out"))
    assert condition == "files"
    wanted, _, of_shipped = load(tmp_path / "2", 20)
    assert torch.equal(blocks, wanted)
    assert facts == of_shipped


def test_random_blocks() -> None:
    found = data.load({**DATA, "source": "synthetic"}, MODEL, None, 50, 7)
    assert (found.condition, found.facts, len(found.blocks)) == ("synthetic", {}, 50)
    blocks = torch.stack([found.blocks[index] for index in range(50)])
    assert (blocks.shape, blocks.dtype) == ((50, 65), torch.int64)
    assert (int(blocks.min()), int(blocks.max())) == (3, 447)  # no special token
    again = data.load({**DATA, "source": "synthetic"}, MODEL, None, 50, 7).blocks
    other = data.load({**DATA, "source": "synthetic"}, MODEL, None, 50, 8).blocks
    assert torch.equal(again[49], blocks[49])
    assert not torch.equal(other[49], blocks[49])


# What is refused


def test_a_set_shorter_than_a_block() -> None:
    tokens = indexed.read_index(str(Path(data.TINY) / indexed.STEM)).tokens
    with refuses(DataError, tokens, indexed.STEM):
        data.load({**DATA, "sequence_length": tokens}, MODEL, None, 1, 1)


# How replicas share them


class Numbers:
    """Blocks that are their numbers."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index])


def of_megatron_lm(total: int, micro: int, replica: int, replicas: int) -> Iterator[list[int]]:
    """The micro-batches of a replica by the rule of Megatron-LM's MegatronPretrainingSampler: as soon as there are as
    many samples as all replicas need for a micro-batch, each takes its slice."""
    waiting: list[int] = []
    for sample in range(total):
        waiting.append(sample)
        if len(waiting) == micro * replicas:
            yield waiting[replica * micro : (replica + 1) * micro]
            waiting = []


@pytest.mark.parametrize(("replicas", "micro", "count"), [(1, 2, 4), (2, 2, 4), (4, 1, 2), (3, 4, 1)])
def test_micro_batches_are_dealt_as_megatron_lm_does(replicas: int, micro: int, count: int) -> None:
    steps = 5
    total, dealt = steps * replicas * micro * count, []
    for replica in range(replicas):
        wanted = of_megatron_lm(total, micro, replica, replicas)
        found = list(data.batches(Numbers(), steps, replica, replicas, micro, count))
        assert len(found) == steps
        for batch in found:
            assert len(batch) == count
            for made in batch:
                assert made[:, 0].tolist() == next(wanted)
                dealt += made[:, 0].tolist()
        assert next(wanted, None) is None
    assert sorted(dealt) == list(range(total))
