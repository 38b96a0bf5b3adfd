"""Megatron's indexed datasets: token ids in a .bin file, and the lengths of documents in an .idx file.

The format (MMIDIDX, version 1): magic, version (u64), type of the ids (u8), number of sequences and of documents
(u64), lengths (i32), byte offsets (i64), and where documents begin among the sequences (i64). Megatron-Core reads and
samples it; here a file is checked before, because it trusts every number.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import numpy as np

from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

FORMAT = "megatron-indexed/v1"
STEM = "llama_00_text_document"
"""The stem of the published files' names."""
ENDS = (".bin", ".idx")
MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
TYPES: dict[int, np.dtype] = {4: np.dtype(np.int32), 8: np.dtype(np.uint16)}
"""By their code: the types that Megatron writes for vocabularies above and below 65500."""
REMEDY = "download or prepare both files again"
_CHUNK = 2**24


class Index(NamedTuple):
    """The content of an .idx file."""

    dtype: np.dtype
    lengths: np.ndarray
    documents: int

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return int(self.lengths.sum(dtype=np.int64))


def find(folder: str) -> str:
    """The prefix of the only dataset in a folder, else of the one with the published name."""
    stems = [name[: -len(".idx")] for name in sorted(os.listdir(folder)) if name.endswith(".idx")]
    if len(stems) == 1:
        return os.path.join(folder, stems[0])
    return os.path.join(folder, STEM)


def check(prefix: str) -> Index:
    """The index of PREFIX.idx, which fits PREFIX.bin. Raises DataError."""
    path = prefix + ".idx"
    try:
        with open_file(path, "rb") as file:
            content = file.read()
        with open_file(prefix + ".bin", "rb") as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read ({error.strerror})", REMEDY) from None
    if len(content) < HEADER.size or not content.startswith(MAGIC):
        raise DataError(f"{path} is not an index of Megatron's", REMEDY)
    _, version, code, sequences, documents = HEADER.unpack_from(content)
    if version != 1 or code not in TYPES:
        raise DataError(f"{path} has the version {version} and the type {code}", REMEDY)
    if len(content) != HEADER.size + sequences * 12 + documents * 8:
        counts = f"{sequences} sequences in {max(documents - 1, 0)} documents"
        raise DataError(f"{path} has {len(content)} bytes, which is not right for {counts}", REMEDY)
    lengths = np.frombuffer(content, np.int32, sequences, HEADER.size)
    offsets = np.frombuffer(content, np.int64, sequences, HEADER.size + 4 * sequences)
    begins = np.frombuffer(content, np.int64, documents, HEADER.size + 12 * sequences)
    ends = np.cumsum(lengths, dtype=np.int64) * TYPES[code].itemsize
    whole = sequences > 0 and documents > 1 and lengths.min() >= 0 and ends[-1] == size > 0
    if not (
        whole
        and offsets[0] == 0
        and np.array_equal(offsets[1:], ends[:-1])
        and begins[0] == 0
        and begins[-1] == sequences
        and np.all(np.diff(begins) >= 0)
    ):
        raise DataError(f"{path} does not fit {prefix}.bin of {size} bytes", REMEDY)
    return Index(TYPES[code], lengths, documents - 1)


def check_tokens(prefix: str, index: Index, vocab_size: int) -> None:
    """Raise DataError if PREFIX.bin has a token that is not in the vocabulary."""
    ids = np.memmap(prefix + ".bin", dtype=index.dtype, mode="r")
    for at in range(0, len(ids), _CHUNK):
        part = ids[at : at + _CHUNK]
        low, high = int(part.min()), int(part.max())
        if low < 0 or high >= vocab_size:
            wrong = low if low < 0 else high
            raise DataError(
                f"{prefix}.bin has the token {wrong}, but the vocabulary has {vocab_size}",
                "tokenise the text with the model's tokenizer.model",
            )
