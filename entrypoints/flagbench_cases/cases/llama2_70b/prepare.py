"""`flagbench prepare` of the Llama 2 70B cases: tokenises text into Megatron's indexed dataset, or checks one.

Format megatron-indexed/v1: llama_00_text_document.bin and .idx. A document is <s>, the tokens of a text, </s>, as
Megatron-LM's preprocess_data.py writes it with Llama's tokeniser and --append-eod.

`flagbench prepare` imports this module by the name of the case (prepare/child_main.py), and uses its WANTS, LICENCES
and prepare_data.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import torch

from flagbench_cases.cases.llama2_70b import indexed
from flagbench_cases.prepare import json_lines
from flagbench_cases.prepare.llama.vocabulary import BOS, EOS, Vocabulary
from flagbench_cases.prepare.writer import Writer
from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_cases.shared.files import Report, open_file, pieces

CASE = "llama2-70b"
WANTS = {
    "data": "JSON lines with `text` (a file; it needs --vocabulary), or a folder with the published "
    "dataset: one .bin and one .idx file",
    "vocabulary": "tokenizer.model of Llama 2",
}
"""What each option of `flagbench prepare` takes; a case supports no other options."""
LICENCES = {
    "data": "the published sets are from the Pile (Wikipedia) and WuDao; their licences are those of the texts",
    "vocabulary": "Llama 2 Community License",
}
"""The licence of each source, by option. They are written into the prepared folders."""


def prepare_data(source: str, vocabulary: str | None, preset: dict[str, Any], writer: Writer, report: Report) -> None:
    """Write a prepared folder: tokenise a file of text for a preset's model, or check and copy an indexed dataset.

    Raises DataError for files that are damaged or do not fit the model, and UsageError for text without a vocabulary
    or an indexed dataset with one.

    Args:
        source: a file of JSON lines with `text`, or a folder with an indexed dataset.
        vocabulary: the path of tokenizer.model; None for an indexed dataset.
        preset: the sizes of the model, of which `model.vocab_size` is used.
        writer: the Writer of the prepared folder.
        report: called with the progress.
    """
    vocab_size = preset["model"]["vocab_size"]
    if os.path.isdir(source):
        if vocabulary is not None:
            raise UsageError("an indexed dataset has tokens, not text", "omit --vocabulary")
        _copy(indexed.find_prefix(source), vocab_size, writer, report)
        return
    if vocabulary is None:
        raise UsageError("text cannot be tokenised without a vocabulary", "set --vocabulary to tokenizer.model")
    loaded = Vocabulary(vocabulary, vocab_size)
    facts = _tokenise(source, loaded, writer, report)
    writer.format(indexed.FORMAT)
    writer.fact(vocabulary={"llama2": loaded.is_llama2, "sha256": loaded.sha256}, **facts)
    for path in (source, loaded.path):
        writer.source(path)


def _copy(prefix: str, vocab_size: int, writer: Writer, report: Report) -> None:
    """Check and copy an indexed dataset. Raises DataError."""
    index = indexed.read_index(prefix)
    indexed.check_tokens(prefix, index, vocab_size)
    total = sum(os.stat(prefix + ending).st_size for ending in indexed.ENDINGS)
    writer.need(total)
    done = 0
    for ending in indexed.ENDINGS:
        with open_file(prefix + ending, "rb") as file, open(writer.path(indexed.STEM + ending), "wb") as copy:
            for piece in pieces(file):
                copy.write(piece)
                done += len(piece)
                report("copy the dataset", done, total)
        writer.source(prefix + ending)
    writer.format(indexed.FORMAT)
    writer.fact(tokens=index.tokens, documents=index.documents)


def _tokenise(source: str, vocabulary: Vocabulary, writer: Writer, report: Report) -> dict[str, int]:
    """Write the texts of a JSONL file as an indexed dataset; returns its numbers of `tokens` and `documents`.

    Raises DataError.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about optional packages, which users cannot fix
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    dtype: type[np.number] = np.int32
    if vocabulary.pieces < indexed.UINT16_BELOW:
        dtype = np.uint16
    builder = IndexedDatasetBuilder(writer.path(indexed.STEM + ".bin"), dtype=dtype)
    tokens = 0
    documents = 0
    for done, total, text in json_lines.texts(source, required=True):
        ids = [BOS, *vocabulary.encode(text), EOS]
        builder.add_item(torch.tensor(ids))
        builder.end_document()
        tokens += len(ids)
        documents += 1
        report("tokenise the text", done, total)
    if not documents:
        raise DataError(f"{source} has no line with a text", "give JSON lines with `text`")
    builder.finalize(writer.path(indexed.STEM + ".idx"))
    return {"tokens": tokens, "documents": documents}
