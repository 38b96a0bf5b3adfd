"""The plan of an acceptance: which case runs on a machine, by what its vendor's tool says of it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.accept.check import Outcome
from flagbench.accept.document import Asked
from flagbench.accept.facts import facts_before
from flagbench.accept.judge import checks_of, conclude
from flagbench.accept.plan import AcceptanceClock, AcceptancePlan, plan_of
from flagbench.accept.run import run_plan
from flagbench.errors import FlagbenchError
from flagbench.records.store import open_store
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Pci

SMI = """#!/bin/sh
case "$*" in
*memory.total*) for i in $(seq %d); do echo "%s, %d MiB, GPU-$i"; done;;
*driver_version*) echo "GPU-1, 580.95, Enabled, 700.00, 700.00";;
esac
"""
H100, A100 = ("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA A100-SXM4-40GB", 40960)
A100_80, RTX_4090 = ("NVIDIA A100-SXM4-80GB", 81920), ("NVIDIA GeForce RTX 4090", 24564)

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="a native run imports it")


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pci: Pci) -> Callable[..., AcceptancePlan]:
    def plan(
        device: tuple[str, int] | None,
        count: int,
        minutes: float,
        case: str | None = None,
        gpus: int | None = None,
        via: Any = "docker",
        soak: int | None = None,
        serving: bool = False,
    ) -> AcceptancePlan:
        tool = tmp_path / "nvidia-smi"
        if device is not None:
            tool.write_text(SMI % (count, *device))
            tool.chmod(0o755)
            monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        store = open_store(str(tmp_path / "store"))
        return plan_of(CATALOG, minutes, gpus, case, via if device else None, store, soak, serving=serving)

    return plan


@pytest.mark.parametrize(
    ("device", "count", "minutes", "stack", "case"),
    [
        (H100, 1, 1, "cuda13", None),
        (H100, 1, 2, "cuda13", "distilbert"),
        (A100, 8, 10, "a100-cuda11.8", "glm"),
        (A100, 8, 2, "a100-cuda11.8", "distilbert"),
        (A100, 1, 2, "a100-cuda11.8", "distilbert"),
        (H100, 1, 10, "cuda13", "llama2-7b-lora"),
        (H100, 1, 30, "cuda13", "llama3.1-8b-lora"),
        (H100, 8, 12, "cuda13", "llama3-8b"),
        (H100, 2, 300, "cuda13", "llama2-7b-lora"),
        (RTX_4090, 1, 60, "cuda13", "distilbert"),
        pytest.param(None, 0, 1, "cpu", "distilbert", marks=needs_torch),
    ],
)
def test_the_largest_case_that_fits(
    planned: Callable[..., AcceptancePlan], device: Any, count: int, minutes: float, stack: str, case: str | None
) -> None:
    plan = planned(device, count, minutes)
    assert (plan.stack.name, [run.case.name for run in plan.runs][1:]) == (stack, [case] if case else [])
    assert (plan.without_case is None) is (case is not None)
    assert sum(run.seconds for run in plan.runs) <= 60 * minutes


MAMF_SHAPES = ["--set=mamf_shape_bf16=2048x2048x13312", "--set=mamf_shape_fp8=1024x9216x14336"]


@pytest.mark.parametrize(
    ("device", "minutes", "soak", "settings", "seconds"),
    [
        (H100, 1, None, ["--set=measure_seconds=15", *MAMF_SHAPES], [35]),
        (H100, 2, None, ["--set=heat_seconds=30", "--set=measure_seconds=22", *MAMF_SHAPES], [72]),
        (RTX_4090, 2, None, ["--set=heat_seconds=30", "--set=measure_seconds=22"], [72]),
        (H100, 2, 30, ["--set=laps=20", "--set=measure_seconds=90"], [72, 1820]),
        (H100, 2, 5, ["--set=laps=5", "--set=measure_seconds=60"], [72, 320]),
    ],
)
def test_the_roofs_are_measured_in_the_shapes_of_published_rows(
    planned: Callable[..., AcceptancePlan],
    device: Any,
    minutes: float,
    soak: int | None,
    settings: list[str],
    seconds: list[float],
) -> None:
    runs = [run for run in planned(device, 1, minutes, soak=soak).runs if run.case.name == "roofs"]
    words = runs[-1].target.request.options.command_line()
    assert sorted(word for word in words if word.startswith("--set=")) == sorted(settings)
    assert ([run.seconds for run in runs], runs[-1].soak) == (seconds, soak is not None)


def test_the_first_device_serves_in_an_image_of_its_own(planned: Callable[..., AcceptancePlan]) -> None:
    plan = planned(H100, 8, 12, soak=3, serving=True)
    *_, serving, soak = plan.runs
    assert (serving.target.name, serving.target.request.options.gpus) == ("serve-llama3.1-8b:vllm-cuda13", 1)
    assert "--roofs" in serving.target.request.options.command_line()
    assert (plan.stack.name, soak.case.name, soak.soak) == ("cuda13", "roofs", True)
    assert sum(run.seconds for run in plan.runs if not run.soak) <= 60 * 12


@needs_torch
def test_a_processor_is_not_judged_by_serving(planned: Callable[..., AcceptancePlan]) -> None:
    with pytest.raises(FlagbenchError) as refused:
        planned(None, 0, 10, serving=True)
    assert refused.value.code == ExitCode.USAGE


@pytest.mark.parametrize("minutes", [3, 10])
def test_a_case_runs_for_as_long_as_shows_heat(planned: Callable[..., AcceptancePlan], minutes: float) -> None:
    (_, case) = planned(A100, 8, minutes, "distilbert").runs
    steps = int(
        next(word for word in case.target.request.options.command_line() if word.startswith("--steps=")).split("=")[1]
    )
    assert steps * 0.1318 >= 30


def test_all_missing_images_are_to_be_built(
    planned: Callable[..., AcceptancePlan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(launcher: Any, request: Any) -> None:
        raise FlagbenchError("there is no image", remedy=f"flagbench build {request.case.name}:cuda13")

    monkeypatch.setattr("flagbench.runs.launchers.docker.DockerLauncher.check", missing)
    asked = Asked(minutes=2.0, gpus=None, case=None, price_per_hour=None)
    store = open_store(str(tmp_path / "store"))
    facts = run_plan(planned(H100, 1, 2), CATALOG, store, AcceptanceClock(2), asked).facts
    action = conclude(checks_of(facts, {}, CATALOG), facts, {}).action
    builds = ["flagbench build roofs:cuda13", "flagbench build distilbert:cuda13"]
    assert (action.do, list(action.remedies[-2:])) == ("fix", builds)


@pytest.mark.parametrize(("gpus", "count", "outcome"), [(None, 4, Outcome.INCONCLUSIVE), (2, 2, Outcome.PASS)])
def test_hidden_devices_are_to_be_made_visible(
    planned: Callable[..., AcceptancePlan],
    monkeypatch: pytest.MonkeyPatch,
    gpus: int | None,
    count: int,
    outcome: Outcome,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    plan = planned(H100, 4, 1, gpus=gpus)
    asked = Asked(minutes=1.0, gpus=gpus, case=None, price_per_hour=None)
    (devices, *_) = checks_of(facts_before(plan, asked, CATALOG), {}, CATALOG)
    assert (plan.gpus, devices.outcome) == (count, outcome)


@pytest.mark.parametrize(("via", "floor"), [("docker", "580.65"), pytest.param("native", None, marks=needs_torch)])
def test_what_is_known_before_a_run(
    planned: Callable[..., AcceptancePlan], tmp_path: Path, via: Any, floor: str | None
) -> None:
    plan = planned(H100, 1, 2, via=via)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(tool.read_text(encoding="utf-8").replace("580.95", "535.54"), encoding="utf-8")
    asked = Asked(minutes=0.1, gpus=None, case=None, price_per_hour=None)
    facts = run_plan(plan, CATALOG, open_store(str(tmp_path / "store")), AcceptanceClock(0.1), asked).facts
    assert (facts.driver_floor, len(facts.machine.partitions)) == (floor, 1)


@pytest.mark.parametrize(("memory_mib", "slices"), [(81559, 0), (20480, 1)])
def test_a_device_that_shows_a_part_of_its_memory_is_a_slice(
    planned: Callable[..., AcceptancePlan], memory_mib: int, slices: int
) -> None:
    asked = Asked(minutes=2, gpus=None, case=None, price_per_hour=None)
    facts = facts_before(planned((H100[0], memory_mib), 1, 2), asked, CATALOG)
    assert [words for words in facts.machine.partitions if "shows" in words] == slices * ["GPU-1 shows 20 of 80 GiB"]


def test_a_named_case_is_run(planned: Callable[..., AcceptancePlan]) -> None:
    plan = planned(H100, 1, 1, "glm")
    assert [run.case.name for run in plan.runs] == ["roofs", "glm"]


def test_a_named_case_without_time_is_run_as_its_row(planned: Callable[..., AcceptancePlan]) -> None:
    plan = planned(A100_80, 8, 2, "llama3-8b")
    assert "--set=pp=2" in plan.runs[1].target.request.options.command_line()


@pytest.mark.parametrize("case", ["roofs", "none", "distilbert:none"])
def test_what_is_no_case_is_refused(planned: Callable[..., AcceptancePlan], case: str) -> None:
    with pytest.raises(FlagbenchError):
        planned(None, 0, 1, case)


def test_more_ranks_than_processors_are_refused(planned: Callable[..., AcceptancePlan]) -> None:
    with pytest.raises(FlagbenchError, match="1000"):
        planned(None, 0, 1, gpus=1000)


def test_without_an_engine_nothing_is_said_of_the_machine(
    planned: Callable[..., AcceptancePlan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    asked = Asked(minutes=2.0, gpus=None, case=None, price_per_hour=None)
    with pytest.raises(FlagbenchError) as caught:
        run_plan(planned(H100, 1, 2), CATALOG, open_store(str(tmp_path / "store")), AcceptanceClock(2), asked)
    assert caught.value.code is ExitCode.ENGINE
