"""Evidence that is not possible in itself, and checks that it does not bear out, in records forged consistently."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.errors import FlagbenchError
from flagbench.record.read import read_record
from flagbench.verify import Verdict, VerifyResult, plausible, verify_claim
from forging import column, consistent, losses, scale, sealed
from honest import CLAIMS, Pace, honest_record

Raw = dict[str, Any]
Edit = Callable[[Raw], object]
DISTILBERT, LORA, GLM = "distilbert/a100-1x8-fp32", "llama2-7b-lora/a100-1x1-fp16-bs4", "glm/a100-1x8-fp32"
AQUILA, LLAMA = "aquila-33b/a100-1x8-tp8", "llama2-70b/h800-4x8-amp-tp8-pp4"


@pytest.fixture
def _numbers_are_proved() -> None:
    """Here they are not: see conftest.py."""


@pytest.fixture(autouse=True)
def _parts_may_disagree() -> None:
    """Here they may not."""


@cache
def _made(claim: str, steps: int | None) -> str:
    return json.dumps(honest_record(CLAIMS[claim], Pace(noise=0.01), steps=steps, count=130))


def made(claim: str = DISTILBERT, steps: int | None = None) -> Raw:
    found: Raw = json.loads(_made(claim, steps))
    return found


def verify(*raws: Raw, claim: str = DISTILBERT) -> VerifyResult:
    found = CLAIMS[claim]
    return verify_claim([read_record(json.dumps(raw).encode()) for raw in raws], found, CATALOG.cases[found.case])


def test_a_record_that_is_computed_again_is_the_same() -> None:
    for claim in (DISTILBERT, LORA, AQUILA, LLAMA):
        raw = made(claim)
        assert consistent(copy.deepcopy(raw)) == raw
        assert verify(raw, claim=claim).verdict is Verdict.REPRODUCED


def _steps_alone(raw: Raw) -> None:
    scale(raw, 0.6, phases=False)


def _lasted(rank: int, factor: float) -> Edit:
    def edit(raw: Raw) -> None:
        raw["evidence"]["durations"]["train"][rank] = round(raw["evidence"]["durations"]["train"][rank] * factor)

    return edit


def _published_by_one_rank(raw: Raw) -> None:
    """The publisher's clock is that of rank 0, which counts for all."""
    column(raw, "samples_published", lambda _: 0)
    column(raw, "samples_published", lambda _: 8 * 32, rank=0)


def _useful(raw: Raw) -> None:
    column(raw, "tokens_useful", lambda tokens: 2 * tokens, rank=3)


def _tokens(raw: Raw) -> None:
    column(raw, "tokens", lambda tokens: tokens + 1)


def _in_blocks(raw: Raw) -> None:
    for span in raw["evidence"]["spans"]:
        for name, of_ranks in span["columns"].items():
            if not isinstance(of_ranks, int):
                span["columns"][name] = [
                    of if isinstance(of, int) else [sum(of[at : at + 10]) for at in range(0, len(of), 10)]
                    for of in of_ranks
                ]
        span["loss"] = [of and [sum(of[at : at + 10]) for at in range(0, len(of), 10)] for of in span["loss"]]
    raw["evidence"]["block"] = 10


def _ceiling(raw: Raw) -> None:
    raw["evidence"]["ceilings"][3] = 2e14


def _loss(change: Callable[[int, float], float | None]) -> Edit:
    return lambda raw: losses(raw, change)


def _without_losses(raw: Raw) -> None:
    raw["evidence"]["loss_tail"] = raw["quality"]["losses"]["values"][-50:]
    raw["quality"].update(losses=None, loss_curve=[])
    for span in raw["evidence"]["spans"]:
        del span["loss"]


def _quality(**fields: Any) -> Edit:
    return lambda raw: raw["quality"].update(fields)


def _evaluation(**fields: Any) -> Edit:
    return lambda raw: raw["quality"]["evaluations"][0].update(fields)


