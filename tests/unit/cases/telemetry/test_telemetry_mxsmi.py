"""The mx-smi monitor: what it reads out of two versions' output, and a stand-in tool that hangs, changes or lacks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench_cases.telemetry.monitors import MonitorUnavailable, create, mx_smi
from running import wait_until
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

RECORDED = Path(__file__).parent / "mxsmi"
KIB = 1024
# A tool that prints what was recorded, each option's file for itself; a line is left in `asked` for every call.
TOOL = """#!/bin/sh
cd "$MXSMI_RECORDED" || exit 9
echo "$*" >> "$MXSMI_FOLDER/asked"
[ -z "$MXSMI_HANGS" ] || [ -n "${MXSMI_HANGS_AFTER}" -a ! -e "$MXSMI_FOLDER/hang" ] || exec sleep 600
[ $# -gt 0 ] || exec cat summary.txt
[ "$1" != -L ] || exec cat list.txt
[ -z "$MXSMI_ONE_AT_A_TIME" ] || [ $# -eq 1 ] || { echo "too many options" >&2; exit 1; }
for option; do cat "${option#--}.txt" 2>/dev/null; done
exit 0
"""


def recorded(version: str, name: str) -> str:
    return (RECORDED / version / (name + ".txt")).read_text(encoding="utf-8")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts the stand-in for mx-smi on PATH, in the given version and mood; gives its folder."""

    def install(version: str = "2.2.9", **mood: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "mx-smi").write_text(TOOL)
        (folder / "mx-smi").chmod(0o755)
        for variable in ("CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PATH", "%s:%s" % (folder, os.environ["PATH"]))
        monkeypatch.setenv("MXSMI_RECORDED", str(RECORDED / version))
        monkeypatch.setenv("MXSMI_FOLDER", str(folder))
        for name, value in mood.items():
            monkeypatch.setenv("MXSMI_" + name, value)
        return folder

    return install


@pytest.fixture
def show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the stand-in show each device's values otherwise than recorded."""

    def apply(change: Callable[[str], str]) -> None:
        other = tmp_path / "recorded"
        shutil.copytree(str(RECORDED / "2.2.9"), str(other))
        for path in other.glob("show-*.txt"):
            path.write_text(change(path.read_text()))
        monkeypatch.setenv("MXSMI_RECORDED", str(other))

    return apply


def opened(devices: Any = None) -> Any:
    monitor = create("mx-smi", devices)
    monitor.open()
    return monitor


# -- parsing -------------------------------------------------------------------------------------------------


def test_an_older_version_gives_the_same_values() -> None:
    text = "".join(recorded("2.1.12", name) for name in ("show-memory", "show-usage", "show-temperature"))
    assert mx_smi.parse_devices(text) == {
        0: {
            "mem_used_bytes": 879032 * KIB,
            "memory_total_bytes": 2**36,
            "util": 0.0,
            "temperature_c": 36.25,
        }
    }


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("vram used : 3 MB", {"mem_used_bytes": 3 * 2**20}),
        ("vram used : 1.5 GiB", {"mem_used_bytes": 3 * 2**29}),
        ("Total : 57600 mW", {"power_w": 57.6}),
        ("Total 12.1 V 4.7 A 57 W", {"power_w": 57.0}),
        ("Subtotal 57 W", {}),
        ("GPU State : Available", {}),
        ("soc : 40.00 C", {}),
    ],
)
def test_units_and_what_is_no_value(line: str, values: dict[str, Any]) -> None:
    assert mx_smi.parse_devices("GPU#7  MXC500  0000:0e:00.0\n    %s\n" % line) == {7: values}


@pytest.mark.parametrize(
    ("version", "versions", "limits"),
    [
        ("2.2.9", {"mx_smi": "2.2.9", "driver": "3.4.4", "maca": "3.3.0.15", "vbios": "1.30.0.0"}, [350.0, 300.0]),
        ("2.1.12", {"mx_smi": "2.1.12", "driver": "2.12.13", "maca": "2.29.0.19", "vbios": "1.22.3.0"}, [350.0]),
    ],
)
def test_four_versions_are_told_apart(version: str, versions: dict[str, str], limits: list[float]) -> None:
    assert mx_smi.parse_summary(recorded(version, "summary")) == (versions, limits)


