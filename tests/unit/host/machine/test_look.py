"""One look at this machine: what of its devices' states and programs is kept, and in which words."""

from __future__ import annotations

import pytest

from flagbench.machine import look
from flagbench.machine.devices import Machine
from flagbench.machine.look import MOST_PROGRAMS, look_at_machine
from flagbench.machine.vendors import DeviceState, LocalDevice, Program, Usage, older_drivers
from flagbench.machine.vendors.nvidia import parse_programs

STATES = (
    DeviceState("GPU-0", "535.54", power_limit_w=300.0, power_default_w=400.0),
    DeviceState("GPU-1", "535.54", partitioned=True, power_limit_w=400.0, power_default_w=400.0),
)


def test_a_look_keeps_what_a_run_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = tuple(LocalDevice("NVIDIA A100-SXM4-40GB", 40.0, f"GPU-{index}") for index in range(2))
    programs = (
        Program("GPU-1", "other (pid 1)"),
        *(Program("GPU-0", f"python (pid {number})") for number in range(9)),
    )
    monkeypatch.setattr(look, "this_machine", lambda: Machine(devices, 2))
    monkeypatch.setattr(look, "read_usage", lambda: Usage(STATES, programs))
    both, first = look_at_machine(), look_at_machine(gpus=1)
    assert (both.drivers, len(both.power_caps), len(both.partitions)) == (["535.54"], 1, 1)
    assert (len(first.power_caps), first.partitions) == (1, [])
    assert (len(both.programs), both.programs[0], first.programs[0]) == (
        MOST_PROGRAMS,
        "other (pid 1)",
        "python (pid 0)",
    )
    assert both.processors >= 1
    assert both.load >= 0


def test_a_program_on_two_devices_is_seen_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = parse_programs("GPU-0, 7, /usr/bin/python, 500 MiB\nGPU-1, 7, /usr/bin/python, 500 MiB\n")
    assert programs == (("GPU-0", "python (pid 7)"), ("GPU-1", "python (pid 7)"))
    devices = tuple(LocalDevice("NVIDIA A100-SXM4-40GB", 40.0, f"GPU-{index}") for index in range(2))
    monkeypatch.setattr(look, "this_machine", lambda: Machine(devices, 2))
    monkeypatch.setattr(look, "read_usage", lambda: Usage(STATES, programs))
    assert look_at_machine().programs == look_at_machine(gpus=1).programs == ("python (pid 7)",)


def test_a_machine_without_a_tool_has_only_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "this_machine", lambda: Machine((), 0))
    monkeypatch.setattr(look, "read_usage", Usage)
    facts = look_at_machine()
    assert (facts.states, facts.programs, facts.drivers, facts.partitions) == ((), (), [], [])


@pytest.mark.parametrize(
    ("driver", "older"), [("535.54.03", False), ("535.9", True), ("470.141.10", True), ("1000.1", False)]
)
def test_drivers_are_compared_number_by_number(driver: str, older: bool) -> None:
    assert older_drivers([driver], "535.54.03") == ([driver] if older else [])
