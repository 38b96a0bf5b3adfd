"""The line that provides what a stack needs: nothing a host may lack, no folder or place lost, no word altered."""

from __future__ import annotations

import copy
import csv
import shlex
from typing import Any

import pytest

from flagbench_cases.node import cli
from flagbench_cases.node.docker_command import docker_command, docker_hints
from flagbench_cases.shared import config

pytestmark = pytest.mark.image


def plan(stack: str, *arguments: str, **changes: Any) -> dict[str, Any]:
    """What the parent leaves the agent of a run with these arguments."""
    argv = ["distilbert", *arguments]
    settings = {"case": "distilbert", "nodes": cli.parse(argv).nodes}
    made = {"stack": copy.deepcopy(config.load_stack(stack)), "config": settings, "argv": argv, "data": None}
    made.update({"node_rank": 0, "host": "127.0.0.1", "port": 29400}, **changes)
    return made


def second_of_two() -> dict[str, Any]:
    """The plan of the second node of a run on MetaX's devices."""
    return plan("c500-maca3", "--nodes", "2", node_rank=1, host="node-0", port=29500)


def words_of(made: dict[str, Any]) -> list[str]:
    return shlex.split(docker_command(made))


def mounts(made: dict[str, Any]) -> list[list[str]]:
    """The fields of every --mount, as docker reads them."""
    words = words_of(made)
    return [next(csv.reader([words[i + 1]])) for i, word in enumerate(words) if word == "--mount"]


def test_a_stack_of_nvidia() -> None:
    made = plan("a100-cuda11.6", "--nodes", "1", "--gpus", "8")
    assert docker_command(made) == (
        "docker run --rm --gpus all --shm-size 16g --ulimit memlock=-1 --ulimit stack=67108864 "
        "flagbench/distilbert:a100-cuda11.6 --nodes 1 --gpus 8"
    )
    assert docker_hints(made) == []


def test_a_stack_of_metax_on_two_nodes() -> None:
    made = second_of_two()
    assert docker_command(made) == (
        "docker run --rm --device /dev/mxcd --device /dev/dri --group-add video "
        "--shm-size 16g --ulimit memlock=-1 --ulimit stack=67108864 --network host "
        "flagbench/distilbert:c500-maca3 --nodes 2 --node-rank 1 --master node-0:29500"
    )


def test_what_a_host_may_lack_stands_in_words() -> None:
    made = second_of_two()
    assert docker_hints(made) == ["if the host has /dev/infiniband, add --device /dev/infiniband"]
    made["stack"]["docker"]["root"] = True  # root alone can hold a capability
    assert docker_hints(made) == ["if the host has /dev/infiniband, add --device /dev/infiniband --cap-add IPC_LOCK"]
    assert "--cap-add" not in docker_command(made)
    assert docker_hints(plan("c500-maca3", "--nodes", "1")) == []


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], ["--node-rank", "1", "--master", "[fd00::7]:29500"]),
        (["--node-rank", "1"], ["--master", "[fd00::7]:29500"]),
        (["--master=[fd00::7]:29500"], ["--node-rank", "1"]),
        (["--node-rank=1", "--master", "[fd00::7]:29500"], []),
    ],
)
def test_the_place_from_the_environment_becomes_arguments(given: list[str], added: list[str]) -> None:
    made = plan("cpu", "--nodes", "2", *given, node_rank=1, host="fd00::7", port=29500)
    words = words_of(made)
    assert words[words.index("flagbench/distilbert:cpu") + 1 :] == ["--nodes", "2", *given, *added]
    parsed = cli.parse(["distilbert", *words[words.index("flagbench/distilbert:cpu") + 1 :]])
    assert (parsed.node_rank, parsed.master) == (1, "[fd00::7]:29500")


def test_every_folder_of_the_arguments_comes_from_the_host() -> None:
    arguments = ["--data", "/sst2", "--weights=/model", "--out", "/out/", "--store", "file:///store%20of/all"]
    made = plan("cpu", *arguments, data="/sst2")
    assert mounts(made) == [
        ["type=bind", "source=HOSTDIR", "target=/sst2", "readonly"],
        ["type=bind", "source=HOSTDIR", "target=/model", "readonly"],
        ["type=bind", "source=HOSTDIR", "target=/out"],
        ["type=bind", "source=HOSTDIR", "target=/store of/all"],
    ]
    assert docker_hints(made) == ["replace every HOSTDIR with a folder of the host"]


@pytest.mark.parametrize(
    ("arguments", "data", "mounted"),
    [
        ([], "/data", [["target=/data", "readonly"]]),  # found where it is by default
        (["--data", "/data", "--out", "/data"], "/data", [["target=/data"]]),  # read and written
        (["--data", "synthetic"], None, []),
    ],
)
def test_a_folder_is_mounted_once(arguments: list[str], data: Any, mounted: Any) -> None:
    made = plan("cpu", *arguments, data=data)
    assert mounts(made) == [["type=bind", "source=HOSTDIR", *fields] for fields in mounted]
    assert bool(docker_hints(made)) == bool(mounted)


def test_only_a_stack_that_demands_root_gets_it() -> None:
    made = plan("cpu")
    assert "--user" not in docker_command(made)
    made["stack"]["docker"]["root"] = True
    assert "--user 0:0" in docker_command(made)


HOSTILE = ["a b", "$(touch x)", "`id`", "a'b", 'a"b', "a;b", "a\nb", "a,readonly", "a:b"]


@pytest.mark.parametrize("value", HOSTILE)
def test_every_word_reaches_the_image_as_it_was(value: str) -> None:
    made = plan("cpu", "--data=/" + value, data="/" + value)
    made["stack"]["docker"]["devices"] = [value]
    words = words_of(made)
    assert words[words.index("--device") + 1] == value
    assert words[-2:] == ["flagbench/distilbert:cpu", "--data=/" + value]


@pytest.mark.parametrize("value", HOSTILE)
def test_no_folder_is_read_as_another_field_of_its_mount(value: str) -> None:
    assert mounts(plan("cpu", "--out=/" + value)) == [["type=bind", "source=HOSTDIR", "target=/" + value]]
