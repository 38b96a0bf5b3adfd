"""Before a rank starts: the image is what its stack says, the devices are there, and what to do where not."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from flagbench_cases.engines import preflight
from flagbench_cases.shared import manifests
from flagbench_cases.shared.errors import CaseError
from flagbench_core.exit_codes import ExitCode
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run outside of any image and cluster, whatever the tests run in."""
    for name in ("FLAGBENCH_CONTEXT_DIGEST", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGBENCH_CONTEXT_DIGEST", "sha256:c")


def fake_torch(found: int, version: str = "1.12.0a0+bd13bc6", cuda: str | None = "11.6") -> Any:
    devices = SimpleNamespace(is_available=lambda: found > 0, device_count=lambda: found)
    return SimpleNamespace(__version__=version, version=SimpleNamespace(cuda=cuda), cuda=devices)


def plan(folder: Path, stack: str = "a100-cuda11.6", driver: str | None = None, **changes: Any) -> dict[str, Any]:
    """What the parent leaves the ranks; the Python that runs here is the expected one."""
    start = folder / "telemetry.jsonl"
    start.write_text(json.dumps(dict({"kind": "start"}, **({"driver_version": driver} if driver else {}))) + "\n")
    settings = dict({"case": "distilbert", "nodes": 1, "gpus": 8}, **changes)
    loaded = dict(manifests.load_stack(stack), python=platform.python_version().rpartition(".")[0])
    return {"stack": loaded, "config": settings, "telemetry": str(start)}


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CaseError]:
    """What a plan ends in under such a torch; a plan of the A100's stack, if none is given."""

    def check(module: Any, made: dict[str, Any] | None = None) -> CaseError:
        monkeypatch.setattr(preflight, "import_torch", lambda plan: module)
        with refuses(preflight.PreflightError, code=ExitCode.WRONG_HARDWARE) as caught:
            preflight.check(made or plan(tmp_path))
        return caught.value

    return check


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("2.6.0+cu118", "2.6.0+cu118", True),
        ("2.13.0+cpu", "2.13", True),
        ("2.10.0+metax3.8.0.11", "2.10.0+metax3.8", True),
        ("2.130.0", "2.13", False),
        ("2.10.0a0+b4e4ee81d3", "2.10.0", False),  # a pre-release is not the release
        ("2.6.0+cu118", "2.6.0+cu11", False),
        (None, "11.6", False),
    ],
)
def test_version_matches(found: str | None, expected: str, same: bool) -> None:
    assert preflight.matches(found, expected) is same


@pytest.mark.parametrize(
    ("driver", "floor", "old"),
    [
        ("470.57", "470.57", False),
        ("470.56.99", "470.57", True),
        ("2.12.13", "2.2.0", False),  # numbers, not text
        (None, "470.57", False),
        ("470.57", None, False),
    ],
)
def test_old_drivers(driver: str | None, floor: str | None, old: bool) -> None:
    assert preflight.older(driver, floor) is old


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (fake_torch(8, version="1.13.0"), "torch 1.13.0 (expected 1.12.0a0+bd13bc6)"),
        (fake_torch(8, cuda="11.7"), "cuda 11.7 (expected 11.6)"),
    ],
)
@pytest.mark.usefixtures("image")
def test_an_image_of_other_software_is_refused(module: Any, words: str, refused: Callable) -> None:
    error = refused(module)
    assert words in error.message
    assert error.remedy == "rebuild the image: flagbench build distilbert:a100-cuda11.6"


def test_outside_of_an_image_any_software_may_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "import_torch", lambda plan: fake_torch(8, version="9.9"))
    preflight.check(plan(tmp_path))


@pytest.mark.usefixtures("image")
def test_a_container_without_devices(refused: Callable) -> None:
    error = refused(fake_torch(0))
    assert "--gpus 8" in error.message
    assert error.remedy == (
        "give the container its devices: "
        "docker run --gpus all --shm-size 16g --ulimit memlock=-1 --ulimit stack=67108864"
    )


@pytest.mark.parametrize(("root", "capabilities"), [(False, ""), (True, " --cap-add IPC_LOCK")])
def test_docker_options_of_two_nodes(root: bool, capabilities: str) -> None:
    """Docker rejects a device that a host may lack; root alone can hold a capability."""
    needs = dict(manifests.load_stack("c500-maca3")["docker"], root=root)
    assert preflight.docker_options(needs, 2) == (
        "--device /dev/mxcd --device /dev/dri --group-add video --shm-size 16g --ulimit memlock=-1 "
        "--ulimit stack=67108864%s --network host (and if the host has them: --device /dev/infiniband%s)"
        % (" --user 0:0" if root else "", capabilities)
    )


