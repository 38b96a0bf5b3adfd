"""Makes the tiny set of Aquila-33B: sentences, a vocabulary in the published format, and a model trained on them.

    python tests/make_tiny_aquila.py --check        # the shipped files are those of provenance.json and this script
    python tests/make_tiny_aquila.py --out FOLDER   # all of it, in about a minute of one processor

The sentences are the same everywhere, the vocabulary with one release of tokenizers, the weights on one kind of
processor with one release of torch; provenance.json has the releases and the sums of what is shipped.
"""

import hashlib
import json
import math
import random
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

import tiny_sets
from flagbench_cases.cases.aquila_33b.tokens import FILES, Tokeniser
from flagbench_cases.shared.config import load_case

SHIPPED = Path(__file__).parents[1] / "entrypoints" / "flagbench_cases" / "cases" / "aquila_33b" / "tiny"
SENTENCES, SEED = 64, 11
SPECIAL = ["<|startofpiece|>", "<|endofpiece|>", "<|LDWANG|>", "[MASK]", "[gMASK]", "[sMASK]", "[CLS]", "</s>"]
TRAINING = {"seed": 3, "steps": 700, "batch": 16, "learning_rate": 4e-3, "warmup": 50}

NAMES = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Henry", "Ida", "Jonas", "Klara", "Leo"]
THINGS = ["lamp", "boat", "letter", "key", "ladder", "basket", "coat", "clock", "map", "bell", "rope", "cup"]
PLACES = ["harbour", "station", "garden", "mill", "bridge", "market", "tower", "barn"]
COLOURS = ["red", "blue", "green", "white", "black", "yellow"]


def story(draw: random.Random) -> str:
    """A passage whose last word was said before, as in LAMBADA."""
    (one, other), thing, place = draw.sample(NAMES, 2), draw.choice(THINGS), draw.choice(PLACES)
    colour = draw.choice(COLOURS)
    begin = draw.choice(
        [
            "%s found a %s %s near the %s." % (one, colour, thing, place),
            "At the %s, %s was looking for a %s %s." % (place, one, colour, thing),
            "%s had left the %s %s at the %s." % (one, colour, thing, place),
        ]
    )
    middle = draw.choice(
        [
            '"Is it yours?" asked %s.' % other,
            "%s came by and stopped." % other,
            'In the evening %s said: "Show it to me."' % other,
            "Nobody but %s had seen it." % other,
        ]
    )
    end = draw.choice(
        [
            "Then both walked back to the %s" % place,
            "%s thanked %s and took the %s" % (other, one, thing),
            "The next day %s brought a rope, and %s brought the %s" % (other, one, thing),
            "It was getting dark, so %s went home with %s" % (one, other),
        ]
    )
    return " ".join([begin, middle, end])


