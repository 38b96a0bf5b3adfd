"""Xid lines of a kernel log, by its sequence numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench_core.health.kernel_log import Xid, read_xids, same_device
from flagbench_core.health.reading import NO_PERMISSION, NOT_FOUND

pytestmark = pytest.mark.image

LOG = """\
6,100,5000000,-;Linux version 6.8.0
4,101,5000100,-;NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, name=python, GPU has fallen off the bus.
 SUBSYSTEM=pci
 DEVICE=+pci:0000:9b:00.0
4,102,5000200,-,caller=T42;NVRM: Xid (PCI:0000:9b:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008
4,103,5000300,-;NVRM: Xid (0000:18:00): 119, pid=2024380, name=nvidia-smi, Timeout
4,105,5000400,-;NVRM: Xid (PCI:0000:9b:00): 45, pid=4712, name=python, Ch 00000009
4,106,5000500,-;NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.
4,107,5000600,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module; Xid 13 is only a word here
"""


def log(tmp_path: Path, text: str = LOG) -> str:
    (tmp_path / "kmsg").write_text(text)
    return str(tmp_path / "kmsg")


def test_all_lines(tmp_path: Path) -> None:
    found = read_xids(path=log(tmp_path))
    assert [(xid.code, xid.pci_address, xid.count, xid.sequence) for xid in found.xids] == [
        (79, "0000:9b:00", 1, 101),
        (45, "0000:9b:00", 2, 102),
        (119, "0000:18:00", 1, 103),
        (79, "0000:18:00", 1, 106),
    ]
    assert (found.last, found.refusal) == (107, None)


def test_lines_of_after_a_run_began(tmp_path: Path) -> None:
    found = read_xids(after=104, path=log(tmp_path))
    assert [(xid.code, xid.sequence) for xid in found.xids] == [(45, 105), (79, 106)]
    assert read_xids(after=107, path=log(tmp_path)) == read_xids(after=107, path=log(tmp_path, ""))


def test_lines_that_were_overwritten(tmp_path: Path) -> None:
    found = read_xids(after=50, path=log(tmp_path))
    assert (len(found.xids), found.refusal) == (4, "its records 51 to 99 were overwritten")
    assert read_xids(after=99, path=log(tmp_path)).refusal is None


def test_a_log_without_an_end(tmp_path: Path) -> None:
    text = LOG[: LOG.index("4,102")].rstrip("\n")
    assert read_xids(path=log(tmp_path, text)).xids == (
        Xid(79, "0000:9b:00", 1, 101, LOG.splitlines()[1].partition(";")[2]),
    )


def test_a_log_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_xids(path=str(tmp_path / "kmsg")).refusal == NOT_FOUND

    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.open", refuse)
    assert read_xids(path="/dev/kmsg").refusal == NO_PERMISSION


def test_addresses_of_one_device() -> None:
    assert same_device("0000:9b:00", "00000000:9B:00.0")
    assert not same_device("0000:9b:00", "0000:9c:00.0")
    assert not same_device("0000:9b:00", None)
