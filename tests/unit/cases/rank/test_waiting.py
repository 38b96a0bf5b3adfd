"""A thread's processor time, from the kernel's own count."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench_cases.rank.waiting import ProcessorTime

pytestmark = pytest.mark.image


def test_what_was_used_since(tmp_path: Path) -> None:
    counts = tmp_path / "schedstat"
    counts.write_text("1000000000 250000000 17\n")
    processor = ProcessorTime(str(counts))
    counts.write_text("3500000000 1250000000 99\n")
    assert processor.seconds_since_start() == {"ran": 2.5, "waited": 1.0}


@pytest.mark.parametrize("text", [None, "", "1\n", "a b c\n"])
def test_a_kernel_that_does_not_count(tmp_path: Path, text: str) -> None:
    counts = tmp_path / "schedstat"
    if text is not None:
        counts.write_text(text)
    assert ProcessorTime(str(counts)).seconds_since_start() == {}