def _accuracy(value: float | None, **fields: Any) -> Edit:
    return _evaluation(accuracy=value, published_accuracy=value, **fields)


def _did_not_converge(raw: Raw) -> None:
    _accuracy(0.75)(raw)
    raw["quality"]["checks"][-1]["detail"] = "acc 0.7500 of 10000 examples; guessing gives 0.5000, at most 0.5150"
    raw["quality"].update(converged=False, data={"train_examples": 67349})


IMPOSSIBLE: list[tuple[str, Edit, str]] = [
    # The steps and the time they took
    (DISTILBERT, _steps_alone, "steps and evaluations only"),
    (AQUILA, _steps_alone, "steps and evaluations only"),
    (DISTILBERT, _lasted(0, 0.5), "the steps of train of rank 0 took"),
    (DISTILBERT, _lasted(5, 0.5), "the steps of train of rank 5 took"),
    (DISTILBERT, _lasted(0, 1.001), "the duration of train of rank 0 is"),
    (DISTILBERT, lambda raw: raw["evidence"].pop("durations"), "its evidence has no duration of train"),
    # What they count
    (DISTILBERT, _published_by_one_rank, "published 256, and a full batch is 32"),
    (DISTILBERT, _useful, "rank 3 counts 16384 tokens"),
    (LORA, _tokens, "for 4 samples of 512"),
    (DISTILBERT, _in_blocks, "in blocks of 10 steps, and blocks of 1"),
    (DISTILBERT, _ceiling, "2e+14 FLOP/s in a matrix product, above the peak of 1.56e+14"),
    # Losses, and the checks on them
    (DISTILBERT, _loss(lambda step, loss: None), "loss_finite passed, but 130 losses are not finite"),
    (LORA, _loss(lambda step, loss: None if step == 60 else loss), "loss_finite passed, but 1 losses"),
    (LLAMA, _loss(lambda step, loss: 0.7), "the loss of all 130 steps is 0.7"),
    (LLAMA, _loss(lambda step, loss: loss - 9), "which no cross-entropy is"),
    (DISTILBERT, _loss(lambda step, loss: 0.5 + step / 100), "learned passed, but the mean loss of the first tenth"),
    (DISTILBERT, _without_losses, "quality.losses has 0 losses of 130 steps"),
    (DISTILBERT, lambda raw: raw["quality"]["losses"].update(first_step=7), "first_step is 7, but the run began"),
    (GLM, _quality(training={"skipped_steps": 100}), "updated passed, but at least 60 of 90 measured steps"),
    # Evaluations, the stop rule, and the set
    (DISTILBERT, _quality(evaluations=[]), "evaluated passed, but the last evaluation followed step null of 130"),
    (AQUILA, _quality(evaluations=[]), "evaluated passed, but the last evaluation"),
    (DISTILBERT, _evaluation(steps=120), "evaluated passed, but the last evaluation followed step 120 of 130"),
    (DISTILBERT, _accuracy(None), "above_chance passed, but no evaluation has an accuracy"),
    (DISTILBERT, _accuracy(0.05), "above_chance passed, but of acc 0.9150 of 10000 examples; the last has 0.0500"),
    (DISTILBERT, _evaluation(counted=1000), "the last has 0.9150 of 1000"),
    (DISTILBERT, _evaluation(seconds=1e4), "an evaluation took 10000 s, and the run 361.0 s"),
    (DISTILBERT, _evaluation(seconds=-1), "an evaluation took -1 s"),
    (DISTILBERT, _accuracy(0.5), "converged is true, but the last evaluation has 0.5 and the target is 0.91"),
    (DISTILBERT, _quality(converged=None), "converged is null, but the run has the target 0.91"),
    (DISTILBERT, _did_not_converge, "it did not reach its target, but ended after 33,280 samples"),
    (DISTILBERT, _quality(data={"train_examples": 100}), "33,280 samples, which are more than 10 epochs of 100"),
    (DISTILBERT, _quality(data={"eval_examples": 872}), "counted 10,000 examples, and its set has 872"),
]


