"""Makes the tiny set of Llama2-70B: short stories as an indexed dataset of Megatron.

    python tests/make_tiny_llama2_70b.py --check        # the shipped files are those of provenance.json
    python tests/make_tiny_llama2_70b.py --out FOLDER   # both files, in seconds

The stories are the same everywhere, the vocabulary and with it the tokens with one release of sentencepiece;
provenance.json has it and the sums of what is shipped.
"""

import hashlib
import io
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Dict, List

import tiny_sets
from flagbench_cases.cases.llama2_70b import indexed, prepare
from flagbench_cases.prepare.writer import Writer
from flagbench_cases.shared.config import load_case
from make_tiny_aquila import story

SHIPPED = Path(__file__).parents[1] / "entrypoints" / "flagbench_cases" / "cases" / "llama2_70b" / "tiny"
STORIES, SEED = 1200, 21


def write_text(path: Path) -> None:
    """JSON lines with `text`."""
    draw = random.Random(SEED)
    lines = [json.dumps({"text": story(draw) + "."}) for _ in range(STORIES)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_vocabulary(path: Path, pieces: int) -> None:
    """A sentencepiece model with Llama's settings."""
    import sentencepiece

    model, draw = io.BytesIO(), random.Random(SEED + 1)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(story(draw) for _ in range(2000)),
        model_writer=model,
        model_type="bpe",
        vocab_size=pieces,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        character_coverage=1.0,
        split_digits=True,
        num_threads=1,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())


def make(folder: Path) -> None:
    """Make both files in an empty folder, by the code of `flagbench prepare`."""
    import sentencepiece

    pieces = load_case("llama2-70b")["presets"]["tiny"]["model"]["vocab_size"]
    with tempfile.TemporaryDirectory() as place:
        text, vocabulary, made = Path(place, "stories.jsonl"), Path(place, "tokenizer.model"), Path(place, "made")
        write_text(text)
        write_vocabulary(vocabulary, pieces)
        made.mkdir()
        writer = Writer(str(made), "llama2-70b", "data", None, None)
        prepare.make(str(text), str(vocabulary), pieces, writer, lambda *_: None)
        for file in made.iterdir():
            shutil.copyfile(file, folder / file.name)
    provenance = {
        "script": "tests/make_tiny_llama2_70b.py",
        "stories": STORIES,
        "pieces": pieces,
        "libraries": {"sentencepiece": sentencepiece.__version__},
        "sha256": sums(folder),
    }
    (folder / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


def sums(folder: Path) -> Dict[str, str]:
    """sha256 of both files of a folder."""
    names = [indexed.STEM + end for end in indexed.ENDS]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def check() -> List[str]:
    """The shipped files that differ from their provenance."""
    known = json.loads((SHIPPED / "provenance.json").read_text(encoding="utf-8"))
    return [name for name, value in sums(SHIPPED).items() if known["sha256"].get(name) != value]


if __name__ == "__main__":
    sys.exit(tiny_sets.main(__doc__.split("\n")[0], make, check))
