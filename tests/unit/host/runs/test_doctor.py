"""Doctor finds what is there and what is missing, with a remedy for each."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from flagbench.images import docker
from flagbench.machine import diagnosis
from flagbench.machine.devices import Machine
from flagbench.machine.diagnosis import GIB, Diagnosis, Level
from flagbench.machine.look import MachineFacts
from flagbench.machine.vendors import DeviceState, LocalDevice
from flagbench.manifests.load import load_catalog
from flagbench.records.waiting import set_aside
from flagbench.runs import doctor
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench, MakeRecord, process


def test_doctor_passes_with_warnings_and_fails_with_a_failure(flagbench: Flagbench, tmp_path: Path) -> None:
    answer = flagbench(f"doctor --store {tmp_path / 'store'} --json").json
    assert answer["ok"] is True
    assert {finding["level"] for finding in answer["findings"]} <= {"ok", "warn"}
    assert all(finding["remedy"] for finding in answer["findings"] if finding["level"] == "warn")
    names = [finding["name"] for finding in answer["findings"]]
    assert names[:4] == ["python", "flagbench", "manifests", "store"]
    assert names[-3:] == ["accelerator", "native", "docker"]
    assert not (tmp_path / "store").exists()

    (tmp_path / "file").write_text("")
    failed = flagbench(f"doctor --store {tmp_path / 'file'}")
    assert (failed.code, "fix: store: part of the path is a file" in failed.out) == (ExitCode.USAGE, True)


def test_broken_manifests_fail_in_one_line(
    flagbench: Flagbench, manifests: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (manifests / "stacks" / "cpu.yaml").write_text("schema: stack/v1\n")
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    ended = flagbench(f"doctor --store {tmp_path / 'store'}")
    (line,) = (line for line in ended.out.splitlines() if line.startswith("manifests "))
    assert (ended.code, line.split()[1]) == (ExitCode.USAGE, "fail")
    assert "problems: manifests/stacks/cpu.yaml:1: " in line


def test_packages_are_looked_up_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    catalog = load_catalog()
    case = replace(catalog.cases["glm"], imports=("no_such_module", "jinja2"))
    found = {f.name: f for f in doctor.check_native_packages(replace(catalog, cases={**catalog.cases, "glm": case}))}
    assert found["jinja2"].level is Level.OK
    remedy = "for runs without a container, in the checkout: pip install -e '.[cases]'"
    missing = Diagnosis("no_such_module", Level.WARN, "not installed; imported by glm", remedy)
    assert found["no_such_module"] == missing
    assert {"torch", "peft"} <= found.keys()
    assert "torch" not in sys.modules
    assert "torch" in {finding.name for finding in doctor.check_native_packages(None)}


def test_the_accelerators_and_their_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.describe_accelerator(MachineFacts(Machine((), 0), (), (), 2, 0.0)).level is Level.WARN
    machine = Machine((LocalDevice("NVIDIA L4", 22.5, "GPU-0"),), 1)
    monkeypatch.setattr(doctor, "this_machine", lambda: machine)
    facts = MachineFacts(machine, (DeviceState("GPU-0", "550.54.15"),), (), 2, 0.0)
    assert doctor.describe_accelerator(facts) == Diagnosis("accelerator", Level.OK, "1 x NVIDIA L4, driver 550.54.15")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    for version, level in (("2.9.0+cpu", Level.WARN), ("2.9.0", Level.OK)):
        monkeypatch.setattr("importlib.metadata.version", lambda name, version=version: version)
        assert {found.level for found in doctor.check_native_packages(None) if found.name == "torch"} == {level}


def test_what_else_is_on_the_accelerators_is_a_warning(
    flagbench: Flagbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine((LocalDevice("NVIDIA L4", 22.5, "GPU-0"),), 1)
    capped = DeviceState("GPU-0", power_limit_w=60.0, power_default_w=72.0)
    facts = MachineFacts(machine, (capped,), ("python (pid 7)",), 2, 0.0)
    monkeypatch.setattr(doctor, "look_at_machine", lambda **_: facts)
    findings = flagbench(f"doctor --store {tmp_path / 'store'} --json").json["findings"]
    levels = {finding["name"]: finding["level"] for finding in findings}
    assert (levels["power cap"], levels["foreign processes"], levels["accelerator"]) == ("warn", "warn", "ok")


def test_memory_and_its_limit(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {8 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {6 * GIB // 1024} kB\n")
    assert diagnosis.check_memory(meminfo, tmp_path).detail == "6.0 of 8.0 GiB available"
    for limit, shown in (("max", ""), (9 * GIB, ""), (2 * GIB, "; limited to 2.0 GiB")):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert diagnosis.check_memory(meminfo, tmp_path).detail == f"6.0 of 8.0 GiB available{shown}"
    assert diagnosis.check_memory(tmp_path / "none").level is Level.WARN


def test_the_disks_are_those_that_a_run_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    temporary, kept = doctor.check_disks(str(tmp_path / "not" / "yet" / "there"))
    assert temporary.detail.endswith(f"GiB free at {tmp_path / 'scratch'}")
    assert kept.detail.endswith(f"GiB free at {tmp_path}")
    assert diagnosis.check_disk("disk", tmp_path, least=0).level is Level.OK
    assert diagnosis.check_disk("disk", tmp_path, least=2**80).level is Level.WARN


def test_doctor_works_where_no_temporary_file_can_be_written(tmp_path: Path) -> None:
    # No file may have a byte: set from Python, where the signal that goes with it stays ignored.
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
        "from flagbench.cli import main; sys.exit(main.run(sys.argv[1:]))"
    )
    done = process("-c", program, "doctor", "--json", "--store", str(tmp_path / "store"))
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0
    for name in ("temporary files", "leftovers"):
        assert findings[name]["level"] == "warn"
        assert findings[name]["remedy"]


@pytest.mark.parametrize(("host", "settings"), [("tcp://[::1", "{}"), ("", '{"currentContext": 5}')])
def test_doctor_works_with_invalid_docker_settings(
    flagbench: Flagbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, settings: str
) -> None:
    (tmp_path / "config.json").write_text(settings)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", host)
    answer = flagbench(f"doctor --store {tmp_path / 'store'} --json").json
    assert answer["findings"][-1]["name"] == "docker"


def use_engine(monkeypatch: pytest.MonkeyPatch, connect: Callable[[], object]) -> None:
    """Have doctor connect to this engine, with a docker command."""
    monkeypatch.setattr("flagbench.images.docker_process.find_docker", lambda: "docker")
    for module in (doctor, docker):
        monkeypatch.setattr(module, "open_engine", connect)


def mock_engine(*images: str) -> Mock:
    """An engine with some images."""
    return Mock(**{"health.return_value": "Engine 1", "inspect": {ref: ref for ref in images}.get})


def test_what_an_engine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = mock_engine("flagbench/distilbert:cpu", "flagbench/stack:cpu", "other:1")
    use_engine(monkeypatch, lambda: engine)
    assert doctor.check_docker(load_catalog()) == Diagnosis("docker", Level.OK, "Engine 1; images: distilbert:cpu")
    assert engine.close.call_count == 2
    assert "no image of a case, `flagbench build`" in doctor.check_docker(None).detail


def test_without_an_engine_doctor_says_where_none_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    found = doctor.check_docker(None)
    assert found.level is Level.WARN
    assert f"no container engine answers at {tmp_path}/none" in found.detail
    assert "systemctl start docker" in str(found.remedy)
    assert "--via native" in str(found.remedy)


def test_a_record_that_could_not_be_stored_is_counted(
    make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert doctor.find_unsent().level is Level.OK
    set_aside(make_record(), "s3://bucket")
    assert doctor.find_unsent().level is Level.WARN
    monkeypatch.setattr(doctor, "find_waiting", Mock(side_effect=PermissionError("Permission denied")))
    assert "Permission denied" in doctor.find_unsent().detail


def test_leftovers_of_killed_runs_are_listed_and_left(tmp_path: Path) -> None:
    """A folder whose lock somebody holds is a run; without a holder it is what a killed one left."""
    for name in ("flagbench-left", "flagbench-held", "flagbench-without"):
        (tmp_path / name).mkdir()
    (tmp_path / "flagbench-left" / "owner.lock").touch()
    (tmp_path / "flagbench-link").symlink_to(tmp_path / "flagbench-left")
    with open(tmp_path / "flagbench-held" / "owner.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = doctor.find_leftovers(tmp_path)
        (tmp_path / "flagbench-left" / "owner.lock").unlink()
        assert doctor.find_leftovers(tmp_path).level is Level.OK
    assert found.level is Level.WARN
    assert "flagbench-left" in found.detail
    assert not any(name in found.detail for name in ("held", "without", "link"))
    assert (tmp_path / "flagbench-left").is_dir()
