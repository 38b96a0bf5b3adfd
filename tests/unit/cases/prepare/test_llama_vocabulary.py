"""The vocabulary of Llama: ids are sentencepiece's own, and what is no vocabulary of the model's is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flagbench_cases.cases.llama2_7b_lora import data
from flagbench_cases.prepare.llama.vocabulary import BOS, EOS, Vocabulary
from flagbench_cases.shared.errors import DataError
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

MODEL = os.path.join(data.TINY, "tokenizer.model")


def test_ids_are_sentencepieces_own() -> None:
    import sentencepiece

    text = "Which way is the barn?\nAnswer: \u725b"
    vocabulary = Vocabulary(MODEL, 512)
    ids = vocabulary.encode(text)
    assert ids == sentencepiece.SentencePieceProcessor(model_file=MODEL).encode(text)
    assert not {BOS, EOS} & set(ids)
    assert vocabulary.is_llama2 is False


def test_a_vocabulary_of_another_size() -> None:
    with refuses(DataError, MODEL, 512, 32000):
        Vocabulary(MODEL, 32000)


@pytest.mark.parametrize("content", [None, b"", b"junk" * 99, Path(MODEL).read_bytes()[:3000]])
def test_what_is_no_vocabulary(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.model"
    if content is not None:
        path.write_bytes(content)
    with refuses(DataError, path):
        Vocabulary(str(path), 512)


def test_other_special_ids(tmp_path: Path) -> None:
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["A B C D which way is it", "where is the way to it"]),
        model_prefix=str(tmp_path / "t5"),
        vocab_size=300,
        byte_fallback=True,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "t5.model")).get_piece_size()
    with refuses(DataError, "t5.model", "2, -1, 1"):
        Vocabulary(str(tmp_path / "t5.model"), pieces)
