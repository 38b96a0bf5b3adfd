"""This machine's accelerators by stand-ins for the vendors' tools, and the rows that commands name for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from catalogs import CATALOG
from flagbench.machine import devices, vendors
from flagbench.machine.catalog import find_claims, find_device_models, find_stacks
from flagbench.machine.devices import Machine, read_usage, this_machine
from flagbench.machine.vendors import DeviceState, Usage, metax, nvidia
from flagbench.system.queries import Ending
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench, Pci

MXSMI = Path(__file__).parents[2] / "cases" / "telemetry" / "mxsmi"
HEADER = "name, memory.total [MiB], uuid"
A100 = "NVIDIA A100-SXM4-40GB, 40536 MiB, GPU-5bb4bd9d-8c1f-d04c-98b6-0b2a5f1de2e4"
H800 = "NVIDIA H800, 81559 MiB, GPU-0c1d2e3f-1111-2222-3333-444455556666"
L4 = "NVIDIA L4, 23034 MiB, GPU-11111111-8c1f-d04c-98b6-0b2a5f1de2e4"

Tool = Callable[..., None]

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="a native run imports it")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pci: Pci) -> Iterator[Tool]:
    """`tool("nvidia-smi", *lines)` puts a tool on PATH that prints them for every question, or that is `script`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(metax, "TOOL_FOLDERS", ())

    def install(name: str, *lines: str, script: str = "") -> None:
        (folder / "lines").write_text("\n".join([*lines, ""]))
        (folder / name).write_text(script or f"#!/bin/sh\nexec /bin/cat {folder}/lines\n")
        (folder / name).chmod(0o755)

    devices._find_accelerators.cache_clear()
    yield install
    devices._find_accelerators.cache_clear()


def test_a_machine_without_a_tool_has_no_accelerator(tool: Tool) -> None:
    assert this_machine() == Machine((), 0)
    assert find_claims(this_machine(), CATALOG) == ()


@pytest.mark.parametrize(
    ("lines", "described", "cards", "gib"),
    [
        ([HEADER, A100, A100], "2 x NVIDIA A100-SXM4-40GB", ["NVIDIA A100-SXM4-40GB"], 39.6),
        ([A100.replace(" MiB", "")], "1 x NVIDIA A100-SXM4-40GB", ["NVIDIA A100-SXM4-40GB"], 39.6),
        ([HEADER, H800, L4], "1 x NVIDIA H800 and 1 x NVIDIA L4", ["NVIDIA H800"], 79.6),
        ([HEADER, L4], "1 x NVIDIA L4", [], 22.5),
        (
            ["warning: infoROM is corrupted at gpu 0000:07:00.0", HEADER, H800],
            "1 x NVIDIA H800",
            ["NVIDIA H800"],
            79.6,
        ),
    ],
)
def test_what_nvidia_smi_prints(tool: Tool, lines: list[str], described: str, cards: list[str], gib: float) -> None:
    tool("nvidia-smi", *lines)
    machine = this_machine()
    assert (machine.described, machine.problem) == (described, None)
    assert [card.name for card in find_device_models(machine, CATALOG)] == cards
    assert machine.devices[0].memory_gib == pytest.approx(gib, abs=0.1)


@pytest.mark.parametrize(("version", "names"), [("2.1.12", ["MetaX C500"]), ("2.2.9", ["MXC500", "MXC500"])])
def test_what_mx_smi_prints(tool: Tool, version: str, names: list[str]) -> None:
    tool("mx-smi", *(MXSMI / version / "list.txt").read_text().splitlines())
    machine = this_machine()
    assert [device.name for device in machine.devices] == names
    assert {claim.case for claim in find_claims(machine, CATALOG)} == {
        claim.case for claim in CATALOG.claims.values() if claim.conditions["device_model"] == "MetaX C500 (OAM)"
    }