@pytest.mark.parametrize(("claim", "edit", "words"), IMPOSSIBLE, ids=[words for _, _, words in IMPOSSIBLE])
def test_what_is_not_possible_is_invalid_however_consistent(claim: str, edit: Edit, words: str) -> None:
    raw = made(claim)
    edit(raw)
    result = verify(consistent(raw), claim=claim)
    assert result.verdict is Verdict.INVALID
    assert words in result.reason
    assert "and its evidence gives" not in result.reason


def test_a_loss_of_one_rank_that_is_not_finite_is_not_finite_on_average() -> None:
    raw = made()
    raw["evidence"]["spans"][1]["loss"][3][40] = None
    assert "steps 60 to 61 and those of the ranks are not both finite" in verify(sealed(raw)).reason


def test_an_accuracy_not_above_that_of_guessing_does_not_pass() -> None:
    raw = made()
    raw["quality"]["checks"][-1]["detail"] = "acc 0.9150 of 10000 examples; guessing gives 0.9140, at most 0.9224"
    assert "the accuracy of 0.9150 is not above 0.9224" in verify(raw).reason


@pytest.mark.parametrize(
    "detail", ["", "acc 9.9.9 of 1 examples; guessing gives 0.5, at most 0.6", f"acc 0.9150 of {'9' * 5000} examples"]
)
def test_a_check_of_other_words_is_not_held_against_numbers(detail: str) -> None:
    raw = made()
    raw["quality"]["checks"][-1]["detail"] = detail
    assert verify(raw).verdict is Verdict.REPRODUCED


def _with_few_flops(raw: Raw) -> None:
    for span in raw["evidence"]["spans"]:
        for name in ("executed", "useful"):
            of = span["flops"][name]
            span["flops"][name] = of // 1000 if isinstance(of, int) else [each // 1000 for each in of]


@pytest.mark.parametrize("claim", [DISTILBERT, LORA, LLAMA])
def test_few_flops_do_not_hide_an_impossible_speed(claim: str) -> None:
    raw = made(claim)
    scale(raw, 0.1)
    _with_few_flops(raw)
    assert "above the peak" in verify(consistent(raw), claim=claim).reason


@pytest.mark.parametrize("claim", [DISTILBERT, LORA, LLAMA, AQUILA])
@pytest.mark.parametrize("clock", ["host", "device"])
@pytest.mark.parametrize("rank", [None, 0])
def test_a_clock_that_stands_still_hides_no_speed(claim: str, clock: str, rank: int | None) -> None:
    raw = made(claim)
    scale(raw, 0.1)
    column(raw, clock, lambda _: 0, rank)
    result = verify(consistent(raw), claim=claim)
    assert result.verdict is Verdict.INVALID
    assert f"took no time by the clock of the {clock}" in result.reason


def test_a_slow_step_is_not_moved_out_of_the_host_s_clock() -> None:
    raw = honest_record(CLAIMS[DISTILBERT], Pace(slower=1 / 0.6), count=130)
    for span in raw["evidence"]["spans"]:
        columns = span["columns"]
        columns["after"] = [
            [a + h - 1 for a, h in zip(*each, strict=True)] for each in _each(raw, span, "after", "host")
        ]
    for name, change in (("host", lambda _: 1), ("device", lambda micro: round(0.6 * micro))):
        column(raw, name, change)
    result = verify(consistent(raw))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "may hide work of the device" in result.reason


def _each(raw: Raw, span: Raw, *names: str) -> list[tuple[list[int], ...]]:
    """The columns of each rank, by step."""
    world = raw["evidence"]["ranks"]

    def listed(value: Any) -> list[int]:
        if isinstance(value, dict):
            return [number for count, number in value["runs"] for _ in range(count)]
        return [value] * span["steps"] if isinstance(value, int) else value

    own = [[v] * world if isinstance(v := span["columns"][name], int) else v for name in names]
    return [tuple(map(listed, each)) for each in zip(*own, strict=True)]


