"""`flagbench prepare llama2-7b-lora`: converts samsum and MMLU into token ids, and a checkpoint into safetensors.

`flagbench prepare` imports this module by the name of the case (prepare/child_main.py), and uses its WANTS, LICENCES,
prepare_data and prepare_weights.
"""

from __future__ import annotations

import os
from typing import Any

from flagbench_cases.cases.llama2_7b_lora import blocks, mmlu, samsum
from flagbench_cases.prepare.llama import convert
from flagbench_cases.prepare.writer import Writer
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.files import Report

CASE = "llama2-7b-lora"
WANTS = {
    "data": "a folder with samsum's train.json and val.json (in it or in samsum_dataset/) and MMLU's dev/ and test/ "
    "(in it or in mmlu/)",
    "weights": "the Hugging Face folder of Llama-2-7b, safetensors or .bin, in one file or in shards",
    "vocabulary": "tokenizer.model of Llama 2",
}
"""What each option of `flagbench prepare` takes; a case supports no other options."""
LICENCES = {
    "data": "samsum: CC BY-NC-ND 4.0 (no commercial use, no distribution of derivatives); MMLU: MIT",
    "weights": "Llama 2 Community License; the download is gated and requires accepting its terms",
    "vocabulary": "Llama 2 Community License, like the weights",
}
"""The licence of each source, by option. They are written into the prepared folders."""


def prepare_data(source: str, vocabulary: str | None, preset: dict[str, Any], writer: Writer, report: Report) -> None:
    """Tokenise samsum and MMLU for a preset. Raises DataError, or UsageError without a vocabulary."""
    data = preset["data"]
    _require_real(preset)
    if vocabulary is None:
        raise UsageError("text cannot be tokenised without a vocabulary", "set --vocabulary to tokenizer.model")
    dialogues = samsum.find_folder(source)
    questions = mmlu.find_folder(source)
    loaded = mmlu.MmluVocabulary(vocabulary, preset["model"]["vocab_size"])
    tokenised = blocks.tokenise(dialogues, questions, loaded, data["sequence_length"], data["shots"], report)
    blocks.write(tokenised, writer)
    writer.source(loaded.path)
    for name in samsum.FILES.values():
        writer.source(os.path.join(dialogues, name))
    for subject in tokenised.facts["mmlu"]["subjects"]:
        for part in ("dev", "test"):
            name = f"{part}/{subject}_{part}.csv"
            writer.source(os.path.join(questions, name), name)


def prepare_weights(source: str, preset: dict[str, Any], writer: Writer, report: Report) -> None:
    """Convert a checkpoint folder to llama-safetensors/v1 through a Writer. Raises DataError."""
    _require_real(preset)
    convert.convert(source, preset["model"], writer, report)


def _require_real(preset: dict[str, Any]) -> None:
    """Raise UsageError for a geometry without data and weights of its own."""
    if "token_ids" in preset["data"]:
        raise UsageError("this case runs on random ids and random weights", "run it without --data and --weights")
