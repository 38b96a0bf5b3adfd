"""Evidence that is not possible in itself, and checks that it does not bear out, in records forged consistently."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.errors import FlagbenchError
from flagbench.record.read import read_record
from flagbench.verify import Verdict, VerifyResult, plausible, verify_baseline, verify_claim
from forging import column, consistent, scale, sealed
from honest import CLAIMS, Pace, honest_record
from make_replays import replayed

from . import edits

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


IMPOSSIBLE: list[tuple[str, Edit, str]] = [
    # The steps and the time they took
    (DISTILBERT, edits.steps_alone, "steps and evaluations only"),
    (AQUILA, edits.steps_alone, "steps and evaluations only"),
    (DISTILBERT, edits.lasted(0, 0.5), "the steps of train of rank 0 took"),
    (DISTILBERT, edits.lasted(5, 0.5), "the steps of train of rank 5 took"),
    (DISTILBERT, edits.lasted(0, 1.001), "the duration of train of rank 0 is"),
    (DISTILBERT, lambda raw: raw["evidence"].pop("durations"), "its evidence has no duration of train"),
    (DISTILBERT, edits.steps_as_evaluations, "its evaluations took"),
    (LLAMA, edits.steps_as_evaluations, "but timing.eval is 467.388 s"),
    (DISTILBERT, edits.timing(eval_initial=100.0), "its evaluations took 0 s, but timing.eval_initial is 100"),
    (DISTILBERT, edits.steps_before_a_checkpoint, "quality.resumed is set, but distilbert resumes nothing"),
    (LORA, edits.steps_before_a_checkpoint, "steps and evaluations only"),
    (AQUILA, edits.timing(infer=1.0), "the duration of infer of rank 0 is"),
    (AQUILA, edits.timing(infer=None), "timing.infer is null"),
    (DISTILBERT, edits.timing(train=None, e2e=2.0), "timing.train is null"),
    (AQUILA, edits.timing(e2e=None), "its evidence has no timing.e2e"),
    # What they count
    (GLM, edits.half_as_many_tokens_again, "the FLOPs of its window of train is"),
    (DISTILBERT, edits.flops("executed", lambda flops: 2 * flops), "the FLOPs of its window of train is"),
    (AQUILA, edits.flops("executed", lambda flops: flops // 3 * 4), "the FLOPs of its window of infer is"),
    (DISTILBERT, edits.flops("recomputed", lambda flops: 10**15), "but the condition recompute is none"),
    (DISTILBERT, edits.a_few_fast_steps, "a step of rank 0 in the warmup of train did"),
    (
        DISTILBERT,
        edits.collectives("first"),
        "the time before the first collective of rank 0 in the warmup of train is",
    ),
    (DISTILBERT, edits.collectives("wait"), "the wait in collectives of rank 0 in the warmup of train is"),
    (DISTILBERT, edits.in_blocks_beside_much, "in blocks of 10 steps, and blocks of 1"),
    (DISTILBERT, edits.published_by_one_rank, "published 256, and a full batch is 32"),
    (DISTILBERT, edits.useful, "rank 3 counts 16384 tokens"),
    (LORA, edits.tokens, "for 4 samples of 512"),
    (DISTILBERT, edits.in_blocks, "in blocks of 10 steps, and blocks of 1"),
    (DISTILBERT, edits.ceiling, "2e+14 FLOP/s in a matrix product, above the peak of 1.56e+14"),
    # Losses, and the checks on them
    (DISTILBERT, edits.loss(lambda step, loss: None), "loss_finite passed, but 130 losses are not finite"),
    (LORA, edits.loss(lambda step, loss: None if step == 60 else loss), "loss_finite passed, but 1 losses"),
    (LLAMA, edits.loss(lambda step, loss: 0.7), "the loss of all 130 steps is 0.7"),
    (LLAMA, edits.loss(lambda step, loss: loss - 9), "which no cross-entropy is"),
    (
        DISTILBERT,
        edits.loss(lambda step, loss: 0.5 + step / 100),
        "learned passed, but the mean loss of the first tenth",
    ),
    (DISTILBERT, edits.without_losses, "quality.losses has 0 losses of 130 steps"),
    (DISTILBERT, lambda raw: raw["quality"]["losses"].update(first_step=7), "first_step is 7, but the run began"),
    (GLM, edits.quality(training={"skipped_steps": 100}), "updated passed, but at least 60 of 90 measured steps"),
    # Evaluations, the stop rule, and the set
    (
        DISTILBERT,
        edits.quality(evaluations=[]),
        "evaluated passed, but the last evaluation followed step null of 130",
    ),
    (AQUILA, edits.quality(evaluations=[]), "evaluated passed, but the last evaluation"),
    (DISTILBERT, edits.evaluation(steps=120), "evaluated passed, but the last evaluation followed step 120 of 130"),
    (DISTILBERT, edits.accuracy(None), "above_chance passed, but no evaluation has an accuracy"),
    (
        DISTILBERT,
        edits.accuracy(0.05),
        "above_chance passed, but of acc 0.9150 of 10000 examples; the last has 0.0500",
    ),
    (DISTILBERT, edits.evaluation(counted=1000), "the last has 0.9150 of 1000"),
    (DISTILBERT, edits.evaluation(seconds=1e4), "an evaluation took 10000 s, and the run 361.0 s"),
    (DISTILBERT, edits.evaluation(seconds=-1), "an evaluation took -1 s"),
    (DISTILBERT, edits.accuracy(0.5), "converged is true, but the last evaluation has 0.5 and the target is 0.91"),
    (DISTILBERT, edits.quality(converged=None), "converged is null, but the run has the target 0.91"),
    (DISTILBERT, edits.did_not_converge, "it did not reach its target, but ended after 33,280 samples"),
    (DISTILBERT, edits.quality(data={"train_examples": 100}), "33,280 samples, which are more than 10 epochs of 100"),
    (DISTILBERT, edits.quality(data={"eval_examples": 872}), "counted 10,000 examples, and its set has 872"),
]


@pytest.mark.parametrize(("claim", "edit", "words"), IMPOSSIBLE, ids=[words for _, _, words in IMPOSSIBLE])
def test_what_is_not_possible_is_invalid_however_consistent(claim: str, edit: Edit, words: str) -> None:
    raw = made(claim)
    edit(raw)
    result = verify(consistent(raw), claim=claim)
    assert result.verdict is Verdict.INVALID
    assert words in result.reason
    assert "and its evidence gives" not in result.reason


@pytest.mark.parametrize("name", ["computing", "pipeline"])
def test_a_pass_takes_no_longer_than_its_step(name: str) -> None:
    raw = made(LLAMA)
    edits.passes(name)(raw)
    assert f"the time of {name} of rank 0 in the warmup of train is" in verify(consistent(raw), claim=LLAMA).reason


@pytest.mark.parametrize(
    ("path", "value"),
    [("model.layers", 6), ("data.sequence_length", 512), ("eval.initial", False), ("model", {"a.b": 1}), ("", 1)],
)
def test_a_name_with_a_dot_hides_no_value(path: str, value: Any) -> None:
    raw = made()
    raw["config"].update({path: value})
    result = verify(sealed(raw))
    assert result.verdict is Verdict.INVALID
    assert "config has a value with the name" in result.reason


@pytest.mark.parametrize("layers", [[None], [0, 0, 0], "ab", 10**30, {"a": "b"}, True])
def test_a_size_that_is_no_number_costs_no_memory(layers: Any) -> None:
    raw = made()
    raw["config"]["model"]["layers"] = layers
    assert verify(sealed(raw)).verdict is Verdict.INVALID


def test_a_processor_is_not_faster_by_its_own_clock() -> None:
    raw = replayed("cpu-tiny")
    column(raw, "device", lambda micro: micro // 2)
    assert "which is the same processor" in verify(consistent(raw)).reason


@pytest.mark.parametrize("batches", [0, -7])
def test_a_pipeline_of_no_batches_has_no_bubble_to_compare(batches: int) -> None:
    raw = made(LLAMA)
    raw["conditions"]["gradient_accumulation_steps"] = batches
    raw["quality"]["training"] = {"predicted_bubble": 0}
    assert verify(raw, claim=LLAMA).verdict is Verdict.INVALID


def test_the_error_of_the_matrix_product_is_in_every_record() -> None:
    raw = made()
    del raw["software"]["precision"]["relative_error"]
    assert "software.precision does not say" in verify(raw).reason


def test_the_peak_of_a_device_is_known_without_its_stack() -> None:
    raw = made()
    raw.update(stack="another")
    raw["flops"]["peak"]["flops"] /= 2
    assert "flops.peak.flops is 78000000000000.0, but" in verify(consistent(raw)).reason


def test_what_nobody_published_is_not_what_a_baseline_had() -> None:
    first, second = runs(2, None)
    first["conditions"]["data"] = "not published"
    case, (here, there) = CATALOG.cases["distilbert"], [read_record(json.dumps(r).encode()) for r in (second, first)]
    assert verify_baseline([here], there, case).verdict is Verdict.NOT_COMPARABLE


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
            [a + h - 1 for a, h in zip(*each, strict=True)] for each in edits.each(raw, span, "after", "host")
        ]
    for name, change in (("host", lambda _: 1), ("device", lambda micro: round(0.6 * micro))):
        column(raw, name, change)
    result = verify(consistent(raw))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "may hide work of the device" in result.reason


def test_half_of_an_inference_s_step_is_not_moved_out_of_it() -> None:
    raw = made(AQUILA)
    for span in raw["evidence"]["spans"]:
        halves = edits.each(raw, span, "after", "host")
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


def _in_another_order(number: int, raw: Raw) -> None:
    for span in raw["evidence"]["spans"]:
        order = random.Random(number).sample(range(span["steps"]), span["steps"])
        for name, of_ranks in span["columns"].items():
            if not isinstance(of_ranks, int):
                span["columns"][name] = [
                    each if isinstance(each, int) else [_listed(each)[at] for at in order] for each in of_ranks
                ]


def _listed(of_rank: Any) -> list[int]:
    if isinstance(of_rank, dict):
        return [number for count, number in of_rank["runs"] for _ in range(count)]
    return of_rank  # type: ignore[no-any-return]


def test_a_run_in_another_order_is_the_same_run() -> None:
    with pytest.raises(FlagbenchError, match="in some order"):
        verify(*runs(5, None, _as_first(made(), _in_another_order)))


def test_every_rule_names_a_few_of_many() -> None:
    raw = made()
    column(raw, "tokens_useful", lambda tokens: 2 * tokens)
    assert verify(consistent(raw)).reason.count("counts 16384 tokens") == plausible.MOST_CLAUSES
