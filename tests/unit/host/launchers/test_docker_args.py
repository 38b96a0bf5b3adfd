"""The same container for the engine's API and for a shell; no value can be read as anything but a value."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flagbench.catalog.model import DockerNeeds
from flagbench.launchers.container import Container, DockerOptions, plan
from flagbench.launchers.docker_args import docker_line, engine_config
from flagbench.launchers.folders import Folder
from flagbench.launchers.host import Host
from flagbench.request import RunRequest

MakeRequest = Callable[..., RunRequest]
MakeHost = Callable[..., Host]
_NOTHING = DockerNeeds(None, (), (), (), "1g", {}, False, (), ())
HOSTILE = ["a:b", "a,readonly", "a b", 'q"q', "ünïcode", "new\nline", "$(id)", "`id`", "'", "--privileged", "\\", "%"]


@pytest.fixture
def container(make_request: MakeRequest, make_host: MakeHost) -> Container:
    """Two nodes of an A100 stack, on a machine with a fabric."""
    request = make_request("a100", nodes=2, gpus=8, node_rank=1, master="node-0:29400", preset="tiny")
    host = make_host(nodes=frozenset({"/dev/infiniband"}))
    return plan(request, DockerOptions(memory="64g"), {"NCCL_DEBUG": "INFO"}, host)


def test_what_the_engine_is_asked(container: Container) -> None:
    config = engine_config(container, "sha256:1")
    assert config["Image"] == "sha256:1"
    assert config["Cmd"] == ["--nodes=2", "--gpus=8", "--preset=tiny", "--node-rank=1", "--master=node-0:29400"]
    assert config["Env"] == ["NCCL_DEBUG=INFO"]
    assert config["User"] == ""
    assert config["HostConfig"] == {
        "NetworkMode": "host",
        "ShmSize": 16 * 2**30,
        "Ulimits": [
            {"Name": "memlock", "Soft": -1, "Hard": -1},
            {"Name": "stack", "Soft": 67108864, "Hard": 67108864},
        ],
        "GroupAdd": [],
        "CapAdd": ["IPC_LOCK"],
        "Devices": [
            {"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rwm"}
        ],
        "Mounts": [],
        "DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}],
        "Memory": 64 * 2**30,
        "MemorySwap": 64 * 2**30,
    }


def test_no_stack_is_privileged(make_request: MakeRequest, make_host: MakeHost) -> None:
    for stack in ("cpu", "a100", "a100-cuda11.8", "c500", "c500-maca3", "hopper-cuda13"):
        text = json.dumps(engine_config(plan(make_request(stack), DockerOptions(), {}, make_host()), "i"))
        assert "Privileged" not in text
        assert "PortBindings" not in text


def test_the_line_for_a_shell(container: Container) -> None:
    assert docker_line(replace(container, run="r")) == (
        "docker run --rm --label dev.flagbench.run=r --env NCCL_DEBUG=INFO --network host --gpus all "
        "--device /dev/infiniband --cap-add IPC_LOCK --shm-size 16g --ulimit memlock=-1 --ulimit stack=67108864 "
        "--memory 68719476736 --memory-swap 68719476736 flagbench/distilbert:a100-cuda11.6 "
        "--nodes=2 --gpus=8 --preset=tiny --node-rank=1 --master=node-0:29400"
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_one_value(
    make_request: MakeRequest, make_host: MakeHost, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    hostile = plan(make_request(data=str(tmp_path / name)), DockerOptions(), {}, make_host())
    source = str(tmp_path / name)
    (mount,) = engine_config(hostile, "i")["HostConfig"]["Mounts"]
    assert mount == {"Type": "bind", "Source": source, "Target": "/data", "ReadOnly": True}
    words = shlex.split(docker_line(hostile))
    (fields,) = csv.reader(io.StringIO(words[words.index("--mount") + 1], newline=""))
    assert fields == ["type=bind", f"source={source}", "target=/data", "readonly"]
    assert words[words.index(hostile.image) + 1 :] == list(hostile.arguments)
    assert "--data=/data" in hostile.arguments


@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_whatever_stands_in_a_value_stays_in_it(value: str) -> None:
    folder = Folder("/" + value.replace("\n", ""), "/out", writable=True)
    container = Container("i", "n", "r", (f"--set={value}",), {"NCCL_X": value}, (folder,), _NOTHING)
    words = shlex.split(docker_line(container))
    assert words[:7] == ["docker", "run", "--rm", "--label", "dev.flagbench.run=r", "--env", f"NCCL_X={value}"]
    assert words[-1] == f"--set={value}"
    assert words[-2] == "i"
    assert engine_config(container, "i")["Cmd"] == [f"--set={value}"]
