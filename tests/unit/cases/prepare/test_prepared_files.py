"""Sources of prepared folders: what is no file is refused before it is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.cases.llama2_7b_lora import mmlu, samsum
from flagbench_cases.cases.llama2_7b_lora.mmlu import MmluVocabulary
from flagbench_cases.prepare import json_lines, weights, wordpiece
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import sum_of
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image


@pytest.mark.parametrize(
    "read",
    [
        sum_of,
        lambda path: wordpiece.read_vocabulary(path, ()),
        lambda path: list(json_lines.objects(path)),
        samsum.read_pairs,
        mmlu.read_rows,
        lambda path: MmluVocabulary(path, 512),
        weights.read_json,
    ],
)
def test_a_pipe_is_refused_by_every_reader(tmp_path: Path, read: Callable[[str], Any]) -> None:
    """Its opening would wait for ever for somebody to write."""
    os.mkfifo(tmp_path / "pipe")
    with refuses(DataError, tmp_path / "pipe"):
        read(str(tmp_path / "pipe"))
