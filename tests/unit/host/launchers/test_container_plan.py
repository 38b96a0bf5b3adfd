"""The container of a run: what a stack is granted, whose it is, and what it is told; nothing more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.errors import FlagbenchError
from flagbench.launchers.container import Container, DockerOptions, is_another_node, passed_on, plan
from flagbench.launchers.host import Host, this_host
from flagbench.request import RunRequest

MakeRequest = Callable[..., RunRequest]
MakeHost = Callable[..., Host]
Planned = Callable[..., Container]
FABRIC = frozenset({"/dev/infiniband"})


@pytest.fixture
def planned(make_request: MakeRequest, make_host: MakeHost) -> Planned:
    """`planned(stack, host={...}, image=..., memory=..., **options)`: the container of a run on some machine."""

    def make(stack: str = "cpu", *, host: dict[str, Any] | None = None, **options: Any) -> Container:
        of_docker = {name: options.pop(name) for name in ("image", "memory") if name in options}
        return plan(make_request(stack, **options), DockerOptions(**of_docker), {}, make_host(**(host or {})))

    return make


def test_a_processor_needs_nothing_but_shared_memory(planned: Planned) -> None:
    granted = planned().grants
    assert (granted.gpus, granted.devices, granted.groups, granted.capabilities) == (None, (), (), ())
    assert granted.shm_size == "1g"
    assert not granted.root


def test_the_devices_of_a_stack(planned: Planned) -> None:
    nvidia = planned("a100").grants
    assert nvidia.gpus == "all"
    assert nvidia.ulimits == {"memlock": -1, "stack": 67108864}
    metax = planned("c500-maca3", host={"groups": {"video": 44}}).grants
    assert metax.devices == ("/dev/mxcd", "/dev/dri")
    assert metax.groups == ("44",), "by number: the image's own group video may have another"
    assert planned("c500-maca3").grants.groups == ("video",), "without the group here, the image must know it"


@pytest.mark.parametrize(
    ("nodes", "there", "devices", "capabilities"),
    [
        (1, FABRIC, (), ()),
        (2, frozenset(), (), ()),
        (2, FABRIC, ("/dev/infiniband",), ("IPC_LOCK",)),
    ],
)
def test_the_fabric_is_granted_to_several_nodes_that_have_it(
    planned: Planned, nodes: int, there: frozenset[str], devices: tuple[str, ...], capabilities: tuple[str, ...]
) -> None:
    granted = planned("a100", host={"nodes": there}, nodes=nodes).grants
    assert (granted.devices, granted.capabilities) == (devices, capabilities)


def test_several_nodes_use_the_host_s_network_and_one_has_its_own(planned: Planned) -> None:
    assert planned().network == "bridge"
    assert planned(nodes=2).network == "host"


def test_whose_a_container_is(planned: Planned, tmp_path: Path) -> None:
    host = {"uid": 1234, "gid": 100, "further": (20, 30)}
    alone = planned(host=host)
    assert (alone.user, alone.groups) == (None, ()), "the image's own user, where no folder is the caller's"
    writing = planned(host=host, out=str(tmp_path))
    assert (writing.user, writing.groups) == ("1234:100", ("20", "30"))
    root = planned(host={"uid": 0, "gid": 0, "further": (4, 20)}, out=str(tmp_path))
    assert (root.user, root.groups) == ("0:0", ())


@pytest.mark.parametrize("stack", ["cpu", "a100", "c500", "hopper-cuda13"])
def test_root_only_where_a_device_demands_it(planned: Planned, make_request: MakeRequest, stack: str) -> None:
    assert (planned(stack).user == "0:0") == make_request(stack).stack.docker.root


def test_one_node_s_run_is_named_by_its_label_and_its_record_alike(planned: Planned) -> None:
    container = planned()
    assert f"--run-id={container.run}" in container.arguments
    assert container.name.startswith(f"flagbench-{container.run}-")
    assert planned().run != container.run


def test_of_several_nodes_node_0_names_the_run(planned: Planned) -> None:
    assert not any(word.startswith("--run-id") for word in planned(nodes=2).arguments)
    assert "--run-id=mine" in planned(nodes=2, run_id="mine").arguments


def test_the_image(planned: Planned) -> None:
    assert planned("a100").image == "flagbench/distilbert:a100-cuda11.6"
    assert planned(image="sha256:12ab").image == "sha256:12ab"
    for hostile in ("--privileged", "", "a b", "a\nb", "$(id)", "a;b"):
        with pytest.raises(FlagbenchError) as caught:
            planned(image=hostile)
        assert "--image" in caught.value.message


def test_the_memory_of_a_container(planned: Planned) -> None:
    assert planned(memory="2g").memory == 2 * 2**30
    assert planned(memory="512M").memory == 512 * 2**20
    for wrong in ("", "2", "1m", "-1", "2x", "0g", "1.5g", "2g --privileged", "9" * 30 + "g"):
        with pytest.raises(FlagbenchError) as caught:
            planned(memory=wrong)
        assert "--memory" in caught.value.message


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
        "OMP_NUM_THREADS": "4",
    }
    one = plan(make_request("a100"), DockerOptions(), caller, make_host()).environment
    assert one == {"CUDA_VISIBLE_DEVICES": "0,1", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
    several = passed_on(caller, make_request("cpu").stack, 2)
    assert set(several) == {"FLAGBENCH_MASTER", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS"}


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