@needs_torch
def test_what_amd_smi_prints(tool: Tool, flagbench: Flagbench) -> None:
    tool("docker", script="#!/bin/sh\n")
    tool("amd-smi", *(MXSMI.parent / "amdsmi" / "static.json").read_text().splitlines())
    machine = this_machine()
    assert machine.described == "2 x AMD Instinct MI300X"
    assert [card.id for card in find_device_models(machine, CATALOG)] == ["mi300x"]
    planned = flagbench("run distilbert --preset tiny --dry-run --json")
    assert (planned.json["via"], planned.json["devices"]["kind"]) == ("native", "cuda")
    for command in ("run distilbert:rocm --via docker", "build distilbert:rocm", "render rocm", "lock rocm"):
        assert flagbench(command).code == ExitCode.USAGE, command


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("#!/bin/sh\nexit 9\n", "exit code 9"),
        ("#!/bin/sh\n/bin/sleep 600 &\n/bin/sleep 600\n", "did not answer"),
        ("#!/bin/sh\necho No devices were found\n", "No devices were found"),
        ("#!/bin/sh\nexec /bin/cat /dev/zero\n", "too much"),
        ("#!/no/such/interpreter\n", "cannot be started"),
        ("#!/bin/sh\n", None),
    ],
    ids=["fails", "hangs", "none", "endless", "broken", "silent"],
)
def test_a_tool_that_does_not_answer_fails_no_command(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, script: str, problem: str | None, flagbench: Flagbench
) -> None:
    monkeypatch.setattr(vendors, "TOOL_SECONDS", 0.1 if "sleep" in script else 5.0)
    tool("nvidia-smi", script=script)
    machine = this_machine()
    assert machine.devices == ()
    assert problem is None if machine.problem is None else problem and problem in machine.problem
    ended = flagbench("list claims")
    assert (ended.code, len(ended.err.splitlines())) == (ExitCode.OK, 1)
    assert "THIS MACHINE" not in ended.out


MISMATCH = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
NO_DRIVER = 'echo; echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9'
NOT_ALLOWED = "echo 'Failed to initialize NVML: Insufficient Permissions' >&2; exit 4"


@pytest.mark.parametrize(
    ("script", "ending", "words"),
    [
        (MISMATCH, Ending.FAILED, "Driver/library version mismatch"),
        (NO_DRIVER, Ending.FAILED, "couldn't communicate"),
        (NOT_ALLOWED, Ending.FAILED, "Insufficient Permissions"),
        ("exec /bin/sleep 1000", Ending.NO_ANSWER, "did not answer within 0.2 s"),
    ],
    ids=["mismatch", "no driver", "not allowed", "hangs"],
)
def test_a_tool_that_fails_is_not_missing(
    tool: Tool,
    pci: Pci,
    monkeypatch: pytest.MonkeyPatch,
    flagbench: Flagbench,
    script: str,
    ending: Ending,
    words: str,
) -> None:
    monkeypatch.setattr(vendors, "TOOL_SECONDS", 0.2 if ending is Ending.NO_ANSWER else 5.0)
    pci("0000:ba:00.0")
    tool("nvidia-smi", script=f"#!/bin/sh\n{script}\n")
    machine = this_machine()
    assert (machine.devices, machine.lost, machine.tool, machine.vendor) == ((), (), ending, "nvidia")
    assert words in (machine.problem or "")
    assert words in flagbench("run distilbert --dry-run").err
    findings = {finding["name"]: finding for finding in flagbench("doctor --json").json["findings"]}
    assert (findings["accelerator"]["level"], findings["accelerator"]["detail"]) == ("warn", machine.problem)
    assert findings["accelerator"]["remedy"] == machine.remedy


def test_a_row_that_cannot_be_read_is_one_lost_device(tool: Tool, flagbench: Flagbench) -> None:
    rows = [f"{A100}, 0, 00000000:18:00.0", f"{A100.replace('5bb4', '6cc5')}, 2, 00000000:5D:00.0"]
    unknown = "[Unknown Error], [Unknown Error], [Unknown Error], 1, 00000000:3A:00.0"
    tool("nvidia-smi", f"{HEADER}, index, pci.bus_id", rows[0], unknown, rows[1])
    machine = this_machine()
    assert (len(machine.devices), machine.visible, machine.problem) == (2, 2, None)
    assert machine.lost == ("GPU 1 at 0000:3a:00.0 does not answer: [Unknown Error]",)
    findings = {finding["name"]: finding["level"] for finding in flagbench("doctor --json").json["findings"]}
    assert (findings["lost devices"], findings["accelerator"]) == ("warn", "ok")


