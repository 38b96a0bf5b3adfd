"""Makes the tiny set of Llama2-7B LoRA: text, vocabulary and a base model trained on text of the same form.

    python tests/make_tiny_lora.py --check        # the shipped files are those of provenance.json and of this script
    python tests/make_tiny_lora.py --out FOLDER   # all of it, in about two minutes of one processor

The text is the same everywhere, the vocabulary with one release of sentencepiece, the weights on one kind of
processor with one release of torch; provenance.json has the releases and the sums of what is shipped.
"""

import argparse
import csv
import hashlib
import io
import itertools
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import tiny_lora_text as text
from flagbench_cases.cases.llama2_7b_lora.tokens import BOS, EOS, Vocabulary

SHIPPED = Path(__file__).parents[1] / "entrypoints" / "flagbench_cases" / "cases" / "llama2_7b_lora" / "tiny"
PIECES, LENGTH = 512, 128
MODEL = {"layers": 2, "dim": 64, "heads": 4, "ffn": 128, "initializer_range": 0.06}
TRAINING = {"seed": 5, "steps": 600, "batch": 16, "learning_rate": 3e-3, "warmup": 50}


def write_text(folder: Path) -> None:
    """samsum's two files and MMLU's two folders."""
    place = folder / "samsum_dataset"
    place.mkdir(parents=True)
    for split in text.DIALOGUES:
        lines = [json.dumps(entry) for entry in text.dialogues(split)]
        (place / (split + ".json")).write_text("[\n%s\n]\n" % ",\n".join(lines), encoding="utf-8")
    for part in ("dev", "test"):
        place = folder / "mmlu" / part
        place.mkdir(parents=True)
        for subject, rows in text.examination(part):
            with open(place / ("%s_%s.csv" % (subject, part)), "w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)


def write_vocabulary(folder: Path) -> None:
    """A sentencepiece model with Llama's settings: byte-pair merges, bytes for what is unknown, no normalisation."""
    import sentencepiece

    model = io.BytesIO()  # given a file's name, it would write that name into the model
    texts = itertools.islice(text.generic(text.SEED), 3000)
    lines = [line for words in texts for line in words.split("\n") if line]
    # Each place often enough to become a piece of its own.
    lines += ["the %s." % place for place in text.PLACES for _ in range(400)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=PIECES,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        character_coverage=1.0,
        split_digits=True,
        num_threads=1,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())


def stream(vocabulary: Vocabulary, seed: int) -> Iterator[List[int]]:
    """Blocks of LENGTH tokens of generic text, without end."""
    rest: List[int] = []
    for words in text.generic(seed):
        rest += [BOS, *vocabulary.encode(words), EOS]
        while len(rest) >= LENGTH:
            yield rest[:LENGTH]
            rest = rest[LENGTH:]


def train_base(vocabulary: Vocabulary) -> Any:
    """The base model, transformers' LlamaForCausalLM, trained from random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(TRAINING["seed"])
    config = LlamaConfig(
        vocab_size=PIECES,
        hidden_size=MODEL["dim"],
        intermediate_size=MODEL["ffn"],
        num_hidden_layers=MODEL["layers"],
        num_attention_heads=MODEL["heads"],
        max_position_embeddings=LENGTH,
        rms_norm_eps=1e-5,
        initializer_range=MODEL["initializer_range"],
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    model, steps, rate = LlamaForCausalLM(config), TRAINING["steps"], TRAINING["learning_rate"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    blocks = stream(vocabulary, TRAINING["seed"])
    for step in range(steps):
        tokens = torch.tensor(list(itertools.islice(blocks, TRAINING["batch"])))
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / TRAINING["warmup"]) * (0.05 + 0.95 * cosine)
        optimizer.step()
        if step % 50 == 49:
            print("step %d of %d: loss %.4f" % (step + 1, steps, loss.item()), file=sys.stderr)
    return model


def write_weights(folder: Path, model: Any) -> None:
    """The weights in fp16, prepared as every checkpoint is: through a Hugging Face folder."""
    import torch
    from safetensors.torch import save_file

    from flagbench_cases.prepare.llama import convert
    from flagbench_cases.prepare.writer import Writer

    section = dict(MODEL, name="llama2-tiny", kv_heads=MODEL["heads"], vocab_size=PIECES, positions=LENGTH)
    section.update(norm_eps=1e-5, rope_theta=10000.0)
    with tempfile.TemporaryDirectory() as source:
        state = {name: tensor.detach().to(torch.float16) for name, tensor in model.state_dict().items()}
        save_file(state, str(Path(source) / "model.safetensors"))
        (Path(source) / "config.json").write_text(json.dumps(convert.config_of(section)), encoding="utf-8")
        folder.mkdir()
        # Nothing finishes it, so there is no prepared.json: the shipped files have their sums in provenance.json.
        writer = Writer(str(folder), "llama2-7b-lora", "weights", None, None)
        convert.convert(source, section, writer, lambda *_: None)


def sums(folder: Path) -> Dict[str, str]:
    """sha256 of every data file below a folder, by its path in it."""
    kinds = (".json", ".csv", ".model", ".safetensors")
    files = [f for f in sorted(folder.rglob("*")) if f.suffix in kinds and f.name != "provenance.json"]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def settings() -> Dict[str, Any]:
    """What decides the vocabulary and the weights, beside the text."""
    return {"pieces": PIECES, "sequence_length": LENGTH, "model": MODEL, "training": TRAINING}


def make(folder: Path) -> None:
    """Everything, into a folder that is not there yet."""
    import sentencepiece
    import torch
    import transformers

    write_text(folder)
    write_vocabulary(folder)
    vocabulary = Vocabulary(str(folder / "tokenizer.model"), PIECES)
    write_weights(folder / "weights", train_base(vocabulary))
    libraries = {m.__name__: m.__version__ for m in (sentencepiece, torch, transformers)}
    content = {"script": "tests/make_tiny_lora.py", **settings(), "libraries": libraries, "sha256": sums(folder)}
    (folder / "provenance.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def differences() -> List[str]:
    """Of the shipped files, those that are not what provenance.json or this script says."""
    said = json.loads((SHIPPED / "provenance.json").read_text(encoding="utf-8"))
    found = [name for name, value in settings().items() if said[name] != json.loads(json.dumps(value))]
    shipped = sums(SHIPPED)
    found += [name for name in sorted({*shipped, *said["sha256"]}) if shipped.get(name) != said["sha256"].get(name)]
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder) / "text")
        written = sums(Path(folder) / "text")
    return found + [name for name, value in written.items() if shipped.get(name) != value]


def main(arguments: Optional[List[str]] = None) -> int:
    """Make the set, or check the shipped one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="whether the shipped files are those this writes")
    action.add_argument("--out", type=Path, help="a folder to write them to")
    options = parser.parse_args(arguments)
    if options.check:
        wrong = differences()
        print("\n".join(wrong) or "the shipped files are those of provenance.json", file=sys.stderr)
        return 1 if wrong else 0
    if options.out.exists():
        parser.error("%s is there already" % options.out)
    make(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
