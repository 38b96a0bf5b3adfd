"""The container of a run: what a stack is granted, whose it is, and what it is told; nothing more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flagbench.errors import FlagbenchError
from flagbench.launchers.container import Container, DockerOptions, memory_limit, plan
from flagbench.launchers.environment import is_another_node, passed_on
from flagbench.launchers.host import Host, this_host
from flagbench.request import RunRequest

MakeRequest = Callable[..., RunRequest]
MakeHost = Callable[..., Host]
FABRIC = frozenset({"/dev/infiniband"})


def planned(request: RunRequest, host: Host, **options: object) -> Container:
    return plan(request, DockerOptions(**options), {}, host)  # type: ignore[arg-type]


def test_a_processor_needs_nothing_but_shared_memory(make_request: MakeRequest, make_host: MakeHost) -> None:
    granted = planned(make_request("cpu"), make_host()).grants
    assert (granted.gpus, granted.devices, granted.groups, granted.capabilities) == (None, (), (), ())
    assert granted.shm_size == "1g"
    assert not granted.root


def test_the_devices_of_a_stack(make_request: MakeRequest, make_host: MakeHost) -> None:
    nvidia = planned(make_request("a100"), make_host()).grants
    assert nvidia.gpus == "all"
    assert nvidia.ulimits == {"memlock": -1, "stack": 67108864}
    metax = planned(make_request("c500-maca3"), make_host(groups={"video": 44})).grants
    assert metax.devices == ("/dev/mxcd", "/dev/dri")
    assert metax.groups == ("44",), "by number: the image's own group video may have another"


def test_a_group_that_this_machine_has_not_got_is_the_image_s_to_know(
    make_request: MakeRequest, make_host: MakeHost
) -> None:
    assert planned(make_request("c500-maca3"), make_host()).grants.groups == ("video",)


@pytest.mark.parametrize(
    ("nodes", "there", "devices", "capabilities"),
    [
        (1, FABRIC, (), ()),
        (2, frozenset(), (), ()),
        (2, FABRIC, ("/dev/infiniband",), ("IPC_LOCK",)),
    ],
)
def test_the_fabric_is_granted_to_several_nodes_that_have_it(
    make_request: MakeRequest,
    make_host: MakeHost,
    nodes: int,
    there: frozenset[str],
    devices: tuple[str, ...],
    capabilities: tuple[str, ...],
) -> None:
    granted = make_host(nodes=there).grants(make_request("a100").stack.docker, nodes)
    assert (granted.devices, granted.capabilities) == (devices, capabilities)


def test_several_nodes_use_the_host_s_network_and_one_has_its_own(
    make_request: MakeRequest, make_host: MakeHost
) -> None:
    assert planned(make_request(), make_host()).network == "bridge"
    assert planned(make_request(nodes=2), make_host()).network == "host"


def test_whose_a_container_is(make_request: MakeRequest, make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host(uid=1234, gid=100, further=(20, 30))
    alone = planned(make_request(), host)
    assert (alone.user, alone.groups) == (None, ()), "the image's own user, where no folder is the caller's"
    writing = planned(make_request(out=str(tmp_path)), host)
    assert (writing.user, writing.groups) == ("1234:100", ("20", "30"))
    assert writing.of_rootless_engine().user == "0:0", "whose root is the caller"
    root = planned(make_request(out=str(tmp_path)), make_host(uid=0, gid=0, further=(4, 20)))
    assert (root.user, root.groups) == ("0:0", ())


def test_root_only_where_a_device_demands_it(make_request: MakeRequest, make_host: MakeHost, tmp_path: Path) -> None:
    stacks = {
        name: planned(make_request(name), make_host()).user for name in ("cpu", "a100", "c500", "hopper-cuda13")
    }
    roots = {name for name in stacks if make_request(name).stack.docker.root}
    assert {name for name, user in stacks.items() if user == "0:0"} == roots


def test_one_node_s_run_is_named_by_its_label_and_its_record_alike(
    make_request: MakeRequest, make_host: MakeHost
) -> None:
    container = planned(make_request(), make_host())
    assert container.labels == {"dev.flagbench.run": container.run}
    assert f"--run-id={container.run}" in container.arguments
    assert container.name.startswith(f"flagbench-{container.run}-")
    assert planned(make_request(), make_host()).run != container.run


def test_of_several_nodes_node_0_names_the_run(make_request: MakeRequest, make_host: MakeHost) -> None:
    unnamed = planned(make_request(nodes=2), make_host())
    assert not any(word.startswith("--run-id") for word in unnamed.arguments)
    assert "--run-id=mine" in planned(make_request(nodes=2, run_id="mine"), make_host()).arguments


def test_the_image(make_request: MakeRequest, make_host: MakeHost) -> None:
    assert planned(make_request("a100"), make_host()).image == "flagbench/distilbert:a100-cuda11.6"
    assert planned(make_request(), make_host(), image="sha256:12ab").image == "sha256:12ab"
    for hostile in ("--privileged", "", "a b", "a\nb", "$(id)", "a;b"):
        with pytest.raises(FlagbenchError) as caught:
            planned(make_request(), make_host(), image=hostile)
        assert "--image" in caught.value.message


def test_the_memory_of_a_container(make_request: MakeRequest, make_host: MakeHost) -> None:
    assert planned(make_request(), make_host(), memory="2g").memory == 2 * 2**30
    assert memory_limit("512M") == 512 * 2**20
    for wrong in ("", "2", "1m", "-1", "2x", "0g", "1.5g", "2g --privileged", "9" * 30 + "g"):
        with pytest.raises(FlagbenchError) as caught:
            memory_limit(wrong)
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


def test_the_digest_is_the_launcher_s_to_say(make_request: MakeRequest, make_host: MakeHost) -> None:
    container = planned(make_request(), make_host())
    assert container.with_digest("sha256:1").environment == {"FLAGBENCH_IMAGE_DIGEST": "sha256:1"}


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
