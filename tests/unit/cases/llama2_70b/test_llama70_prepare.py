"""`flagbench prepare llama2-70b`: text becomes an indexed dataset, a published one is checked and copied."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flagbench_cases.cases.llama2_7b_lora.data import TINY
from flagbench_cases.cases.llama2_70b import data, indexed, prepare
from flagbench_cases.prepare import prepared_folder
from flagbench_cases.prepare.llama.vocabulary import BOS, EOS, Vocabulary
from flagbench_cases.prepare.prepared_folder import Verification
from flagbench_cases.shared.errors import DataError, UsageError
from llama_vocabulary import padded_vocabulary
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

MODEL, PIECES = os.path.join(TINY, "tokenizer.model"), 512
TEXTS = ["Which way is the barn?", "", "Zwei Zeilen\nund ein ü, 牛, \U0001f600"]
SHIPPED = [Path(data.TINY) / (indexed.STEM + end) for end in indexed.ENDINGS]


def quiet(what: str, done: int, of: int) -> None:
    """A report that nobody reads."""


def make(
    out: Path, source: Path, vocabulary: str | None = MODEL, pieces: int = PIECES, report: Any = quiet
) -> prepared_folder.PreparedFolder:
    """Prepare a data folder, and open it with all its checksums verified."""
    with prepared_folder.writing(str(out), prepare.CASE, "data", prepare.LICENCES["data"]) as writer:
        prepare.prepare_data(str(source), vocabulary, {"model": {"vocab_size": pieces}}, writer, report)
    return prepared_folder.open_folder(
        str(out), prepare.CASE, "data", (indexed.FORMAT,), verify=Verification.CHECKSUMS
    )


def lines(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"text": text, "meta": {}}) + "\n" for text in texts), encoding="utf-8")
    return path


def tokens_of(folder: str) -> list[list[int]]:
    """The documents of a prepared folder."""
    prefix = os.path.join(folder, indexed.STEM)
    index = indexed.read_index(prefix)
    tokens = np.fromfile(prefix + ".bin", index.dtype)
    return [part.tolist() for part in np.split(tokens, np.cumsum(index.lengths)[:-1])]


def refused(tmp_path: Path, source: Path, *named: Any, kind: type[Exception] = DataError, **options: Any) -> None:
    """The source is refused, and no folder is left."""
    with refuses(kind, *named):
        make(tmp_path / "out", source, **options)
    assert not (tmp_path / "out" / "data").exists()


# Text


def test_a_document_is_a_text_between_bos_and_eos(megatron: None, tmp_path: Path) -> None:
    made = make(tmp_path / "out", lines(tmp_path / "text.jsonl", *TEXTS))
    vocabulary = Vocabulary(MODEL, PIECES)
    wanted = [[BOS, *vocabulary.encode(text), EOS] for text in TEXTS]
    assert tokens_of(made.folder) == wanted
    assert wanted[1] == [1, 2]
    assert made.facts["documents"] == 3
    assert made.facts["tokens"] == sum(map(len, wanted))
    assert made.facts["vocabulary"] == {"llama2": False, "sha256": vocabulary.sha256}
    assert [source["name"] for source in made.sources] == ["text.jsonl", "tokenizer.model"]
    assert made.licence == prepare.LICENCES["data"]


@pytest.mark.parametrize(("pieces", "dtype"), [(65499, np.uint16), (65500, np.int32)])
def test_ids_are_of_the_type_that_megatron_chooses(megatron: None, tmp_path: Path, pieces: int, dtype: Any) -> None:
    vocabulary = padded_vocabulary(MODEL, tmp_path / "tokenizer.model", pieces)
    made = make(tmp_path / "out", lines(tmp_path / "text.jsonl", *TEXTS), vocabulary, pieces)
    assert indexed.read_index(os.path.join(made.folder, indexed.STEM)).dtype == np.dtype(dtype)
    assert tokens_of(made.folder)[0] == [BOS, *Vocabulary(MODEL, PIECES).encode(TEXTS[0]), EOS]


def test_text_needs_a_vocabulary(tmp_path: Path) -> None:
    refused(tmp_path, lines(tmp_path / "text.jsonl", "a"), "vocabulary", kind=UsageError, vocabulary=None)


def test_a_line_without_a_text(megatron: None, tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"content": "b"}\n')
    refused(tmp_path, path, path, ":2 ")


# An indexed dataset


def test_a_published_pair_is_copied(tmp_path: Path) -> None:
    seen: list[Any] = []
    made = make(tmp_path / "out", Path(data.TINY), None, 448, lambda what, *at: seen.append(at))
    for path in SHIPPED:
        assert Path(made.folder, path.name).read_bytes() == path.read_bytes()
    index = indexed.read_index(str(Path(data.TINY) / indexed.STEM))
    assert (made.facts["tokens"], made.facts["documents"]) == (index.tokens, 1200)
    assert [source["name"] for source in made.sources] == [path.name for path in SHIPPED]
    size = sum(path.stat().st_size for path in SHIPPED)
    assert (size, size) in seen


def test_a_pair_of_another_name_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in SHIPPED:
        shutil.copy(path, source / ("wudao_llama3bpe_content_document" + path.suffix))
    made = make(tmp_path / "out", source, None, 448)
    assert [Path(made.folder, path.name).read_bytes() for path in SHIPPED] == [path.read_bytes() for path in SHIPPED]


@pytest.mark.parametrize("end", indexed.ENDINGS)
def test_half_a_pair(tmp_path: Path, end: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in SHIPPED:
        if path.suffix != end:
            shutil.copy(path, source)
    refused(tmp_path, source, source / (indexed.STEM + end), vocabulary=None, pieces=448)
