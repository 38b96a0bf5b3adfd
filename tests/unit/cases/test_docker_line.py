"""The line that provides what a stack needs: every grant of its manifest, and no word a shell would alter."""

from __future__ import annotations

import copy
import shlex
from typing import Any

import pytest

from flagbench_cases import config
from flagbench_cases.docker_line import docker_line

pytestmark = pytest.mark.image


def test_a_stack_of_nvidia() -> None:
    arguments = ["distilbert", "--nodes", "1", "--gpus", "8"]
    assert docker_line(config.load_stack("a100-cuda11.6"), "distilbert", arguments, 1) == (
        "docker run --rm --gpus all --shm-size 16g --ulimit memlock=-1 --ulimit stack=67108864 "
        "flagbench/distilbert:a100-cuda11.6 --nodes 1 --gpus 8"
    )


def test_a_stack_of_metax_on_two_nodes() -> None:
    line = docker_line(config.load_stack("c500-maca3"), "distilbert", ["distilbert", "--nodes", "2"], 2)
    assert line == (
        "docker run --rm --device /dev/mxcd --device /dev/dri --device /dev/infiniband --group-add video "
        "--cap-add IPC_LOCK --shm-size 16g --ulimit memlock=-1 --ulimit stack=67108864 --network host "
        "flagbench/distilbert:c500-maca3 --nodes 2"
    )


def test_only_a_stack_that_demands_root_gets_it() -> None:
    stack = copy.deepcopy(config.load_stack("cpu"))
    assert "--user" not in docker_line(stack, "distilbert", [], 1)
    stack["docker"]["root"] = True
    assert "--user 0:0" in docker_line(stack, "distilbert", [], 1)


@pytest.mark.parametrize("value", ["a b", "$(touch x)", "`id`", "a'b", 'a"b', "a;b", "a\nb", "*", "--set=x=$HOME"])
def test_every_word_reaches_the_image_as_it_was(value: str) -> None:
    stack: dict[str, Any] = copy.deepcopy(config.load_stack("cpu"))
    stack["docker"]["devices"] = [value]
    line = docker_line(stack, "distilbert", ["distilbert", "--data", value], 1)
    words = shlex.split(line)
    assert words[words.index("--device") + 1] == value
    assert words[-3:] == ["flagbench/distilbert:cpu", "--data", value]