# -- asking --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mood", [{}, {"ONE_AT_A_TIME": "1"}])
def test_all_devices_are_read(tool: Callable, mood: dict[str, str]) -> None:
    folder = tool(**mood)
    monitor = opened()
    static = monitor.static()
    assert static["driver_version"] == "3.4.4"
    assert static["devices"][1] == {
        "index": 1,
        "mxsmi_index": 1,
        "name": "MXC500",
        "uuid": "GPU-bbbbbbbb-0000-0000-0000-000000000000",
        "memory_total_bytes": 2**36,
        "mem_used_bytes": 9234432 * KIB,
        "power_limit_w": 300.0,
    }
    before = len((folder / "asked").read_text().splitlines())
    reading = monitor.sample()
    assert reading.errors == []
    assert reading.devices[0] == {
        "index": 0,
        "mem_used_bytes": 845824 * KIB,
        "util": 0.97,
        "temperature_c": 41.25,
        "power_w": 249.37,
    }
    calls = len((folder / "asked").read_text().splitlines()) - before
    assert calls == (4 if mood else 1), "as few processes a second as this version allows"
    monitor.close()


@pytest.mark.parametrize(
    ("variable", "value", "devices", "physical"),
    [
        ("CUDA_VISIBLE_DEVICES", "1,0", [0, 1], [1, 0]),
        ("MACA_VISIBLE_DEVICES", "1,0", [1], [0]),
        ("CUDA_VISIBLE_DEVICES", "GPU-bbbb", None, [1]),
    ],
)
def test_devices_are_numbered_as_the_run_sees_them(
    tool: Callable, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, devices: Any, physical: list[int]
) -> None:
    tool()
    monkeypatch.setenv(variable, value)
    monitor = opened(devices)
    assert [device["mxsmi_index"] for device in monitor.static()["devices"]] == physical
    assert [device["index"] for device in monitor.sample().devices] == list(range(len(physical)))


@pytest.mark.parametrize(
    ("visible", "devices", "named"), [("", None, "CUDA_VISIBLE_DEVICES="), ("0", [1], "device 1")]
)
def test_a_device_that_is_not_shown_cannot_be_read(
    tool: Callable, monkeypatch: pytest.MonkeyPatch, visible: str, devices: Any, named: str
) -> None:
    tool()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with refuses(MonitorUnavailable, named) as caught:
        opened(devices)
    assert caught.value.facts == {"driver_version": "3.4.4"}


def test_a_layout_nobody_knows_is_a_reason_and_no_crash(tool: Callable, show: Callable) -> None:
    folder = tool()
    show(lambda text: "GPU#0\n  something else entirely\n")
    with refuses(MonitorUnavailable, "mx-smi"):
        opened()
    assert len((folder / "asked").read_text().splitlines()) == 7


def test_a_missing_tool_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mx_smi, "PLACES", (str(tmp_path / "driver"),))
    with refuses(MonitorUnavailable, "mx-smi", tmp_path / "driver"):
        opened()


def test_a_tool_that_hangs_costs_one_deadline(tool: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx_smi, "TIMEOUT_S", 0.3)
    folder = tool(HANGS="1")
    with refuses(MonitorUnavailable, "mx-smi"):
        opened()
    asked = folder / "asked"  # not even that by a machine that starts no shell in time
    assert not asked.exists() or len(asked.read_text().splitlines()) == 1


def test_a_tool_that_begins_to_hang_is_left_alone(tool: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tool(HANGS="1", HANGS_AFTER="1")
    monitor = opened()
    (folder / "hang").write_text("")
    monkeypatch.setattr(mx_smi, "TIMEOUT_S", 0.3)
    errors = [monitor.sample().errors for _ in range(5)]
    assert [len(found) for found in errors] == [2, 2, 2, 0, 0]
    assert all("mx-smi" in error["reason"] for found in errors for error in found)
    monitor.close()


# -- the sampler's process -----------------------------------------------------------------------------------


def test_a_hanging_tool_dies_with_its_sampler(
    tmp_path: Path, tool: Callable, start_sampler: Callable, clean_environment: Callable
) -> None:
    folder = tool(HANGS="1")
    out = tmp_path / "t.jsonl"
    sampler = start_sampler(out, "mx-smi", env=clean_environment(MXSMI_MARK=str(tmp_path)))
    wait_until(lambda: (folder / "asked").exists() and bool(children_marked(str(tmp_path))), 20)
    sampler.kill()
    sampler.wait()
    wait_until(lambda: not children_marked(str(tmp_path)), 1)  # before its own deadline would have ended it


def children_marked(mark: str) -> list[str]:
    """Processes of the stand-in tool, by a variable in their environment; the sampler has it too and is left out."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if ("MXSMI_MARK=" + mark).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().decode())
        except OSError:
            continue
    return [command for command in found if command.startswith("sleep")]
