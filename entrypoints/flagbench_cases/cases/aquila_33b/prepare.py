"""`flagbench prepare aquila-33b`: converts LAMBADA into token ids, and a checkpoint into safetensors."""

import os
from typing import Any, Callable, Dict, Optional

from flagbench_cases.cases.aquila_33b import sentences, tokens
from flagbench_cases.prepare.llama import convert, megatron
from flagbench_cases.shared.errors import DataError, UsageError

CASE = sentences.CASE
TEXTS = ("lambada_test_bak.jsonl", "lambada_test.jsonl")
WANTS = {
    "data": "LAMBADA's test set as JSONL, or a folder with %s (in it or in data/)" % " or ".join(TEXTS),
    "weights": "the published checkpoint folder with %s (in it or in ckpts/), or a Hugging Face folder of the model"
    % megatron.TRACKER,
    "vocabulary": "a folder with vocab.json, merges.txt and special_tokens.txt (in it or in tokenizer/)",
}
LICENCES = {
    "data": "LAMBADA: the licence of the texts is unclear, they are from the novels of BookCorpus; the file is "
    "published by cybertronai/bflm, without a licence",
    "weights": "BAAI Aquila Model Licence Agreement",
    "vocabulary": "Apache 2.0, published with FlagScale",
}

Report = Callable[[str, int, int], None]


def prepare_data(source: str, vocabulary: Optional[str], preset: Dict[str, Any], writer: Any, report: Report) -> None:
    """Tokenise LAMBADA for a preset through a Writer. Raises DataError, or UsageError without a vocabulary."""
    if vocabulary is None:
        raise UsageError("text cannot be tokenised without a vocabulary", tokens.REMEDY)
    path = find_texts(source)
    tokeniser = tokens.Tokeniser(find_vocabulary(vocabulary), preset["model"]["vocab_size"])
    made = sentences.tokenise(path, tokeniser, preset["data"]["sequence_length"], report)
    sentences.write(made, writer)
    for read in [path] + tokeniser.paths:
        writer.source(read)


def find_texts(source: str) -> str:
    """The JSONL file, or the one in a folder. Raises DataError."""
    if not os.path.isdir(source):
        return source
    paths = [os.path.join(source, folder, name) for name in TEXTS for folder in ("", "data")]
    found = next((path for path in paths if os.path.isfile(path)), None)
    if found is None:
        raise DataError(
            "%s has neither %s, nor has its data/" % (source, " nor ".join(TEXTS)), "set --data to LAMBADA's JSONL"
        )
    return found


def find_vocabulary(folder: str) -> str:
    """The folder itself, or tokenizer/ in it."""
    inner = os.path.join(folder, "tokenizer")
    missing = not os.path.exists(os.path.join(folder, tokens.VOCABULARY))
    return inner if missing and os.path.isdir(inner) else folder


def prepare_weights(source: str, preset: Dict[str, Any], writer: Any, report: Report) -> None:
    """Convert a checkpoint folder of a preset's model to llama-safetensors/v1 through a Writer. Raises DataError."""
    model = preset["model"]
    folders = (source, os.path.join(source, "ckpts"))
    published = next((path for path in folders if os.path.exists(os.path.join(path, megatron.TRACKER))), None)
    if published is not None:
        megatron.convert(published, model, writer, report)
        return
    if not os.path.exists(os.path.join(source, "config.json")):
        raise DataError(
            "%s has neither %s (in it or in ckpts/) nor config.json" % (source, megatron.TRACKER),
            "set --weights to the published checkpoint folder, or to a Hugging Face folder",
        )
    convert.convert(source, model, writer, report, model_types=("aquila", "llama"))
    writer.fact(vocabulary_padding="none", vocabulary_padding_rows=0)
