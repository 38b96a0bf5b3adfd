"""The runs that tests/bench/honest_runs.py draws: options that an image accepts, the same for the same seed."""

from __future__ import annotations

import pytest

from bench.honest_trials import CASES, CONTAINER, DOCKER, NATIVE, Trial, draw
from flagbench_cases.node import cli
from flagbench_cases.shared import config

pytestmark = pytest.mark.image

TRIALS = [draw(2, number, CASES) for number in range(400)]


def resolve(trial: Trial) -> None:
    """As the image side resolves a request."""
    arguments = cli.parse([trial.case, "--preset", "tiny", *trial.words])
    config.resolve(
        config.load_case(trial.case),
        config.load_stack("cpu"),
        nodes=1,
        gpus=arguments.gpus,
        preset=arguments.preset,
        division=arguments.division,
        precision=arguments.precision,
        seed=arguments.seed,
        source="files" if trial.data else arguments.data,
        weights=False,
        steps=arguments.steps,
        max_samples=arguments.max_samples,
        full=arguments.full,
        settings=arguments.set,
    )


@pytest.mark.parametrize("case", CASES)
def test_every_run_that_is_drawn_can_be_run(case: str) -> None:
    for trial in (trial for trial in TRIALS if trial.case == case):
        resolve(trial)


def test_a_seed_gives_the_same_runs_and_every_way() -> None:
    assert [draw(2, number, CASES) for number in range(400)] == TRIALS
    assert {trial.way for trial in TRIALS} == {NATIVE, CONTAINER, DOCKER}
    assert {trial.way for trial in (draw(2, number, ()) for number in range(100))} == {NATIVE}
