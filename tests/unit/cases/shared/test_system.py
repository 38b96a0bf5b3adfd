"""What ran, as the kernel and the running process show it."""

from __future__ import annotations

import ast
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flagbench_cases.rank.software import describe_software
from flagbench_cases.shared import system

pytestmark = pytest.mark.image


def test_software_is_that_of_the_running_process() -> None:
    found = describe_software("cpu")
    assert found["torch"] == str(torch.__version__)
    assert found["python"] == platform.python_version()
    assert (found["cuda"], found["cudnn"], found["nccl"]) == (None, None, None)
    assert "numpy" in found["packages"]
    assert json.loads(json.dumps(found)) == found


def test_versions_are_read_without_importing_anything() -> None:
    """They are facts of every record, and importing transformers costs seconds."""
    program = (
        "import sys; from flagbench_cases.shared import system; print(system.packages()); print(sorted(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, text=True).stdout
    versions, modules = (ast.literal_eval(line) for line in printed.splitlines())
    assert {"transformers", "peft", "accelerate", "numpy"} <= set(versions)
    assert not {"transformers", "peft", "deepspeed", "torch", "numpy"} & set(modules)


def test_a_machine_is_plain_data_without_addresses() -> None:
    found = system.machine()
    assert found["kernel"] == platform.release()
    assert found["host"] == platform.node()
    assert found["memory_bytes"] > 0
    assert found["cpu"]["model"]
    assert all(set(nic) <= {"name", "kind", "rate"} for nic in found["nics"])
    assert "lo" not in [nic["name"] for nic in found["nics"]]
    assert json.loads(json.dumps(found)) == found


def test_a_record_has_the_name_that_the_cluster_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-7")
    assert system.machine()["host"] == "gpu-7"
    monkeypatch.setenv("FLAGBENCH_HOST", "gpu-8")  # by the launcher of a container
    assert system.machine()["host"] == "gpu-8"


def test_only_rdma_devices_with_an_active_port_are_listed(tmp_path: Path) -> None:
    for name, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN"), ("mlx5_2", None)):
        port = tmp_path / "infiniband" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
        if state is not None:
            (port / "state").write_text(f"{state}\n")
    found = system.network_interfaces(str(tmp_path))
    assert found == [{"name": "mlx5_0", "kind": "infiniband", "rate": "200 Gb/sec (4X HDR)"}]


@pytest.mark.parametrize(
    ("context", "own", "reason"),
    [
        (None, None, "not running in an image"),
        ("sha256:c", None, "the launcher did not set FLAGBENCH_IMAGE_DIGEST"),
        ("sha256:c", "sha256:i", None),
    ],
)
def test_an_image_says_why_it_does_not_know_its_digest(
    context: str | None, own: str | None, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"CONTEXT_DIGEST": context, "IMAGE_DIGEST": own, "IMAGE_ID": own}
    for name, value in ((f"FLAGBENCH_{name}", value) for name, value in variables.items()):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert system.image() == {"context_digest": context, "digest": own, "id": own, "reason": reason}
