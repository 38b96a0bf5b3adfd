"""Processor and memory figures from a recorded /proc."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flagbench_cases.telemetry.cpu import CpuProbe

pytestmark = pytest.mark.image

PAGE = os.sysconf("SC_PAGE_SIZE")


def process(proc: Path, pid: int, parent: int, rss_pages: int, name: str = "python", ticks: int = 0) -> None:
    """`ticks` of processor time, a quarter each as user, as system and of the two of its ended children."""
    (proc / str(pid)).mkdir(exist_ok=True)
    numbers = " ".join([*["0"] * 9, *[str(ticks // 4)] * 4, *["0"] * 6])
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {numbers} {rss_pages} 0")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "stat").write_text("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3 4 5 6 7 8\n")
    (proc / "loadavg").write_text("2.50 1.00 0.50 3/200 4242\n")
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\n")
    process(proc, 10, 1, 5)
    process(proc, 11, 10, 7, name="a) S 99 (b")
    process(proc, 12, 11, 11)
    process(proc, 13, 1, 1000)
    return proc


def probe(proc: Path, pid: int = 10) -> CpuProbe:
    return CpuProbe(pid, proc=str(proc), sys=str(proc.parent / "sys"))


def test_the_first_sample_has_no_utilisation(proc: Path) -> None:
    assert probe(proc).sample() == {
        "load1": 2.5,
        "mem_used_bytes": 600 * 1024,
        "mem_available_bytes": 400 * 1024,
        "rss_bytes": 23 * PAGE,
    }


def test_utilisation_is_the_share_of_ticks_not_idle(proc: Path) -> None:
    cpu = probe(proc)
    cpu.sample()
    # 200 more ticks, of which 40 idle and 10 waiting for input and output.
    (proc / "stat").write_text("cpu  200 0 150 740 110 0 0 0 90 0\n")
    assert cpu.sample()["util"] == 0.75


def test_what_others_and_other_machines_took(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    cpu = probe(proc)
    cpu.sample()
    process(proc, 11, 10, 7, ticks=60)
    process(proc, 13, 1, 1000, ticks=90)  # not in the tree
    (proc / "stat").write_text("cpu  200 0 130 740 110 0 0 20 90 0\n")
    found = cpu.sample()
    # Of 200 ticks 40 + 10 were idle and 20 stolen; of the other 130, the tree had 60.
    assert (found["steal"], found["others"]) == (0.1, 70 / 200 * 8)


def test_the_tree_holds_descendants_only(proc: Path) -> None:
    assert probe(proc).tree() == {10, 11, 12}
    assert probe(proc, pid=13).tree() == {13}
    assert probe(proc, pid=99).tree() == set()


def test_only_the_tree_is_read_until_a_process_starts(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or real(path))
    cpu = probe(proc)
    cpu.sample()
    process(proc, 12, 11, 12)
    shutil.rmtree(proc / "11")
    process(proc, 14, 12, 100)
    assert cpu.sample()["rss_bytes"] == (5 + 12) * PAGE
    (proc / "loadavg").write_text("2.50 1.00 0.50 3/200 4243\n")
    process(proc, 12, 10, 12)  # adopted
    assert cpu.sample()["rss_bytes"] == (5 + 12 + 100) * PAGE
    assert len(listed) == 2


def test_all_processes_are_read_if_the_newest_is_not_known(proc: Path) -> None:
    """gVisor's file is always this one."""
    (proc / "loadavg").write_text("0.00 0.00 0.00 0/0 0\n")
    cpu = probe(proc)
    assert cpu.tree() == {10, 11, 12}
    process(proc, 14, 12, 100)
    assert cpu.tree() == {10, 11, 12, 14}


def test_a_node_without_these_files_gives_nothing(tmp_path: Path) -> None:
    assert probe(tmp_path).sample() == {}
