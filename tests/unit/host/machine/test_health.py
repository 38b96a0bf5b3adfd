"""The health of this machine's devices as doctor and an acceptance read it, with a stand-in for NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from flagbench.machine import devices
from flagbench.machine.devices import Machine, this_machine
from flagbench.machine.health import look_at_health
from flagbench.machine.look import look_at_machine
from flagbench_core.health.reading import NOT_FOUND
from nvml_stubs import UUIDS
from unit.host.conftest import Flagbench, Pci

needs_pynvml = pytest.mark.skipif(find_spec("pynvml") is None, reason="NVML is read with it")

XID = "4,7,5000100,-;NVRM: Xid (PCI:0000:b0:00): 79, pid=4711, GPU has fallen off the bus.\n"
ROWS = "".join(
    f"NVIDIA A100-SXM4-40GB, 40960 MiB, {uuid}, {index}, 0000:{index}\n" for index, uuid in enumerate(UUIDS)
)


@pytest.fixture
def two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml_stub: Callable, pci: Pci) -> Iterator[None]:
    """A machine whose nvidia-smi lists the two devices of the stub of NVML."""
    monkeypatch.setenv("LD_LIBRARY_PATH", nvml_stub()["LD_LIBRARY_PATH"])
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "rows").write_text(ROWS)
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\nexec /bin/cat {folder}/rows\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices._find_accelerators.cache_clear()
    yield
    devices._find_accelerators.cache_clear()


@pytest.fixture
def kmsg(tmp_path: Path) -> str:
    """A kernel log with one Xid."""
    (tmp_path / "kmsg").write_text(XID)
    return str(tmp_path / "kmsg")


@needs_pynvml
def test_the_devices_and_the_kernel_log(two_devices: None, kmsg: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVML_STUB_ECC_UNCORRECTED_1", "3")
    health = look_at_health(this_machine(), kmsg=kmsg)
    assert [(device.index, device.uuid) for device in health.devices] == [*enumerate(UUIDS)]
    assert [device.ecc_uncorrected for device in health.devices] == [0, 3]
    assert (health.source, health.problem) == ("nvml", None)
    assert health.xids is not None
    assert [(xid.code, xid.pci_address) for xid in health.xids.xids] == [(79, "0000:b0:00")]
    later = look_at_health(this_machine(), after=health.xids.last, kmsg=kmsg)
    assert later.xids is not None
    assert (later.xids.xids, later.xids.last) == ((), 7)


def test_only_devices_that_a_run_would_use(two_devices: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [device.uuid for device in look_at_health(this_machine(), gpus=1).devices] == UUIDS[:1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (device,) = look_at_health(this_machine()).devices
    assert (device.index, device.uuid) == (0, UUIDS[1])


def test_health_is_a_fact_where_it_is_asked_for(two_devices: None) -> None:
    health = look_at_machine(health=True).health
    assert health is not None
    assert len(health.devices) == 2
    assert look_at_machine().health is None


def test_a_machine_without_accelerators_has_none() -> None:
    health = look_at_health(Machine((), 0))
    assert (health.devices, health.problem, health.xids) == ((), None, None)


def test_a_log_that_is_not_there(two_devices: None, tmp_path: Path) -> None:
    xids = look_at_health(this_machine(), kmsg=str(tmp_path / "none")).xids
    assert xids is not None
    assert xids.refusal == NOT_FOUND


@needs_pynvml
def test_doctor_shows_it(
    flagbench: Flagbench, two_devices: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVML_STUB_REMAP_PENDING_1", "1")
    monkeypatch.setenv("NVML_STUB_LINKS_0", "11")
    monkeypatch.setenv("NVML_STUB_FIELD_230_0", "NOT_SUPPORTED")
    answer = flagbench(f"doctor --store {tmp_path / 'store'} --json").json
    levels = {finding["name"]: finding["level"] for finding in answer["findings"]}
    assert (levels["device health"], levels["row-remap-pending"], levels["nvlink-fewer"]) == ("ok", "warn", "warn")
    first, second = answer["health"]["devices"]
    assert (first["nvlinks_down"], second["row_remap_pending"]) == ([11], True)
    assert first["refusals"] == {"recovery_action": "not supported"}
    shown = flagbench(f"doctor --store {tmp_path / 'store'}").out
    rows = [line for line in shown.splitlines() if "A100-SXM4-40GB" in line and "gen 4" in line]
    assert ["11 up, 1 down" in rows[0], "not supported" in rows[0], "next reset" in rows[1]] == [True] * 3
