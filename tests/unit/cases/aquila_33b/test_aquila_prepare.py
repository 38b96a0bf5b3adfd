"""`flagbench prepare aquila-33b`: where the files may be, and the folders that a run reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from flagbench_cases.cases.aquila_33b import prepare, sentences
from flagbench_cases.cases.aquila_33b.tokens import FILES, Tokeniser
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.llama import convert, load, megatron, weights_format
from flagbench_cases.shared.errors import UsageError
from unit.cases.aquila_33b import aquila_vocabulary
from unit.cases.prepare.megatron_checkpoint import ROWS, SECTION, save, split, state
from unit.cases.prepare.pickled import CURRENT_TORCH
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

DATA, MODEL = {"sequence_length": 16}, {"vocab_size": aquila_vocabulary.SIZE}
TEXTS = ["hello the", "abc"]
ZEROS = torch.zeros(ROWS - SECTION["vocab_size"], SECTION["dim"])


def quiet(what: str, done: int, of: int) -> None:
    """A report that nobody reads."""


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    return aquila_vocabulary.write(tmp_path / "vocabulary")


def texts(path: Path, count: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:count]), encoding="utf-8")
    return path


def make_data(out: Path, source: Path, vocabulary: Path | None) -> sentences.Loaded:
    """Prepare a data folder, and read it as a run does."""
    folder = None if vocabulary is None else str(vocabulary)
    with prepared_folder.writing(str(out), prepare.CASE, "data", prepare.LICENCES["data"]) as writer:
        prepare.tokenise_data(str(source), folder, DATA, MODEL, writer, quiet)
    return sentences.load({"source": "files", **DATA}, MODEL, str(out), 0)


def make_weights(out: Path, source: Path) -> prepared_folder.PreparedFolder:
    with prepared_folder.writing(str(out), prepare.CASE, "weights", prepare.LICENCES["weights"]) as writer:
        prepare.convert_weights(str(source), SECTION, writer, quiet)
    return prepared_folder.open_folder(str(out), prepare.CASE, "weights", (weights_format.FORMAT,), thorough=True)


# data


@pytest.mark.parametrize("place", ["lambada_test.jsonl", "data/lambada_test_bak.jsonl", "any.name"])
def test_the_texts_are_found(tmp_path: Path, vocabulary: Path, place: str) -> None:
    path = texts(tmp_path / "source" / place)
    found = make_data(tmp_path / "out", path if place == "any.name" else tmp_path / "source", vocabulary)
    expected = sentences.tokenise(str(path), Tokeniser(str(vocabulary), MODEL["vocab_size"]), 16)
    assert (found.sentences.digest(), found.condition) == (expected.digest(), "files")
    made = prepared_folder.open_folder(str(tmp_path / "out"), prepare.CASE, "data", thorough=True)
    assert [source["name"] for source in made.sources] == [path.name, *FILES]
    assert made.licence == prepare.LICENCES["data"]


@pytest.mark.parametrize("inner", ["data", ""])
def test_the_publishers_file_comes_first(tmp_path: Path, inner: str) -> None:
    expected = texts(tmp_path / inner / "lambada_test_bak.jsonl")
    texts(tmp_path / "lambada_test.jsonl", 1)
    assert Path(prepare.find_texts(str(tmp_path))) == expected


def test_a_vocabulary_below_the_folder(tmp_path: Path, vocabulary: Path) -> None:
    shutil.move(str(vocabulary), str(tmp_path / "aquila" / "tokenizer"))
    found = make_data(tmp_path / "out", texts(tmp_path / "lambada_test.jsonl"), tmp_path / "aquila")
    assert len(found.sentences) == 2


def test_without_a_vocabulary(tmp_path: Path) -> None:
    with refuses(UsageError, "vocabulary"):
        make_data(tmp_path / "out", texts(tmp_path / "lambada_test.jsonl"), None)
    assert not (tmp_path / "out" / "data").exists()


# weights


@CURRENT_TORCH
@pytest.mark.parametrize("place", ["", "ckpts"])
def test_the_published_layout(tmp_path: Path, place: str) -> None:
    save(tmp_path / "source" / place, split(state(), 2, ZEROS))
    made = make_weights(tmp_path / "out", tmp_path / "source")
    assert (made.facts["vocabulary_padding"], made.facts["tensor_parallel"]) == ("zeros", 2)
    assert made.sources[0]["name"] == megatron.TRACKER
    weights, _ = load.open_prepared(str(tmp_path / "out"), prepare.CASE, SECTION)
    assert {name: load.whole(part).tolist() for name, part in weights.read(weights.names)} == {
        name: tensor.tolist() for name, tensor in state().items()
    }


def hugging_face(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    content = {**convert.config_of(SECTION), "architectures": ["AquilaForCausalLM"], **config}
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    save_file(state(), str(folder / "model.safetensors"))
    return folder


@pytest.mark.parametrize("model_type", ["aquila", "llama"])
def test_a_hugging_face_folder(tmp_path: Path, model_type: str) -> None:
    made = make_weights(tmp_path / "out", hugging_face(tmp_path / "source", model_type=model_type))
    assert made.facts["vocabulary_padding"] == "none"
    weights, _ = load.open_prepared(str(tmp_path / "out"), prepare.CASE, SECTION)
    assert all(torch.equal(load.whole(part), state()[name]) for name, part in weights.read(weights.names))
    assert weights.padding() is None


# the reference preset


@CURRENT_TORCH
def test_the_case_prepares_for_its_reference_preset(
    tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = {"model": {**SECTION, "vocab_size": aquila_vocabulary.SIZE}, "data": DATA}
    asked = []

    def load_case(name: str) -> dict[str, Any]:
        asked.append(name)
        return {"presets": {"reference": preset}}

    monkeypatch.setattr(prepare, "load_case", load_case)
    with prepared_folder.writing(str(tmp_path / "out"), prepare.CASE, "data") as writer:
        prepare.prepare_data(str(texts(tmp_path / "a.jsonl")), str(vocabulary), writer, quiet)
    source = save(tmp_path / "source", split(state(section=preset["model"]), 1, section=preset["model"]))
    with prepared_folder.writing(str(tmp_path / "out"), prepare.CASE, "weights") as writer:
        prepare.prepare_weights(str(source), writer, quiet)
    assert asked == ["aquila-33b", "aquila-33b"]
    load.open_prepared(str(tmp_path / "out"), prepare.CASE, preset["model"])
