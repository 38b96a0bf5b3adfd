"""The tiny set of Llama2-70B: short stories as an indexed dataset of Megatron.

The stories are the same everywhere, the vocabulary and with it the tokens with one release of sentencepiece;
provenance.json has it and the checksums of what is shipped.
"""

import json
import random
import tempfile
from pathlib import Path
from typing import Any, Dict, List

from flagbench_cases.cases.llama2_70b import prepare
from flagbench_cases.prepare.writer import Writer
from flagbench_cases.shared.manifests import load_case
from tools.tiny import common
from tools.tiny.aquila_33b import story

SHIPPED = common.CASES / "llama2_70b" / "tiny"
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
        common.write_sentencepiece(vocabulary, (story(draw) for _ in range(2000)), pieces)
        writer = Writer(str(folder), "llama2-70b", "data", None, None)
        preset = {"model": {"vocab_size": pieces}}
        prepare.prepare_data(str(text), str(vocabulary), preset, writer, lambda *_: None)
    common.write_provenance(folder, Path(__file__).name, settings(), sentencepiece)


def check() -> List[str]:
    """The settings and shipped files that differ from their provenance."""
    return common.changed(SHIPPED, settings())
