"""The shell completes images, stacks, claims and records; where a setup is broken, it completes nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.manifests.lookup import image_names, resolve_image
from flagbench.records.store import Store, open_store
from unit.host.records.test_series import stored_series

Completed = Callable[[str], list[str]]


@pytest.fixture
def completed(flagbench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Completed:
    """What bash offers for the last word of a command line; a space at the end begins a word."""

    def run(line: str) -> list[str]:
        words = f"flagbench {line}"
        monkeypatch.setenv("_FLAGBENCH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        return flagbench("").out.split()  # type: ignore[no-any-return]

    return run


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("comp", ["compare"]),
        ("run distilbert:cp", ["distilbert:cpu"]),
        ("build glm:a100-cuda11.6", ["glm:a100-cuda11.6"]),
        ("plan llama2-70b:cp", ["llama2-70b:cpu"]),
        ("run glm:v", []),
        ("run serve-llama3.1-8b:c", ["serve-llama3.1-8b:cpu"]),
        ("verify last --claim distilbert/a100-2", ["distilbert/a100-2x8-fp32-bs96"]),
        ("reproduce distilbert/a100-2", ["distilbert/a100-2x8-fp32-bs96"]),
        ("reproduce llama2-7b-lora/a100-1x1-fp16-bs4 --on a100-cuda11.6", ["a100-cuda11.6"]),
        ("run x", []),
        ("reproduce x", []),
    ],
)
def test_a_name_of_the_catalog(completed: Completed, line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_a_broken_setup_completes_nothing(
    completed: Completed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(tmp_path))
    assert (completed("run d"), completed("verify last --claim d")) == ([], [])


def test_completion_knows_every_image_and_stack(completed: Completed) -> None:
    stacks = {*CATALOG.stacks, *CATALOG.devices, *(a for s in CATALOG.stacks.values() for a in s.aliases)}
    assert {*completed("reproduce x --on ")} == stacks
    images = {*completed("build ")}
    assert images >= {*image_names(CATALOG), "serve-llama3.1-8b:h100-sxm"}
    for image in images:
        resolve_image(image, CATALOG)


def test_every_claim_can_be_reproduced_by_its_completed_id(completed: Completed) -> None:
    assert completed("reproduce ") == [*CATALOG.claims]
    assert set(completed("reproduce glm/c500-")) == {"glm/c500-1x1-fp32", "glm/c500-1x8-fp32", "glm/c500-2x8-fp32"}


def test_records_and_series_to_verify(completed: Completed, store: Store) -> None:
    stored_series(store)
    assert completed("verify mi") == ["mine"]
    assert completed("verify record-mine-1") == ["record-mine-1"]


def test_a_record_of_the_store_that_is_meant(
    completed: Completed, store: Store, tmp_path: Path, make_record: Callable[..., bytes]
) -> None:
    for day, name in enumerate(("the-older-one", "the-newer-one"), 1):
        store.put(make_record(record_id=name, created_at=f"2026-01-0{day}T00:00:00Z"))
    open_store(str(tmp_path / "other")).put(make_record(record_id="the-other-one"))
    assert completed("results show ") == ["last", "the-newer-one", "the-older-one"]
    assert completed("compare last the-o") == ["the-older-one"]
    other = f"--store {tmp_path / 'other'}"
    for line in ("results show", "results rm", "compare", "verify"):
        assert completed(f"{line} {other} the-o") == ["the-other-one"]
    assert completed(f"verify {other} --baseline the-o") == ["the-other-one"]
    assert completed("results show --store s3://bucket ") == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("run distilbert:cp", {"cpu"}),
        ("run distil", {"distilbert", "distilbert:cpu"}),
        ("run distilbert:cpu --preset ", {"reference", "tiny"}),
        ("run nosuch:", set()),
    ],
)
def test_bash_gets_what_follows_a_colon(
    flagbench: Callable[..., Any], line: str, offered: set[str], tmp_path: Path
) -> None:
    command = tmp_path / "flagbench"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m flagbench "$@"\n')
    command.chmod(0o755)
    call = 'COMP_LINE="flagbench $1" COMP_POINT=$((10 + ${#1})); _flagbench_completion "$0"; echo "${COMPREPLY[*]}"'
    script = f"{flagbench('--show-completion bash').out}\n{call}"
    done = subprocess.run(["bash", "-c", script, str(command), line], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert found >= offered
    assert bool(found) is bool(offered)
