"""`flagbench plan` as it is typed: what it prints, what it refuses and with which code it ends."""

from __future__ import annotations

import json
import shlex

import pytest

from flagbench import complete
from flagbench.plan.page import PREDICTION_ERROR
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Flagbench

PLAN = "plan llama2-70b --gpus 32 --mem 64"


def test_a_table_for_people(flagbench: Flagbench) -> None:
    done = flagbench(PLAN)
    assert done.code == 0
    head, header, *rest = [line for line in done.out.splitlines() if line]
    assert "llama2-70b in bf16" in head
    assert header.split()[:4] == ["TP", "PP", "DP", "RECOMPUTE"]
    table = [line.split() for line in rest[:17]]
    assert all(int(row[0]) * int(row[1]) * int(row[2]) == 32 for row in table)
    assert [row[6] for row in table] == sorted((row[6] for row in table), reverse=True)  # yes before no
    assert PREDICTION_ERROR in done.out
    tp, pp = table[0][:2]
    assert f"--nodes=4 --gpus=8 --set=tp={tp} --set=pp={pp}" in rest[-1]


def test_help_states_the_error_of_the_prediction(flagbench: Flagbench) -> None:
    assert PREDICTION_ERROR in " ".join(flagbench("plan --help").out.split())


def test_json_for_scripts(flagbench: Flagbench) -> None:
    told = flagbench(PLAN + " --json").json
    assert (told["devices"], told["devices_per_node"], told["batch_size"], told["stack"]) == (32, 8, 44, None)
    for row in told["layouts"]:
        assert {*row} == {"tp", "pp", "dp", "recompute", "global_batch", "fits", "tight", "memory"}
        assert row["fits"] == (row["memory"]["in_use"] <= 64 * 2**30)


def test_the_command_of_a_plan_is_accepted(flagbench: Flagbench) -> None:
    pytest.importorskip("megatron", reason="what a native run of the case imports")
    asked = "plan llama2-70b:cpu --gpus 4 --gpus-per-node 4 --mem 1 --preset tiny --set batch_size=4 --json"
    told = flagbench(asked).json
    assert (told["stack"], told["precision"], told["sequence_length"], told["batch_size"]) == ("cpu", "bf16", 64, 4)
    words = shlex.split(told["command"])
    assert words[:3] == ["flagbench", "run", "llama2-70b:cpu"]
    described = flagbench(" ".join(words[1:]) + " --via native --dry-run --json")
    assert described.code == 0
    layout = described.json["config"]["layout"]
    assert (layout["tp"], layout["pp"]) == (told["layouts"][0]["tp"], told["layouts"][0]["pp"])


def test_memory_of_the_devices_of_a_stack(flagbench: Flagbench) -> None:
    told = flagbench("plan llama2-70b:c500-maca3 --gpus 32 --json").json
    assert (told["stack"], told["memory_gib"]) == ("c500-maca3", 64)
    of_devices = flagbench("plan llama2-70b:h200 --gpus 32 --json").json
    assert (of_devices["stack"], of_devices["memory_gib"]) == ("cuda13", 141)
    assert "llama2-70b:h200" in of_devices["command"]
    several = flagbench("plan llama2-70b:h100 --gpus 32")
    assert several.code == ExitCode.USAGE
    assert "h100-nvl 94 GiB" in several.err
    assert "h200" not in several.err
    unknown = flagbench("plan llama2-70b --gpus 32")
    assert (unknown.code, "--mem" in unknown.err) == (ExitCode.USAGE, True)


def test_inference_is_split_by_tensors_alone(flagbench: Flagbench) -> None:
    told = flagbench("plan aquila-33b --gpus 8 --mem 40 --json").json
    assert {row["pp"] for row in told["layouts"]} == {1}


def test_nothing_fits(flagbench: Flagbench) -> None:
    done = flagbench("plan llama2-70b --gpus 8 --mem 16 --json")
    assert done.code == ExitCode.OUT_OF_MEMORY
    told = json.loads(done.out)
    assert told["command"] is None
    assert not any(row["fits"] for row in told["layouts"])
    smallest = told["layouts"][0]["memory"]["in_use"]
    assert f"{smallest / 2**30:.1f}" in done.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("llama2-700b --gpus 8 --mem 64", "llama2-70b"),
        ("glm --gpus 8 --mem 64", "llama2-70b"),
        ("llama2-70b:a100-cuda11.6 --gpus 8", "--mem GIB"),
        ("llama2-70b --gpus 12 --mem 64", "--gpus-per-node"),
        ("llama2-70b --gpus 24 --gpus-per-node 6 --mem 64 --set tp=3", "model.heads = 64"),
        ("llama2-70b --gpus 8 --mem 0", "--mem"),
        ("llama2-70b --gpus 8 --mem 64 --set micro_batch_size=3", "batch_size"),
    ],
)
def test_what_cannot_be_planned(flagbench: Flagbench, arguments: str, named: str) -> None:
    done = flagbench(f"plan {arguments}")
    assert (done.code, done.out) == (ExitCode.USAGE, "")
    assert named in done.err


def test_cases_are_completed_without_a_stack_too() -> None:
    offered = complete.cases("aquila")
    assert offered[0] == "aquila-33b"
    assert "aquila-33b:cpu" in offered
