"""The tiny set of Llama2-7B LoRA: text, vocabulary and a base model trained on text of the same form.

The text is the same everywhere, the vocabulary with one release of sentencepiece, the weights on one kind of
processor with one release of torch; provenance.json has the releases and the checksums of what is shipped.
"""

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List

from flagbench_cases.cases.llama2_7b_lora.mmlu import MmluVocabulary
from flagbench_cases.prepare.llama.vocabulary import BOS, EOS
from tools.tiny import common
from tools.tiny import llama2_7b_lora_text as text

SHIPPED = common.CASES / "llama2_7b_lora" / "tiny"
PIECES, LENGTH = 512, 128
MODEL: Dict[str, Any] = {"layers": 2, "dim": 64, "heads": 4, "ffn": 128, "initializer_range": 0.06}
TRAINING: Dict[str, Any] = {"seed": 5, "steps": 600, "batch": 16, "learning_rate": 3e-3, "warmup": 50}


def files() -> Dict[str, str]:
    """samsum's two files and MMLU's two folders."""
    contents = {}
    for split in text.DIALOGUES:
        lines = [json.dumps(entry) for entry in text.dialogues(split)]
        joined = ",\n".join(lines)
        contents[f"samsum_dataset/{split}.json"] = f"[\n{joined}\n]\n"
    for part in ("dev", "test"):
        for subject, rows in text.examination(part):
            table = io.StringIO()
            csv.writer(table, lineterminator="\n").writerows(rows)
            contents[f"mmlu/{part}/{subject}_{part}.csv"] = table.getvalue()
    return contents


def vocabulary_lines() -> List[str]:
    """What the vocabulary is trained on: each place often enough to become a piece of its own."""
    lines: List[str] = []
    for words in itertools.islice(text.generic(text.SEED), 3000):
        lines += [line for line in words.split("\n") if line]
    for place in text.PLACES:
        lines += [f"the {place}."] * 400
    return lines


def stream(vocabulary: MmluVocabulary, seed: int) -> Iterator[List[int]]:
    """Blocks of LENGTH tokens of generic text, without end."""
    rest: List[int] = []
    for words in text.generic(seed):
        rest += [BOS, *vocabulary.encode(words), EOS]
        while len(rest) >= LENGTH:
            yield rest[:LENGTH]
            rest = rest[LENGTH:]


def batches(vocabulary: MmluVocabulary) -> Iterator[Any]:
    """Batches of blocks, which are their own labels."""
    import torch

    blocks = stream(vocabulary, TRAINING["seed"])
    while True:
        tokens = torch.tensor(list(itertools.islice(blocks, TRAINING["batch"])))
        yield tokens, tokens


def settings() -> Dict[str, Any]:
    """What decides the vocabulary and the weights, beside the text."""
    return {"pieces": PIECES, "sequence_length": LENGTH, "model": MODEL, "training": TRAINING}


def make(folder: Path) -> None:
    """Make everything in an empty folder."""
    import sentencepiece
    import torch
    import transformers

    for place in ("samsum_dataset", "mmlu/dev", "mmlu/test", "weights"):
        (folder / place).mkdir(parents=True)
    common.write(files(), folder)
    common.write_sentencepiece(folder / "tokenizer.model", vocabulary_lines(), PIECES)
    section = dict(MODEL, name="llama2-tiny", kv_heads=MODEL["heads"], vocab_size=PIECES, positions=LENGTH)
    section.update(norm_eps=1e-5, rope_theta=10000.0)
    vocabulary = MmluVocabulary(str(folder / "tokenizer.model"), PIECES)
    model = common.train_llama(section, TRAINING, batches(vocabulary))
    common.write_llama_weights(folder / "weights", "llama2-7b-lora", model, section, torch.float16)
    common.write_provenance(folder, Path(__file__).name, settings(), sentencepiece, torch, transformers)


def check() -> List[str]:
    """What differs between the shipped files, their provenance and this script."""
    return common.changed(SHIPPED, settings()) + common.differing(files(), SHIPPED)