@pytest.mark.parametrize("row", ["ERR!, ERR!, ERR!", "NVIDIA A100-SXM4-40GB, [GPU requires reset], GPU-6cc5"])
def test_the_place_of_a_lost_device_in_an_older_list(row: str) -> None:
    text = "\n".join([HEADER, A100, row, A100])
    assert len(nvidia.parse_devices(text)) == 2
    assert [words[: len("GPU 1 ")] for words in nvidia.parse_lost(text)] == ["GPU 1 "]


@pytest.mark.parametrize(
    ("line", "count", "words"),
    [
        ("Unable to determine the device handle for GPU0000:BA:00.0: Unknown Error", 0, "GPU0000:BA:00.0"),
        ("GPU 00000000:BA:00.0: GPU is lost. Reboot the system to recover this GPU", 0, "GPU is lost"),
        ("", 0, "exit code 15"),
        (A100, 1, "exit code 15"),
    ],
)
def test_a_tool_that_says_that_a_device_is_lost(tool: Tool, line: str, count: int, words: str) -> None:
    tool("nvidia-smi", script=f"#!/bin/sh\necho '{line}'\nexit 15\n")
    machine = this_machine()
    assert (len(machine.devices), len(machine.lost), machine.vendor) == (count, 1, "nvidia")
    assert words in machine.lost[0]


FIRST, SECOND = "0000:18:00.0", "0000:3a:00.0"


@pytest.mark.parametrize(
    ("rows", "lost"),
    [
        ([f"{A100}, 0, 00000000:18:00.0"], 1),
        ([A100], 1),
        ([A100, A100.replace("5bb4", "6cc5")], 0),
        ([A100.replace("A100-SXM4-40GB", "A100-SXM4-40GB MIG 1g.5gb")], 0),
        (["No devices were found"], 2),
    ],
)
def test_sysfs_shows_what_the_tool_does_not_list(tool: Tool, pci: Pci, rows: list[str], lost: int) -> None:
    pci(FIRST, SECOND)
    pci("0000:5d:00.0", driver="vfio-pci")  # a virtual machine's
    pci("0000:00:1f.0", kind="0x030000", driver=None)  # an old card for a screen
    pci("0000:c0:00.0", kind="0x068000")  # a switch
    pci("0000:04:00.0", vendor="0x1a03")  # another vendor's
    tool("nvidia-smi", *rows)
    machine = this_machine()
    assert (len(machine.lost), machine.vendor) == (lost, "nvidia")
    if "18:00.0" in rows[0]:
        assert SECOND in machine.lost[0]


def test_a_job_may_have_a_part_of_the_devices(tool: Tool, pci: Pci, monkeypatch: pytest.MonkeyPatch) -> None:
    pci(FIRST, SECOND)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    tool("nvidia-smi", A100)
    assert this_machine().lost == ()


@pytest.mark.parametrize(
    ("name", "vendor", "kind"), [("amd-smi", "0x1002", "0x120000"), ("mx-smi", "0x9999", "0x030200")]
)
def test_the_devices_of_each_vendor_are_known_in_sysfs(
    tool: Tool, pci: Pci, name: str, vendor: str, kind: str
) -> None:
    pci(FIRST, vendor=vendor, kind=kind)
    tool(name, script="#!/bin/sh\nexit 1\n")
    assert (this_machine().tool, this_machine().vendor) == (Ending.FAILED, {"a": "amd", "m": "metax"}[name[0]])


def test_a_second_tool_is_asked_if_the_first_fails(tool: Tool) -> None:
    tool("nvidia-smi", A100)
    tool("mx-smi", script="#!/bin/sh\nexit 9\n")
    (Path(os.environ["PATH"]) / "lines").write_text(A100)
    assert (this_machine().described, this_machine().problem) == ("1 x NVIDIA A100-SXM4-40GB", None)


