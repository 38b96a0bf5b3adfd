"""The container of a run: what a stack is granted, whose it is, what it is told, and the line that starts it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs import CATALOG
from flagbench.errors import FlagbenchError
from flagbench.manifests.stack import DockerNeeds, MultiNodeNeeds
from flagbench.runs.launchers.container_environment import is_another_node, passed_on
from flagbench.runs.launchers.docker import DockerLauncher
from flagbench.runs.launchers.docker_command import (
    Container,
    DockerOptions,
    Host,
    plan_container,
    this_host,
)
from flagbench.runs.launchers.folders import Folder
from flagbench.runs.request import RunRequest
from flagbench_core.exit_codes import ExitCode

MakeRequest = Callable[..., RunRequest]
MakeHost = Callable[..., Host]
Planned = Callable[..., Container]
FABRIC = frozenset({"/dev/infiniband"})


@pytest.fixture
def planned(make_request: MakeRequest, make_host: MakeHost) -> Planned:
    """`planned(stack, host={...}, image=..., memory=..., **options)`: the container of a run on some machine."""

    def make(stack: str = "cpu", *, host: dict[str, Any] | None = None, **options: Any) -> Container:
        of_docker = {name: options.pop(name) for name in ("image", "memory") if name in options}
        return plan_container(
            make_request(stack, **options), DockerOptions(**of_docker), {}, make_host(**(host or {}))
        )

    return make


@pytest.mark.parametrize(
    ("stack", "options", "expected"),
    [
        ("cpu", {}, {"gpus": None, "devices": (), "groups": (), "capabilities": (), "shm_size": "1g", "root": False}),
        ("a100", {}, {"gpus": "all", "ulimits": {"memlock": -1, "stack": 67108864}}),
        # By number: the image's own group video may have another. Without the group here, the image must know it.
        (
            "c500-maca3",
            {"host": {"groups": {"video": 44}}},
            {"devices": ("/dev/mxcd", "/dev/dri"), "groups": ("44",)},
        ),
        ("c500-maca3", {}, {"groups": ("video",), "devices": ("/dev/mxcd", "/dev/dri")}),
        # The fabric is granted to several nodes that have it.
        ("a100", {"host": {"nodes": FABRIC}}, {"devices": (), "capabilities": ()}),
        ("a100", {"nodes": 2}, {"devices": (), "capabilities": ()}),
        ("a100", {"nodes": 2, "host": {"nodes": FABRIC}}, {"devices": (*FABRIC,), "capabilities": ("IPC_LOCK",)}),
    ],
)
def test_what_a_stack_is_granted(
    planned: Planned, stack: str, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    granted = planned(stack, **options).grants
    assert {name: getattr(granted, name) for name in expected} == expected


def test_whose_a_container_is(planned: Planned, tmp_path: Path) -> None:
    host = {"uid": 1234, "gid": 100, "further": (20, 30)}
    alone = planned(host=host)
    assert (alone.user, alone.groups) == (None, ()), "the image's own user, where no folder is the caller's"
    writing = planned(host=host, out=str(tmp_path))
    assert (writing.user, writing.groups) == ("1234:100", ("20", "30"))
    rootless = writing.rootless()
    assert (rootless.user, rootless.groups, alone.rootless()) == ("0:0", (), alone)
    root = planned(host={"uid": 0, "gid": 0, "further": (4, 20)}, out=str(tmp_path))
    assert (root.user, root.groups) == ("0:0", ())


def test_one_node_names_its_run_and_has_its_own_network(planned: Planned) -> None:
    container = planned()
    assert f"--run-id={container.run}" in container.arguments
    assert container.name.startswith(f"flagbench-{container.run}-")
    assert planned().run != container.run
    assert container.network == "bridge"
    # Of several, node 0 names the run.
    assert planned(nodes=2).network == "host"
    assert not any(word.startswith("--run-id") for word in planned(nodes=2).arguments)
    assert "--run-id=mine" in planned(nodes=2, run_id="mine").arguments


def test_the_image_and_memory_of_a_container(planned: Planned) -> None:
    assert planned(image="s3://lab/flagbench/distilbert:cpu").image == "flagbench/distilbert:cpu"
    assert planned(image="sha256:12ab").image == "sha256:12ab"
    words = planned(memory="512M").command()
    assert {"--memory=512M", "--memory-swap=512M"} <= {*words}, "no swap"


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        *(("image", value) for value in ("--privileged", "", "a b", "$(id)")),
        *(("image", value) for value in ("s3://lab", "s3://lab/flagbench/distilbert", "s3:/lab/distilbert:cpu")),
        *(("memory", value) for value in ("", "2", "-1g", "0g", "1.5g", "2g --privileged", "9" * 30 + "g")),
    ],
)
def test_no_container_is_made_of(planned: Planned, option: str, wrong: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        planned(**{option: wrong})
    assert caught.value.code is ExitCode.USAGE


def test_the_caller_s_environment_stays_outside(make_request: MakeRequest, make_host: MakeHost) -> None:
    caller = {
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HF_TOKEN": "secret",
        "FLAGBENCH_PIP_SOURCE": "https://user:secret@host",
        "FLAGBENCH_STACK": "another",
        "FLAGBENCH_MASTER": "a:1",
        "PATH": "/bin",
        "NCCL_DEBUG": "INFO",
        "NCCL_SOCKET_IFNAME": "ib0",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUDA_HOME": "/usr/local/cuda-99",
        "OMP_NUM_THREADS": "4",
    }
    one = plan_container(make_request("a100"), DockerOptions(), caller, make_host()).environment
    assert one == {"CUDA_VISIBLE_DEVICES": "0,1", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
    several = passed_on(caller, make_request("cpu").stack, 2)
    assert set(several) == {"FLAGBENCH_MASTER", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS"}


def test_a_container_gets_what_changes_a_measurement(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = {"PYTORCH_ALLOC_CONF": "x", "NVTE_FLASH_ATTN": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    assert passed_on(caller, CATALOG.stacks["cpu"], 1) == caller
    monkeypatch.setenv("HSA_X", "1 2")
    given = planned(env=("HSA_X", "NCCL_DEBUG=WARN", "E="))
    expected = {"HSA_X": "1 2", "NCCL_DEBUG": "WARN", "E": "", "FLAGBENCH_ENV": "HSA_X,NCCL_DEBUG,E"}
    assert {name: given.environment.get(name) for name in expected} == expected
    assert not any(word.startswith("--env") for word in given.arguments)


@pytest.mark.parametrize("wrong", ["NOT_SET_HERE", "=x", "A=1\n", "HF_TOKEN=hunter2", "FLAGBENCH_STACK=cpu"])
def test_a_variable_that_cannot_be_given(make_request: MakeRequest, wrong: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        make_request(env=(wrong,))
    assert caught.value.code is ExitCode.USAGE
    assert "hunter2" not in caught.value.message + caught.value.remedy


@pytest.mark.parametrize(
    ("rank", "environment", "another"),
    [
        (None, {}, False),
        (0, {"JOB_COMPLETION_INDEX": "1"}, False),
        (1, {}, True),
        (None, {"JOB_COMPLETION_INDEX": "1"}, True),
        (None, {"FLAGBENCH_NODE_RANK": "0", "SLURM_NODEID": "3"}, False),
        (None, {"SLURM_NODEID": "x"}, False),
    ],
)
def test_which_node_this_is(rank: int | None, environment: dict[str, str], another: bool) -> None:
    assert is_another_node(rank, environment) is another


def test_this_host_knows_its_caller_and_its_groups() -> None:
    host = this_host()
    assert host.gid not in host.groups
    assert host.group_id("root") == 0
    assert host.group_id("no-such-group-here") is None
    assert host.exists("/dev/null")


def test_the_command_line(make_request: MakeRequest, make_host: MakeHost) -> None:
    request = make_request("a100", nodes=2, gpus=8, node_rank=1, master="node-0:29400", preset="tiny")
    container = plan_container(request, DockerOptions(memory="64g"), {"NCCL_DEBUG": "INFO"}, make_host(nodes=FABRIC))
    assert " ".join(replace(container, run="r").command("--rm")) == (
        "docker run --rm --pull=never --label=dev.flagbench.run=r --env=NCCL_DEBUG=INFO --network=host --gpus=all "
        "--device=/dev/infiniband --cap-add=IPC_LOCK --shm-size=16g --ulimit=memlock=-1 --ulimit=stack=67108864 "
        "--memory=64g --memory-swap=64g flagbench/distilbert:a100-cuda11.6 "
        "--nodes=2 --gpus=8 --preset=tiny --node-rank=1 --master=node-0:29400"
    )


@pytest.mark.parametrize("stack", [name for name, stack in CATALOG.stacks.items() if "distilbert" in stack.runs])
def test_no_stack_is_privileged_or_publishes_a_port(planned: Planned, stack: str) -> None:
    container = planned(stack)
    assert not any(word.startswith(("--privileged", "--publish", "--volume")) for word in container.command())
    assert (container.user == "0:0") == CATALOG.stacks[stack].docker.root


@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_every_value_stays_in_its_word(value: str) -> None:
    folder = Folder("/" + value.replace("\r", ""), "/out", writable=False)
    needs = DockerNeeds(None, (), (), (), "1g", {}, False, MultiNodeNeeds((), ()))
    *words, mount, image, argument = Container(
        "i", "n", "r", (f"--set={value}",), {"X": value}, (folder,), needs
    ).command()
    assert (f"--env=X={value}" in words, image, argument) == (True, "i", f"--set={value}")
    (fields,) = csv.reader(io.StringIO(mount.removeprefix("--mount="), newline=""))
    assert fields == ["type=bind", f"source={folder.source}", "target=/out", "readonly"]


def test_without_an_engine_a_native_run_is_named(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    with pytest.raises(FlagbenchError) as error:
        DockerLauncher().launch(make_request("a100"))
    assert (error.value.code, "--via native" in error.value.remedy) == (ExitCode.ENGINE, True)
