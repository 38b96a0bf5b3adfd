"""Makes the tiny set of Llama2-70B: short stories as an indexed dataset of Megatron.

    python tests/make_tiny_llama2_70b.py --check        # the shipped files are those of provenance.json
    python tests/make_tiny_llama2_70b.py --out FOLDER   # both files, in seconds

The stories are the same everywhere, the vocabulary and with it the tokens with one release of sentencepiece;
provenance.json has it and the sums of what is shipped.
"""

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import tiny_sets
from flagbench_cases.cases.llama2_70b import prepare
from flagbench_cases.prepare.writer import Writer
from flagbench_cases.shared.config import load_case
from make_tiny_aquila import story

SHIPPED = tiny_sets.CASES / "llama2_70b" / "tiny"
STORIES, SEED = 1200, 21


def write_text(path: Path) -> None:
    """JSON lines with `text`."""
    draw = random.Random(SEED)
    lines = [json.dumps({"text": story(draw) + "."}) for _ in range(STORIES)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def settings() -> Dict[str, Any]:
    """What decides the files, beside the stories."""
    return {"stories": STORIES, "pieces": load_case("llama2-70b")["presets"]["tiny"]["model"]["vocab_size"]}


def make(folder: Path) -> None:
    """Make both files in an empty folder, by the code of `flagbench prepare`."""
    import sentencepiece

    draw, pieces = random.Random(SEED + 1), settings()["pieces"]
    with tempfile.TemporaryDirectory() as place:
        text, vocabulary = Path(place, "stories.jsonl"), Path(place, "tokenizer.model")
        write_text(text)
        tiny_sets.write_sentencepiece(vocabulary, (story(draw) for _ in range(2000)), pieces)
        writer = Writer(str(folder), "llama2-70b", "data", None, None)
        preset = {"model": {"vocab_size": pieces}}
        prepare.prepare_data(str(text), str(vocabulary), preset, writer, lambda *_: None)
    tiny_sets.write_provenance(folder, Path(__file__).name, settings(), sentencepiece)


def check() -> List[str]:
    """The settings and shipped files that differ from their provenance."""
    return tiny_sets.changed(SHIPPED, settings())


if __name__ == "__main__":
    sys.exit(tiny_sets.main(__doc__.split("\n")[0], make, check))
