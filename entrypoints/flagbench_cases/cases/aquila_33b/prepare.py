"""`flagbench prepare aquila-33b`: converts LAMBADA into token ids, and a checkpoint into safetensors.

`flagbench prepare` imports this module by the name of the case (prepare/child_main.py), and uses its WANTS, LICENCES,
prepare_data and prepare_weights.
"""

from __future__ import annotations

import os
from typing import Any

from flagbench_cases.cases.aquila_33b import sentences, tokens
from flagbench_cases.prepare.llama import convert, megatron
from flagbench_cases.prepare.writer import Writer
from flagbench_cases.shared.errors import DataError, UsageError
from flagbench_cases.shared.files import Report

CASE = sentences.CASE
TEXTS = ("lambada_test_bak.jsonl", "lambada_test.jsonl")
"""Names of the file with LAMBADA's texts; the first is the publisher's."""
WANTS = {
    "data": f"LAMBADA's test set as JSONL, or a folder with {' or '.join(TEXTS)} (in it or in data/)",
    "weights": f"the published checkpoint folder with {megatron.TRACKER} (in it or in ckpts/), or a Hugging Face "
    "folder of the model",
    "vocabulary": "a folder with vocab.json, merges.txt and special_tokens.txt (in it or in tokenizer/)",
}
"""What each option of `flagbench prepare` takes; a case supports no other options."""
LICENCES = {
    "data": "LAMBADA: the licence of the texts is unclear, they are from the novels of BookCorpus; the file is "
    "published by cybertronai/bflm, without a licence",
    "weights": "BAAI Aquila Model Licence Agreement",
    "vocabulary": "Apache 2.0, published with FlagScale",
}
"""The licence of each source, by option. They are written into the prepared folders."""


def prepare_data(source: str, vocabulary: str | None, preset: dict[str, Any], writer: Writer, report: Report) -> None:
    """Tokenise LAMBADA for a preset through a Writer. Raises DataError, or UsageError without a vocabulary."""
    if vocabulary is None:
        raise UsageError("text cannot be tokenised without a vocabulary", tokens.REMEDY)
    path = find_texts(source)
    tokeniser = tokens.Tokeniser(find_vocabulary(vocabulary), preset["model"]["vocab_size"])
    sentence_set = sentences.tokenise(path, tokeniser, preset["data"]["sequence_length"], report)
    sentences.write(sentence_set, writer)
    for source_path in [path] + tokeniser.paths:
        writer.source(source_path)


def find_texts(source: str) -> str:
    """Return `source` if it is not a folder, else the JSONL file in it. Raises DataError."""
    if not os.path.isdir(source):
        return source
    for name in TEXTS:
        for folder in ("", "data"):
            path = os.path.join(source, folder, name)
            if os.path.isfile(path):
                return path
    raise DataError(f"{source} has neither {' nor '.join(TEXTS)}, nor has its data/", "set --data to LAMBADA's JSONL")


def find_vocabulary(folder: str) -> str:
    """Return the folder itself, or tokenizer/ in it if the folder has no vocabulary."""
    inner_folder = os.path.join(folder, "tokenizer")
    has_vocabulary = os.path.exists(os.path.join(folder, tokens.VOCABULARY))
    if not has_vocabulary and os.path.isdir(inner_folder):
        return inner_folder
    return folder


def prepare_weights(source: str, preset: dict[str, Any], writer: Writer, report: Report) -> None:
    """Convert a checkpoint folder of a preset's model to llama-safetensors/v1 through a Writer. Raises DataError."""
    model = preset["model"]
    for folder in (source, os.path.join(source, "ckpts")):
        if os.path.exists(os.path.join(folder, megatron.TRACKER)):
            megatron.convert(folder, model, writer, report)
            return
    if not os.path.exists(os.path.join(source, "config.json")):
        raise DataError(
            f"{source} has neither {megatron.TRACKER} (in it or in ckpts/) nor config.json",
            "set --weights to the published checkpoint folder, or to a Hugging Face folder",
        )
    # Aquila has the architecture of Llama, so that a folder of it can have either type. All sizes are compared.
    convert.convert(source, model, writer, report, model_types=("aquila", "llama"))
    writer.fact(vocabulary_padding="none", vocabulary_padding_rows=0)
