"""Checks Megatron's indexed datasets: token ids in a .bin file, and the lengths of sequences in an .idx file.

An .idx file (MMIDIDX, version 1) consists of a magic number, the version (u64), the type of the ids (u8), the numbers
of sequences and of documents (u64 each), and for each sequence its length (i32) and its offset in bytes (i64). At the
end are the numbers of the sequences with which documents begin (i64), and the number of all sequences. Megatron-Core
reads and samples the dataset. It trusts every number, so the files are checked here first.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import numpy as np

from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import open_file

FORMAT = "megatron-indexed/v1"
"""The name and version of the format of prepared folders."""
STEM = "llama_00_text_document"
"""The name of the published files, without their endings."""
ENDINGS = (".bin", ".idx")
MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
UINT16_BELOW = 65500
"""Vocabularies below this size are stored as 16 bits, as by Megatron's `DType.optimal_dtype`; larger ones as 32."""
TYPES: dict[int, np.dtype] = {4: np.dtype(np.int32), 8: np.dtype(np.uint16)}
"""The types of ids by Megatron's code for them. It writes no others: see UINT16_BELOW."""
REMEDY = "download or prepare both files again"
_CHUNK = 2**24
"""Tokens that are checked at a time."""


class Index(NamedTuple):
    """The content of an .idx file."""

    dtype: np.dtype
    """The type of the ids in the .bin file."""
    lengths: np.ndarray
    """The tokens of each sequence, int32."""
    documents: int

    @property
    def tokens(self) -> int:
        """The number of tokens of all sequences."""
        return int(self.lengths.sum(dtype=np.int64))


def find_prefix(folder: str) -> str:
    """Return the path without ending of the only dataset in a folder, or else of the one with the published name."""
    stems = [name[: -len(".idx")] for name in sorted(os.listdir(folder)) if name.endswith(".idx")]
    if len(stems) == 1:
        return os.path.join(folder, stems[0])
    return os.path.join(folder, STEM)


def read_index(prefix: str) -> Index:
    """Read PREFIX.idx. Raises DataError if it is damaged or does not fit PREFIX.bin."""
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
    # The header's number of documents is that of their entries, one more than there are documents.
    offsets_start = HEADER.size + 4 * sequences
    documents_start = offsets_start + 8 * sequences
    if len(content) != documents_start + 8 * documents:
        counts = f"{sequences} sequences in {max(documents - 1, 0)} documents"
        raise DataError(f"{path} has {len(content)} bytes, which is not right for {counts}", REMEDY)
    lengths = np.frombuffer(content, np.int32, sequences, HEADER.size)
    offsets = np.frombuffer(content, np.int64, sequences, offsets_start)
    document_starts = np.frombuffer(content, np.int64, documents, documents_start)
    fits = _sequences_fit(lengths, offsets, TYPES[code].itemsize, size)
    if not fits or not _documents_fit(document_starts, sequences):
        raise DataError(f"{path} does not fit {prefix}.bin of {size} bytes", REMEDY)
    return Index(TYPES[code], lengths, documents - 1)


def _sequences_fit(lengths: np.ndarray, offsets: np.ndarray, itemsize: int, size: int) -> bool:
    """Return whether sequences with these lengths and byte offsets follow each other and fill `size` bytes."""
    if not len(lengths) or size <= 0 or lengths.min() < 0:
        return False
    ends = np.cumsum(lengths, dtype=np.int64) * itemsize
    if ends[-1] != size:
        return False
    return bool(offsets[0] == 0) and np.array_equal(offsets[1:], ends[:-1])


def _documents_fit(starts: np.ndarray, sequences: int) -> bool:
    """Return whether documents that begin with these sequences, the last entry being the end, contain all of them."""
    if len(starts) < 2:
        return False
    spans_all = starts[0] == 0 and starts[-1] == sequences
    return bool(spans_all and np.all(np.diff(starts) >= 0))


def check_tokens(prefix: str, index: Index, vocab_size: int) -> None:
    """Raise DataError if PREFIX.bin has a token that is not in the vocabulary."""
    ids = np.memmap(prefix + ".bin", dtype=index.dtype, mode="r")
    for first in range(0, len(ids), _CHUNK):
        chunk = ids[first : first + _CHUNK]
        lowest = int(chunk.min())
        highest = int(chunk.max())
        if lowest < 0 or highest >= vocab_size:
            invalid = lowest if lowest < 0 else highest
            raise DataError(
                f"{prefix}.bin has the token {invalid}, but the vocabulary has {vocab_size}",
                "tokenise the text with the model's tokenizer.model",
            )
