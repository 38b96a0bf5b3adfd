"""Indexed datasets: what Megatron-Core writes is read, and what does not fit together is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flagbench_cases.cases.llama2_70b import indexed
from flagbench_cases.shared.errors import DataError
from running import need_megatron
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

LENGTHS = [3, 1, 4]
HEADER = indexed.HEADER.size


def write(folder: Path, made: Any = LENGTHS, **changes: Any) -> str:
    """A set of documents with the lengths `made`, its tokens numbered from 0; `changes` replace what the index has.

    Returns the prefix of both files.
    """
    prefix, dtype = str(folder / indexed.STEM), changes.get("dtype", np.uint16)
    lengths = np.array(made, np.int32)
    parts = {
        "magic": indexed.MAGIC,
        "version": 1,
        "code": {np.uint16: 8, np.int32: 4}[dtype],
        "sequences": len(lengths),
        "documents": len(lengths) + 1,
        "lengths": lengths,
        "offsets": np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[:-1] * np.dtype(dtype).itemsize,
        "begins": np.arange(len(lengths) + 1),
        **changes,
    }
    content = indexed.HEADER.pack(*(parts[name] for name in ("magic", "version", "code", "sequences", "documents")))
    content += np.array(parts["lengths"], np.int32).tobytes()
    content += np.array(parts["offsets"], np.int64).tobytes() + np.array(parts["begins"], np.int64).tobytes()
    Path(prefix + ".idx").write_bytes(content)
    Path(prefix + ".bin").write_bytes(np.arange(lengths.sum(), dtype=dtype).tobytes())
    return prefix


def refused(prefix: str, end: str = ".idx") -> None:
    """The set is refused, and the file is named."""
    with refuses(DataError, prefix + end):
        index = indexed.read_index(prefix)
        indexed.check_tokens(prefix, index, 448)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_what_megatron_core_writes_is_read(tmp_path: Path, dtype: Any) -> None:
    need_megatron()
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    prefix, draw = str(tmp_path / indexed.STEM), np.random.RandomState(0)
    sequences = [draw.randint(0, 448, size=length) for length in (7, 1, 300)]
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
    for sequence in sequences:
        builder.add_item(torch.from_numpy(sequence))
        builder.end_document()
    builder.finalize(prefix + ".idx")
    index = indexed.read_index(prefix)
    indexed.check_tokens(prefix, index, 448)
    assert (index.dtype, index.lengths.tolist(), index.documents) == (np.dtype(dtype), [7, 1, 300], 3)
    assert index.tokens == 308
    tokens = np.fromfile(prefix + ".bin", index.dtype)
    assert tokens.tolist() == np.concatenate(sequences).tolist()


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_a_whole_set_is_accepted(tmp_path: Path, dtype: Any) -> None:
    """What the refused ones below differ from; a document may have several sequences, and a sequence no tokens."""
    prefix = write(tmp_path, dtype=dtype)
    index = indexed.read_index(prefix)
    indexed.check_tokens(prefix, index, 8)
    assert (index.tokens, index.documents) == (8, 3)
    assert indexed.read_index(write(tmp_path, documents=2, begins=[0, 3])).documents == 1
    assert indexed.read_index(write(tmp_path, [3, 0, 5])).tokens == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": b"TNTIDX\x00\x00\x00"},
        {"version": 2},
        {"code": 5},
        {"sequences": 2},
        {"sequences": 2**63},
        {"documents": 2**61},
        {"lengths": [3, -1, 6]},
        {"lengths": [3, 1, 5]},
        {"lengths": [2**31 - 1] * 3},
        {"offsets": [0, 8, 6]},
        {"begins": [0, 1, 2, 4]},
        {"begins": [0, 2, 1, 3]},
        {"documents": 1, "begins": [0]},
    ],
    ids=str,
)
def test_an_index_that_does_not_fit(tmp_path: Path, changes: dict[str, Any]) -> None:
    refused(write(tmp_path, **changes))


@pytest.mark.parametrize("size", [0, HEADER - 1, HEADER, -1])
def test_an_index_cut_short(tmp_path: Path, size: int) -> None:
    prefix = write(tmp_path)
    content = Path(prefix + ".idx").read_bytes()
    Path(prefix + ".idx").write_bytes(content[:size])
    refused(prefix)


@pytest.mark.parametrize("content", [b"", bytes(18)])
def test_tokens_too_few_or_too_many(tmp_path: Path, content: bytes) -> None:
    prefix = write(tmp_path)
    Path(prefix + ".bin").write_bytes(content)
    refused(prefix, ".bin")


@pytest.mark.parametrize("end", indexed.ENDINGS)
def test_a_missing_file(tmp_path: Path, end: str) -> None:
    """The size of a folder may be that of the tokens."""
    prefix = write(tmp_path, [2048])
    os.unlink(prefix + end)
    refused(prefix, end)
    os.mkdir(prefix + end)
    refused(prefix, end)


def test_a_token_that_is_not_in_the_vocabulary(tmp_path: Path) -> None:
    prefix = write(tmp_path)
    index = indexed.read_index(prefix)
    with refuses(DataError, prefix + ".bin", "token 7", 7):
        indexed.check_tokens(prefix, index, 7)
    prefix = write(tmp_path, dtype=np.int32)
    Path(prefix + ".bin").write_bytes(np.array([0, 1, 2, -5, 3, 4, 5, 6], np.int32).tobytes())
    with refuses(DataError, prefix + ".bin", "token -5"):
        indexed.check_tokens(prefix, indexed.read_index(prefix), 448)