def test_half_of_an_inference_s_step_is_not_moved_out_of_it() -> None:
    raw = made(AQUILA)
    for span in raw["evidence"]["spans"]:
        halves = _each(raw, span, "after", "host")
        span["columns"]["after"] = [[a + h - round(h / 2) for a, h in zip(*each, strict=True)] for each in halves]
    for name in ("host", "device"):
        column(raw, name, lambda micro: round(micro / 2))
    result = verify(consistent(raw), claim=AQUILA)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "its window took 2." in result.reason


@pytest.mark.parametrize("claim", [DISTILBERT, LORA, LLAMA])
@pytest.mark.parametrize("model", [{}, {"layers": {"x": 6}}, {"layers": {}, "dim": {"dim": {}}}], ids=str)
def test_a_size_that_the_configuration_hides_is_that_of_the_preset(claim: str, model: Raw) -> None:
    raw = made(claim)
    scale(raw, 0.1)
    _with_few_flops(raw)
    raw["flagbench"]["version"] = "0.0.9"
    del raw["config"]["model"]["layers"]
    raw["config"]["model"].update(model)
    assert "above the peak" in verify(consistent(raw), claim=claim).reason


def test_a_run_without_its_ceiling_is_not_known_to_be_possible() -> None:
    raw = made()
    del raw["evidence"]["ceilings"]
    result = verify(consistent(raw))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "what a matrix product reaches was not measured in its run" in result.reason


def test_the_physics_of_a_device_hold_on_a_stack_that_does_not_know_it() -> None:
    raw = made()
    scale(raw, 0.1)
    raw.update(stack="hopper-cuda13")
    raw["flops"]["peak"] = None
    assert "FLOP/s per device, above the peak of 1.56e+14" in verify(consistent(raw)).reason


def runs(count: int, steps: int | None, change: Callable[[int, Raw], object] = lambda number, raw: None) -> list[Raw]:
    """As many runs of distilbert on different days."""
    found = []
    for number in range(count):
        raw = honest_record(CLAIMS[DISTILBERT], Pace(seed=number), steps=steps, count=130)
        raw.update(record_id=f"made-up-run-{number}", run_id=f"run-{number}")
        raw["created_at"] = f"2026-01-{number + 1:02d}T12:00:00Z"
        change(number, raw)
        found.append(raw)
    return found


def test_five_windows_of_a_step_each_are_too_few_steps() -> None:
    assert verify(*runs(5, 50)).verdict is Verdict.REPRODUCED
    result = verify(*runs(5, 21))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "its 5 windows have 5 steps, and fewer than 100 in all say too little: 95 more would" in result.reason


def _as_first(first: Raw, change: Callable[[int, Raw], object]) -> Callable[[int, Raw], object]:
    def edit(number: int, raw: Raw) -> None:
        names = ("record_id", "run_id", "created_at")
        raw.update({**copy.deepcopy(first), **{name: raw[name] for name in names}})
        change(number, raw)
        consistent(raw)

    return edit


def _noisy(number: int, raw: Raw) -> None:
    for name in ("host", "device"):
        column(raw, name, lambda micro: micro + (micro * (number + 3)) % 5 - 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda number, raw: scale(raw, 1 + number / 500),
        _noisy,
        lambda number, raw: column(raw, "host", lambda micro: micro + 9),
    ],
    ids=["a factor", "microseconds of noise", "an offset"],
)
def test_a_run_in_another_proportion_is_the_same_run(change: Callable[[int, Raw], object]) -> None:
    with pytest.raises(FlagbenchError, match="step times are equal") as caught:
        verify(*runs(5, None, _as_first(made(), change)))
    assert "count as one run" in caught.value.message


def test_every_rule_names_a_few_of_many() -> None:
    raw = made()
    column(raw, "tokens_useful", lambda tokens: 2 * tokens)
    assert verify(consistent(raw)).reason.count("counts 16384 tokens") == plausible.MOST_CLAUSES