def write_sentences(folder: Path) -> None:
    """LAMBADA's format: a JSON object with `text` on every line."""
    draw = random.Random(SEED)
    lines = [json.dumps({"text": story(draw)}) for _ in range(SENTENCES)]
    (folder / "sentences.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


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
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    (folder / FILES[0]).write_text(json.dumps(model["vocab"], ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / FILES[1]).write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    (folder / FILES[2]).write_text("\n".join(SPECIAL) + "\n", encoding="utf-8")


def batches(tokeniser: Tokeniser, length: int) -> Iterator[Any]:
    """Batches of sentences, padded with 0: tokens and labels, -100 for padding."""
    import torch

    draw = random.Random(TRAINING["seed"])
    while True:
        rows: List[List[int]] = []
        for _ in range(int(TRAINING["batch"])):
            rows.append([tokeniser.cls, *tokeniser.encode(story(draw)), tokeniser.eos][:length])
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
        yield tokens, labels


def train_model(tokeniser: Tokeniser, section: Dict[str, Any], length: int) -> Any:
    """transformers' LlamaForCausalLM, which is the same model, trained from random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(TRAINING["seed"])
    config = LlamaConfig(
        vocab_size=section["vocab_size"],
        hidden_size=section["dim"],
        intermediate_size=section["ffn"],
        num_hidden_layers=section["layers"],
        num_attention_heads=section["heads"],
        num_key_value_heads=section["kv_heads"],
        max_position_embeddings=section["positions"],
        rms_norm_eps=section["norm_eps"],
        initializer_range=0.06,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    model, steps, rate = LlamaForCausalLM(config), int(TRAINING["steps"]), TRAINING["learning_rate"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    source = batches(tokeniser, length)
    for step in range(steps):
        tokens, labels = next(source)
        loss = model(tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / TRAINING["warmup"]) * (0.05 + 0.95 * cosine)
        optimizer.step()
        if step % 50 == 49:
            print("step %d of %d: loss %.4f" % (step + 1, steps, loss.item()), file=sys.stderr)
    return model


def write_weights(folder: Path, model: Any, section: Dict[str, Any]) -> None:
    """The weights in bf16, prepared as every checkpoint is: through a Hugging Face folder."""
    import torch
    from safetensors.torch import save_file

    from flagbench_cases.prepare.llama import convert
    from flagbench_cases.prepare.writer import Writer

    with tempfile.TemporaryDirectory() as source:
        state = {name: tensor.detach().to(torch.bfloat16) for name, tensor in model.state_dict().items()}
        save_file(state, str(Path(source) / "model.safetensors"))
        (Path(source) / "config.json").write_text(json.dumps(convert.config_of(section)), encoding="utf-8")
        # Nothing finishes it, so there is no prepared.json: the shipped files have their sums in provenance.json.
        writer = Writer(str(folder), "aquila-33b", "weights", None, None)
        convert.convert(source, section, writer, lambda *_: None)


def sections() -> Dict[str, Any]:
    """The `model` and `data` sections of the tiny preset."""
    presets = load_case("aquila-33b")["presets"]
    return {name: {**presets["reference"][name], **presets["tiny"][name]} for name in ("model", "data")}


def sums(folder: Path) -> Dict[str, str]:
    """sha256 of every data file of a folder."""
    kinds = (".json", ".jsonl", ".txt", ".safetensors")
    files = [f for f in sorted(folder.iterdir()) if f.suffix in kinds and f.name != "provenance.json"]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def make(folder: Path) -> None:
    """Make everything in an empty folder."""
    import tokenizers
    import torch
    import transformers

    preset = sections()
    write_sentences(folder)
    write_vocabulary(folder, preset["model"]["vocab_size"])
    tokeniser = Tokeniser(str(folder), preset["model"]["vocab_size"])
    model = train_model(tokeniser, preset["model"], preset["data"]["sequence_length"])
    write_weights(folder, model, preset["model"])
    provenance = {
        "script": "tests/make_tiny_aquila.py",
        "model": preset["model"],
        "training": TRAINING,
        "libraries": {m.__name__: m.__version__ for m in (tokenizers, torch, transformers)},
        "sha256": sums(folder),
    }
    (folder / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


def check() -> List[str]:
    """What differs between the shipped files, their provenance and this script."""
    known = json.loads((SHIPPED / "provenance.json").read_text(encoding="utf-8"))
    wrong = [name for name, value in sums(SHIPPED).items() if known["sha256"].get(name) != value]
    wrong += sorted(set(known["sha256"]) - set(sums(SHIPPED)))
    if (known["model"], known["training"]) != (sections()["model"], TRAINING):
        wrong.append("provenance.json")
    with tempfile.TemporaryDirectory() as folder:
        write_sentences(Path(folder))
        if (Path(folder) / "sentences.jsonl").read_bytes() != (SHIPPED / "sentences.jsonl").read_bytes():
            wrong.append("sentences.jsonl")
    return wrong


if __name__ == "__main__":
    sys.exit(tiny_sets.main(__doc__.split("\n")[0], make, check))