@pytest.mark.usefixtures("image")
def test_a_pod_without_devices(monkeypatch: pytest.MonkeyPatch, refused: Callable) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    error = refused(fake_torch(0))
    assert "nvidia.com/gpu: 8" in error.remedy
    assert "docker" not in error.remedy


@pytest.mark.parametrize("found", [0, 3])
def test_a_native_run_without_devices(found: int, refused: Callable) -> None:
    error = refused(fake_torch(found))
    assert "docker" not in error.remedy
    assert "CUDA_VISIBLE_DEVICES" in error.remedy
    assert ("--gpus 3" in error.remedy) is (found == 3)


def test_a_native_run_with_a_torch_for_processors(refused: Callable) -> None:
    torch = fake_torch(0)
    torch.__version__ = "2.6.0+cpu"
    remedy = refused(torch).remedy
    assert ("pytorch.org" in remedy, ":cpu" in remedy) == (True, True)


def test_an_old_driver_explains_missing_devices(tmp_path: Path, refused: Callable) -> None:
    error = refused(fake_torch(0), plan(tmp_path, driver="450.80.02"))
    assert error.message.endswith("; its driver 450.80.02 is older than 470.57")
    assert error.remedy.startswith("install driver 470.57 or newer")


def test_an_old_driver_with_devices_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "import_torch", lambda plan: fake_torch(8))
    monkeypatch.setattr(preflight, "shared_memory", lambda: 2**34)
    preflight.check(plan(tmp_path, driver="450.80.02"))
    assert capsys.readouterr() == (
        "",
        "warning: the driver 450.80.02 is older than 470.57, which the stack requires\n",
    )


def test_a_native_run_tells_other_versions_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "import_torch", lambda plan: fake_torch(8, "2.11.0+cu130", "13.0"))
    monkeypatch.setattr(preflight, "shared_memory", lambda: None)
    preflight.check(plan(tmp_path, "cuda13", driver="580.95.05"))
    [line] = capsys.readouterr().err.splitlines()
    assert all(words in line for words in ("torch 2.11.0+cu130 (expected 2.10.0a0", "cuda 13.0 (expected 13.1)"))


def test_a_driver_that_is_not_known_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "import_torch", lambda plan: fake_torch(8))
    monkeypatch.setattr(preflight, "shared_memory", lambda: None)
    preflight.check(plan(tmp_path))
    assert capsys.readouterr().err.count("470.57") == 1


@pytest.mark.parametrize(
    ("room", "gpus", "warned"), [(64 * 2**20, 8, True), (64 * 2**20, 1, False), (2**30, 8, False), (None, 8, False)]
)
def test_little_shared_memory_is_warned_of(
    room: int | None,
    gpus: int,
    warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(preflight, "import_torch", lambda plan: fake_torch(8))
    monkeypatch.setattr(preflight, "shared_memory", lambda: room)
    preflight.check(plan(tmp_path, driver="535.54.03", gpus=gpus))
    line = "warning: /dev/shm has only 64 MiB for 8 ranks; start the container with --shm-size 16g\n"
    assert capsys.readouterr().err == (line if warned else "")


LIBRARY = ImportError("libcuda.so.1: cannot open shared object file: No such file or directory\nmore")
MISSING = ModuleNotFoundError("No module named 'torch'")


@pytest.mark.parametrize(
    ("stack", "error", "baked", "code", "message", "remedy"),
    [
        ("a100-cuda11.6", LIBRARY, True, 13, "libcuda.so.1", "docker run --gpus all"),
        ("a100-cuda11.6", LIBRARY, False, 13, "libcuda.so.1", "check the accelerator's driver"),
        ("cpu", LIBRARY, True, 4, "libcuda.so.1", "rebuild the image"),
        ("cpu", LIBRARY, False, 4, "libcuda.so.1", "reinstall"),
        ("cpu", MISSING, True, 13, "incomplete", "rebuild the image"),
        ("cpu", MISSING, False, 4, "No module named 'torch'", "install"),
    ],
)
def test_a_torch_that_does_not_import(
    stack: str,
    error: Exception,
    baked: bool,
    code: int,
    message: str,
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if baked:
        monkeypatch.setenv("FLAGBENCH_CONTEXT_DIGEST", "sha256:c")
    import_module = mock.Mock(side_effect=error)
    monkeypatch.setattr(preflight, "importlib", SimpleNamespace(import_module=import_module))
    with refuses(preflight.PreflightError, message, code=ExitCode(code)) as caught:
        preflight.check(plan(tmp_path, stack=stack))
    assert "\n" not in caught.value.message
    assert remedy in caught.value.remedy