STATE = """\
GPU-aa, 535.129.03, Disabled, 400.00, 400.00
GPU-bb, 535.129.03, Enabled, 250.00, 400.00
GPU-cc, [N/A], [N/A], [Unknown Error], [N/A]
No devices were found
"""


def test_state_and_programs_of_the_visible_devices(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_usage() == Usage()
    programs = "GPU-aa, 7, /usr/bin/python\nGPU-bb, 8, x\nGPU-aa, [N/A], y\n"
    tool("nvidia-smi", script=f"#!/bin/sh\ncase $1 in *compute*) echo '{programs}';; *) echo '{STATE}';; esac\n")
    assert [state.partitioned for state in read_usage().devices] == [False, True, False]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    state = DeviceState("GPU-aa", "535.129.03", False, 400.0, 400.0)
    assert read_usage() == Usage((state,), (("GPU-aa", "python (pid 7)"),))
    assert nvidia.parse_state(STATE)[2] == DeviceState("GPU-cc")


@pytest.mark.parametrize(("limit", "capped"), [(None, False), (400.0, False), (399.0, True)])
def test_a_power_limit_below_the_own_one_is_a_cap(limit: float | None, capped: bool) -> None:
    state = DeviceState("GPU-aa", power_limit_w=limit, power_default_w=400.0)
    assert (state.power_cap is not None) is capped


def test_a_tool_is_asked_once_in_a_process(tool: Tool, tmp_path: Path) -> None:
    tool("nvidia-smi", script=f"#!/bin/sh\necho >> {tmp_path}/asked\necho '{A100}'\n")
    assert {this_machine().described for _ in range(3)} == {"1 x NVIDIA A100-SXM4-40GB"}
    assert (tmp_path / "asked").read_text() == "\n"


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("", 0),
        ("0", 1),
        ("1,0", 2),
        ("1,1", 0),
        ("0,GPU-5bb4", 0),
        ("0,7", 1),
        ("-1", 0),
        ("GPU-5bb4", 1),
        ("GPU-", 0),
        ("NoDevFiles", 0),
        ("²", 0),
    ],
)
def test_visible_devices_are_counted_and_all_are_named(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, value: str, count: int
) -> None:
    tool("nvidia-smi", HEADER, A100, A100.replace("5bb4", "6cc5"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert (this_machine().visible, len(this_machine().devices)) == (count, 2)
    assert find_claims(this_machine(), CATALOG)


@pytest.mark.parametrize(
    ("lines", "visible"),
    [
        (
            [
                A100.replace("40536 MiB", "[N/A]"),
                "GPU 0: NVIDIA A100 (UUID: GPU-5b)",
                "  MIG 1g.5gb Device 0: (UUID: MIG-1)",
            ],
            None,
        ),
        (["NVIDIA A100-SXM4-40GB MIG 1g.5gb, 4864 MiB, MIG-5bb4bd9d-8c1f-d04c-98b6-0b2a5f1de2e4"], None),
        ([A100], "MIG-5bb4bd9d-8c1f-d04c-98b6-0b2a5f1de2e4"),
    ],
)
def test_no_row_is_of_a_part_of_a_device(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, lines: list[str], visible: str | None
) -> None:
    tool("nvidia-smi", *lines)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = this_machine()
    assert [device.partition for device in machine.devices] == [True]
    assert find_claims(machine, CATALOG) == ()


def test_rows_for_as_many_devices_as_there_are_come_first(tool: Tool) -> None:
    tool("nvidia-smi", *[A100] * 8)
    rows = find_claims(this_machine(), CATALOG)
    counts = [claim.conditions["devices"] == 8 for claim in rows]
    assert counts[0]
    assert counts == sorted(counts, reverse=True)


def test_list_marks_the_rows_of_this_machine(tool: Tool, flagbench: Flagbench) -> None:
    tool("nvidia-smi", HEADER, H800)
    ended = flagbench("list claims")
    header, *rows = ended.out.splitlines()
    assert header.split("  ")[-1] == "PUBLISHED"
    assert "THIS MACHINE" in header
    assert {row.split()[0] for row in rows if row.split()[1] == "yes"} == {
        claim.id for claim in CATALOG.claims.values() if claim.conditions["device_model"] == "NVIDIA H800"
    }
    assert f"4 of {len(CATALOG.claims)} rows" in ended.err
    marked = {claim["id"]: claim["this_machine"] for claim in flagbench("list claims --json").json["claims"]}
    assert {name for name, here in marked.items() if here} == {
        row.split()[0] for row in rows if row.split()[1] == "yes"
    }


def test_list_says_where_no_row_is_for_this_device(tool: Tool, flagbench: Flagbench) -> None:
    tool("nvidia-smi", L4)
    ended = flagbench("list claims")
    assert "flagbench expect CASE" in ended.err
    assert "THIS MACHINE" not in ended.out


@pytest.mark.parametrize(
    ("lines", "case", "stacks"),
    [
        ([], "distilbert", ["cpu"]),
        ([A100], "distilbert", ["a100-cuda11.6", "a100-cuda11.8", "cuda13"]),
        ([A100], "llama2-7b-lora", ["a100-cuda11.8", "a100-cuda11.6", "cuda13"]),
        ([H800], "llama2-70b", ["cuda13"]),
        ([L4], "distilbert", []),
        ([A100, H800], "distilbert", []),
        (["NVIDIA H200 MIG 1g.18gb, 16384 MiB, MIG-1"], "distilbert", ["cuda13"]),
    ],
)
def test_the_stack_of_the_published_rows_is_chosen(
    tool: Tool, lines: list[str], case: str, stacks: list[str]
) -> None:
    if lines:
        tool("nvidia-smi", *lines)
    assert [stack.name for stack in find_stacks(this_machine(), CATALOG, CATALOG.cases[case])] == stacks


@pytest.mark.parametrize(
    ("capability", "stacks"), [("8.9", ["cuda13"]), ("12.1", ["cuda13"]), ("7.5", []), ("[N/A]", [])]
)
def test_an_unknown_device_runs_by_its_architecture(
    tool: Tool, flagbench: Flagbench, capability: str, stacks: list[str]
) -> None:
    answers = f"case $* in *compute_cap*) echo '{capability}';; *) echo '{L4}';; esac"
    tool("nvidia-smi", script=f"#!/bin/sh\n{answers}\n")
    assert [stack.name for stack in find_stacks(this_machine(), CATALOG, CATALOG.cases["distilbert"])] == stacks
    assert ("has no mfu" in flagbench("run distilbert --dry-run").err) == bool(stacks)


@needs_torch
def test_a_machine_without_docker_runs_in_this_python(tool: Tool, flagbench: Flagbench) -> None:
    tool("nvidia-smi", A100)
    assert flagbench("run distilbert:a100 --dry-run --json").json["via"] == "native"
    assert flagbench("run distilbert:a100 --image a/b:c --dry-run --json").json["via"] == "docker"
    tool("docker")
    assert flagbench("run distilbert:a100 --dry-run --json").json["via"] == "docker"


def test_run_without_a_stack_takes_that_of_this_device(tool: Tool, flagbench: Flagbench) -> None:
    tool("nvidia-smi", *[A100] * 8)
    ended = flagbench("run distilbert --dry-run")
    assert "runs           distilbert:a100-cuda11.6" in ended.out
    assert "verify last --claim distilbert/a100-1x8-fp32" in ended.err


@pytest.mark.parametrize("lines", [[L4], ["No devices were found"]])
def test_run_without_a_stack_asks_for_one_where_it_cannot_know(
    tool: Tool, flagbench: Flagbench, lines: list[str]
) -> None:
    tool("nvidia-smi", *lines)
    ended = flagbench("run distilbert --dry-run")
    assert ended.code == ExitCode.USAGE
    assert "distilbert:cuda13" in ended.err
