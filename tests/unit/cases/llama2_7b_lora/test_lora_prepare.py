"""Preparing Llama2-7B LoRA's data: vocabulary, samsum's files, and the folder a run then reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from flagbench_cases.cases.llama2_7b_lora import blocks, data, prepare, samsum
from flagbench_cases.cases.llama2_7b_lora.mmlu import MmluVocabulary
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.prepared_folder import Verification
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.manifests import load_case
from llama_vocabulary import padded_vocabulary
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

TINY = Path(data.TINY)
MODEL = str(TINY / "tokenizer.model")
DATA, SECTION = {"sequence_length": 128, "shots": 5}, {"vocab_size": 512}
PRESET = {"data": DATA, "model": SECTION}


def quiet(what: str, done: int, of: int) -> None:
    """A report that nobody reads."""


def make(out: Path, source: Path = TINY, vocabulary: str | None = MODEL) -> str:
    """Prepare a data folder with the tiny preset's sizes; returns OUT."""
    with prepared_folder.writing(str(out), prepare.CASE, "data", prepare.LICENCES["data"]) as writer:
        prepare.prepare_data(str(source), vocabulary, PRESET, writer, quiet)
    return str(out)


def sets(folder: str | None, length: int = 128, pieces: int = 512) -> data.Sets:
    """A run's sets of a prepared folder."""
    return data.load({"source": "files", "sequence_length": length, "shots": 5}, {"vocab_size": pieces}, folder, 0)


def test_blocks_are_the_concatenated_prompts_cut(tmp_path: Path) -> None:
    pairs = [samsum.Pair(f"Anna: {n}\nBen: no", f"Anna counts {n}.") for n in range(20)]
    vocabulary = MmluVocabulary(MODEL, 512)
    made = samsum.cut_into_blocks("train.json", pairs, vocabulary, 64, quiet)
    stream: list[int] = []
    for dialogue, summary in pairs:
        text = "Summarize this dialog:\n" + dialogue + "\n---\nSummary:\n" + summary
        stream += [1, *vocabulary.encode(text), 2]
    count = len(stream) // 64
    assert made.blocks.tolist() == np.array(stream[: count * 64]).reshape(count, 64).tolist()
    assert (made.dialogues, made.tokens) == (20, len(stream))


def test_too_little_text_for_a_block() -> None:
    with refuses(DataError, "train.json", 512):
        samsum.cut_into_blocks("train.json", [samsum.Pair("hi", "hi")], MmluVocabulary(MODEL, 512), 512, quiet)


@pytest.mark.parametrize(
    ("content", "entry"),
    [
        *((content, "") for content in (b"", b'[{"id": "1"', b"[" * 100000, b"{}", b"[]", b'[{"dialogue": "\xff"}]')),
        (b'[{"dialogue": "a", "summary": "b"}, {"dialogue": "a"}]', ": entry 2"),
        (b'[{"dialogue": "a", "summary": null}]', ": entry 1"),
        (b'[{"dialogue": "a", "summary": "\\ud83d"}]', ": entry 1"),
    ],
)
def test_a_bad_file_is_refused_with_its_entry(tmp_path: Path, content: bytes, entry: str) -> None:
    (tmp_path / "train.json").write_bytes(content)
    with refuses(DataError, "train.json" + entry):
        samsum.read_pairs(str(tmp_path / "train.json"))


def test_the_archive_must_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "samsum_dataset").mkdir()
    (tmp_path / "samsum_dataset" / "corpus.7z").write_bytes(b"7z")
    with refuses(DataError, "corpus.7z") as caught:
        samsum.find_folder(str(tmp_path))
    assert "7z x -o" in caught.value.remedy


def test_no_samsum_and_half_a_samsum(tmp_path: Path) -> None:
    file = Path(__file__)
    for folder, named in ((tmp_path, "train.json"), (tmp_path / "nowhere", "nowhere"), (file, str(file))):
        with refuses(DataError, named):
            samsum.find_folder(str(folder))
    source = shutil.copytree(str(TINY), str(tmp_path / "half"))
    (Path(source) / "samsum_dataset" / "val.json").unlink()
    with refuses(DataError, "val.json"):
        make(tmp_path / "out", Path(source))
    assert not (tmp_path / "out" / "data").exists()


def test_a_prepared_folder_gives_what_the_tiny_set_gives(tmp_path: Path) -> None:
    found = sets(make(tmp_path / "out"))
    shipped = data.load({"source": "shipped", **DATA}, SECTION, None, 0)
    assert found.train.digest() == shipped.train.digest()
    assert found.validation.digest() == shipped.validation.digest()
    assert found.mmlu.digest() == shipped.mmlu.digest()
    assert found.mmlu.answer_tokens.tolist() == shipped.mmlu.answer_tokens.tolist()
    assert (found.condition, found.mmlu_condition) == ("files", "3 subjects, 96 questions, 5-shot cut to 128")
    assert found.facts == shipped.facts
    place = prepared_folder.open_folder(
        str(tmp_path / "out"), prepare.CASE, "data", (blocks.FORMAT,), verify=Verification.CHECKSUMS
    )
    assert [source["name"] for source in place.sources[:3]] == ["tokenizer.model", "train.json", "val.json"]
    assert len(place.sources) == 3 + 2 * 3
    assert isinstance(found.train.blocks, np.memmap)


def test_published_counts_make_the_published_conditions() -> None:
    facts = {
        "sequence_length": 512,
        "train": {"dialogues": 14732},
        "validation": {"dialogues": 818},
        "vocabulary": {"llama2": True},
        "mmlu": {"subjects": ["x"] * 57, "questions": 14042, "shots": 5},
    }
    assert blocks.conditions(facts) == ("samsum", "57 subjects, 5-shot cut to 512")
    facts["vocabulary"] = {"llama2": False}
    assert blocks.conditions(facts)[0] == "files"


def test_another_length_and_a_smaller_model(tmp_path: Path) -> None:
    out = make(tmp_path / "out")
    with refuses(DataError, 128, 512):
        sets(out, length=512)
    with refuses(DataError, tmp_path / "out" / "data", 300):
        sets(out, pieces=300)


def test_the_reference_preset(tmp_path: Path) -> None:
    vocabulary = padded_vocabulary(MODEL, tmp_path / "tokenizer.model", 32000)
    phases: dict[str, tuple[int, int]] = {}
    preset = load_case(prepare.CASE)["presets"]["reference"]
    with prepared_folder.writing(str(tmp_path / "out"), prepare.CASE, "data") as writer:
        prepare.prepare_data(str(TINY), vocabulary, preset, writer, lambda what, *at: phases.update({what: at}))
    found = sets(str(tmp_path / "out"), length=512, pieces=32000)
    assert found.mmlu_condition == "3 subjects, 96 questions, 5-shot cut to 512"
    assert found.facts["mmlu"]["mean_shots"] == 5.0
    assert found.train[0].shape == (512,)
    assert phases == {
        "tokenise train.json": (800, 800),
        "tokenise val.json": (80, 80),
        "tokenise MMLU": (3, 3),
    }
