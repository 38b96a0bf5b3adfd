"""The memory of a device, as the driver shows it."""

import pytest
import torch

from flagbench_cases.rank.device import CudaDevice

pytestmark = pytest.mark.image


def test_a_peak_can_be_reset(monkeypatch):
    """Of a driver that shows 2, 12, 9 and 9 bytes in use, of which the allocator keeps 3 until it is told not to."""
    used, calls = [2, 12, 9, 9], []
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 - used.pop(0), 100))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append("reset"))
    device = CudaDevice(0)
    assert [device.sample_memory_peak() for _ in range(3)] == [2, 12, 12]
    device.reset_peak()
    assert (device.sample_memory_peak(), calls) == (9, ["empty_cache", "reset"])
