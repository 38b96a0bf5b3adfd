"""The tiny set of Aquila-33B: sentences, a vocabulary in the published format, and a model trained on them.

The sentences are the same everywhere, the vocabulary with one release of tokenizers, the weights on one kind of
processor with one release of torch; provenance.json has the releases and the checksums of what is shipped.
"""

import json
import random
from pathlib import Path
from typing import Any, Dict, Iterator, List

from flagbench_cases.cases.aquila_33b.tokens import FILES, Tokeniser
from flagbench_cases.shared.manifests import load_case
from tools.tiny import common

SHIPPED = common.CASES / "aquila_33b" / "tiny"
SENTENCES, SEED = 64, 11
SPECIAL = ["<|startofpiece|>", "<|endofpiece|>", "<|LDWANG|>", "[MASK]", "[gMASK]", "[sMASK]", "[CLS]", "</s>"]
TRAINING: Dict[str, Any] = {"seed": 3, "steps": 700, "batch": 16, "learning_rate": 4e-3, "warmup": 50}

NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Henry", "Ida", "Jonas", "Klara", "Leo"]
THINGS = ["lamp", "boat", "letter", "key", "ladder", "basket", "coat", "clock", "map", "bell", "rope", "cup"]
PLACES = ["harbour", "station", "garden", "mill", "bridge", "market", "tower", "barn"]
COLOURS = ["red", "blue", "green", "white", "black", "yellow"]


def story(draw: random.Random) -> str:
    """A passage whose last word was said before, as in LAMBADA."""
    (finder, companion), thing, place = draw.sample(NAMES, 2), draw.choice(THINGS), draw.choice(PLACES)
    colour = draw.choice(COLOURS)
    begin = draw.choice(
        [
            f"{finder} found a {colour} {thing} near the {place}.",
            f"At the {place}, {finder} was looking for a {colour} {thing}.",
            f"{finder} had left the {colour} {thing} at the {place}.",
        ]
    )
    middle = draw.choice(
        [
            f'"Is it yours?" asked {companion}.',
            f"{companion} came by and stopped.",
            f'In the evening {companion} said: "Show it to me."',
            f"Nobody but {companion} had seen it.",
        ]
    )
    end = draw.choice(
        [
            f"Then both walked back to the {place}",
            f"{companion} thanked {finder} and took the {thing}",
            f"The next day {companion} brought a rope, and {finder} brought the {thing}",
            f"It was getting dark, so {finder} went home with {companion}",
        ]
    )
    return " ".join([begin, middle, end])


def files() -> Dict[str, str]:
    """The sentences in LAMBADA's format: a JSON object with `text` on every line."""
    draw = random.Random(SEED)
    lines = [json.dumps({"text": story(draw)}) for _ in range(SENTENCES)]
    return {"sentences.jsonl": "\n".join(lines) + "\n"}


def write_vocabulary(folder: Path, size: int) -> None:
    """vocab.json with the token 0 of the published one, merges.txt and special_tokens.txt."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL),
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    draw = random.Random(SEED + 1)
    bpe.train_from_iterator((story(draw) for _ in range(2000)), trainer)
    model = json.loads(bpe.to_str())["model"]
    merges = []
    for pair in model["merges"]:
        # Newer releases of tokenizers write a pair as a list.
        merges.append(" ".join(pair) if isinstance(pair, list) else pair)
    (folder / FILES[0]).write_text(json.dumps(model["vocab"], ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / FILES[1]).write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    (folder / FILES[2]).write_text("\n".join(SPECIAL) + "\n", encoding="utf-8")


def batches(tokeniser: Tokeniser, length: int) -> Iterator[Any]:
    """Batches of sentences, padded with 0: tokens and labels, -100 for padding."""
    import torch

    draw = random.Random(TRAINING["seed"])
    while True:
        rows: List[List[int]] = []
        for _ in range(TRAINING["batch"]):
            rows.append([tokeniser.cls, *tokeniser.encode(story(draw)), tokeniser.eos][:length])
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
        yield tokens, labels


def sections() -> Dict[str, Any]:
    """The `model` and `data` sections of the tiny preset."""
    presets = load_case("aquila-33b")["presets"]
    return {name: {**presets["reference"][name], **presets["tiny"][name]} for name in ("model", "data")}


def settings() -> Dict[str, Any]:
    """What decides the vocabulary and the weights, beside the sentences."""
    return {"model": sections()["model"], "training": TRAINING}


def make(folder: Path) -> None:
    """Make everything in an empty folder."""
    import tokenizers
    import torch
    import transformers

    preset = sections()
    section = preset["model"]
    common.write(files(), folder)
    write_vocabulary(folder, section["vocab_size"])
    tokeniser = Tokeniser(str(folder), section["vocab_size"])
    model = common.train_llama(section, TRAINING, batches(tokeniser, preset["data"]["sequence_length"]))
    common.write_llama_weights(folder, "aquila-33b", model, section, torch.bfloat16)
    common.write_provenance(folder, Path(__file__).name, settings(), tokenizers, torch, transformers)


def check() -> List[str]:
    """What differs between the shipped files, their provenance and this script."""
    return common.changed(SHIPPED, settings()) + common.differing(files(), SHIPPED)
