"""`flagbench prepare aquila-33b`: where the files may be, and the folders that a run reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from flagbench_cases.cases.aquila_33b import prepare, sentences
from flagbench_cases.cases.aquila_33b.tokens import FILES
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.llama import convert, load, megatron, weights_format
from flagbench_cases.prepare.prepared_folder import Verification
from flagbench_cases.shared.errors import UsageError
from unit.cases.aquila_33b import aquila_vocabulary
from unit.cases.prepare.megatron_checkpoint import ROWS, SECTION, save, split, state
from unit.cases.prepare.pickled import CURRENT_TORCH
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

PRESET = {"data": {"sequence_length": 16}, "model": {"vocab_size": aquila_vocabulary.SIZE}}
ZEROS = torch.zeros(ROWS - SECTION["vocab_size"], SECTION["dim"])


def quiet(what: str, done: int, of: int) -> None:
    """A report that nobody reads."""


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    return aquila_vocabulary.write(tmp_path / "vocabulary")


def texts(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in lines), encoding="utf-8")
    return path


def make_data(out: Path, source: Path, vocabulary: Path | None) -> sentences.Loaded:
    """Prepare a data folder, and read it as a run does."""
    folder = None if vocabulary is None else str(vocabulary)
    with prepared_folder.writing(str(out), prepare.CASE, "data", prepare.LICENCES["data"]) as writer:
        prepare.prepare_data(str(source), folder, PRESET, writer, quiet)
    return sentences.load({"source": "files", **PRESET["data"]}, PRESET["model"], str(out), 0)


def make_weights(out: Path, source: Path) -> prepared_folder.PreparedFolder:
    with prepared_folder.writing(str(out), prepare.CASE, "weights", prepare.LICENCES["weights"]) as writer:
        prepare.prepare_weights(str(source), {"model": SECTION}, writer, quiet)
    return prepared_folder.open_folder(
        str(out), prepare.CASE, "weights", (weights_format.FORMAT,), verify=Verification.CHECKSUMS
    )


def loaded(out: Path) -> dict[str, torch.Tensor]:
    """The tensors that a run reads."""
    weights, _ = load.open_prepared(str(out), prepare.CASE, SECTION)
    return {name: load.read_all(part) for name, part in weights.read(weights.names)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("place", ["lambada_test.jsonl", "data/lambada_test_bak.jsonl", "any.name"])
def test_the_texts_are_found(tmp_path: Path, vocabulary: Path, place: str) -> None:
    path = texts(tmp_path / "source" / place, "hello the", "abc")
    found = make_data(tmp_path / "out", path if place == "any.name" else tmp_path / "source", vocabulary)
    assert (found.sentences.lengths.tolist(), found.condition) == ([4, 4], "files")
    made = prepared_folder.open_folder(str(tmp_path / "out"), prepare.CASE, "data", verify=Verification.CHECKSUMS)
    assert [source["name"] for source in made.sources] == [path.name, *FILES]
    assert made.licence == prepare.LICENCES["data"]


@pytest.mark.parametrize("inner", ["data", ""])
def test_the_publishers_file_comes_first(tmp_path: Path, vocabulary: Path, inner: str) -> None:
    source = tmp_path / "source"
    texts(source / inner / "lambada_test_bak.jsonl", "hello the", "abc")
    texts(source / "lambada_test.jsonl", "abc")
    shutil.move(str(vocabulary), str(tmp_path / "aquila" / "tokenizer"))
    assert len(make_data(tmp_path / "out", source, tmp_path / "aquila").sentences) == 2


def test_without_a_vocabulary(tmp_path: Path) -> None:
    with refuses(UsageError, "vocabulary"):
        make_data(tmp_path / "out", texts(tmp_path / "lambada_test.jsonl", "abc"), None)
    assert not (tmp_path / "out" / "data").exists()


@CURRENT_TORCH
@pytest.mark.parametrize("place", ["", "ckpts"])
def test_the_published_layout(tmp_path: Path, place: str) -> None:
    save(tmp_path / "source" / place, split(state(), 2, ZEROS))
    made = make_weights(tmp_path / "out", tmp_path / "source")
    assert (made.facts["vocabulary_padding"], made.facts["tensor_parallel"]) == ("zeros", 2)
    assert made.sources[0]["name"] == megatron.TRACKER
    assert same(loaded(tmp_path / "out"), state())


@pytest.mark.parametrize("model_type", ["aquila", "llama"])
def test_a_hugging_face_folder(tmp_path: Path, model_type: str) -> None:
    content = {**convert.config_of(SECTION), "architectures": ["AquilaForCausalLM"], "model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    save_file(state(), str(tmp_path / "model.safetensors"))
    made = make_weights(tmp_path / "out", tmp_path)
    assert made.facts["vocabulary_padding"] == "none"
    assert same(loaded(tmp_path / "out"), state())
