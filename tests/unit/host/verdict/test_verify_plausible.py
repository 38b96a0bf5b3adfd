"""Evidence that is not possible in itself, and checks that it does not bear out, in records forged consistently."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.errors import FlagbenchError
from flagbench.verdict import Verdict, plausible, verify_baseline
from forging import column, consistent, losses, scale, sealed
from honest import CLAIMS, Pace, honest_record
from make_replays import replayed

from .conftest import Raw, made, read, verified

TESTED = "records"
Edit = Callable[[Raw], object]
DISTILBERT, LORA, GLM = "distilbert/a100-1x8-fp32", "llama2-7b-lora/a100-1x1-fp16-bs4", "glm/a100-1x8-fp32"
AQUILA, LLAMA = "aquila-33b/a100-1x8-tp8", "llama2-70b/h800-4x8-amp-tp8-pp4"


@pytest.mark.parametrize("claim", [DISTILBERT, LORA, AQUILA, LLAMA])
def test_a_record_that_is_computed_again_is_the_same(claim: str) -> None:
    raw = made(claim)
    assert consistent(copy.deepcopy(raw)) == raw
    assert verified(raw, claim=claim).verdict is Verdict.REPRODUCED


def each(raw: Raw, span: Raw, *names: str) -> list[tuple[list[int], ...]]:
    """The columns of each rank, by step."""
    world = raw["evidence"]["ranks"]

    def listed(value: Any) -> list[int]:
        if isinstance(value, dict):
            return [number for count, number in value["runs"] for _ in range(count)]
        return [value] * span["steps"] if isinstance(value, int) else value

    own = [[v] * world if isinstance(v := span["columns"][name], int) else v for name in names]
    return [tuple(map(listed, of_rank)) for of_rank in zip(*own, strict=True)]


def steps_alone(raw: Raw) -> None:
    scale(raw, 0.6, phases=False)


def duration(rank: int, factor: float) -> Edit:
    def edit(raw: Raw) -> None:
        raw["evidence"]["durations"]["train"][rank] = round(raw["evidence"]["durations"]["train"][rank] * factor)

    return edit


def timing(name: str, seconds: float | None) -> Edit:
    """Other seconds in the evidence's timing; None leaves them out."""
    return lambda raw: (
        raw["evidence"]["timing"].pop(name) if seconds is None
        else raw["evidence"]["timing"].update({name: round(seconds * 1e6)})
    )  # fmt: skip


def resumed(raw: Raw) -> None:
    """From the checkpoint of one step, and with fewer steps than the time that it took."""
    raw["argv"].append("--resume=checkpoint")
    raw["quality"].update(resumed={"step": 1}, losses={**raw["quality"]["losses"], "first_step": 1})
    for entry in raw["quality"]["evaluations"]:
        entry["steps"] += 1
    steps_alone(raw)


def flops(name: str, change: Callable[[int], int]) -> Edit:
    def edit(raw: Raw) -> None:
        for span in raw["evidence"]["spans"]:
            of = span["flops"][name]
            span["flops"][name] = change(of) if isinstance(of, int) else [*map(change, of)]

    return edit


def twice_the_tokens(raw: Raw) -> None:
    for name in ("tokens", "tokens_useful"):
        column(raw, name, lambda tokens: 2 * tokens)


def published_by_one_rank(raw: Raw) -> None:
    """The publisher's clock is that of rank 0, which counts for all."""
    column(raw, "samples_published", lambda _: 0)
    column(raw, "samples_published", lambda _: 8 * 32, rank=0)


def a_few_fast_steps(raw: Raw) -> None:
    """As fast as no device is, with what that saves after the step."""
    for span in raw["evidence"]["spans"]:
        own = {name: [own for (own,) in each(raw, span, name)] for name in ("host", "device", "after")}
        for rank in range(raw["evidence"]["ranks"]):
            for at in range(0, span["steps"], 25):
                saved = own["host"][rank][at] * 11 // 12
                own["after"][rank][at] += saved
                own["host"][rank][at] -= saved
                own["device"][rank][at] //= 12
        span["columns"].update(own)


def parts(section: str, name: str, factor: int) -> Edit:
    """Longer collectives, or passes of a pipeline."""

    def edit(raw: Raw) -> None:
        for span in raw["evidence"]["spans"]:
            of = span[section][name]
            span[section][name] = factor * of if isinstance(of, int) else [
                factor * own if isinstance(own, int) else [factor * micro for micro in own] for own in of
            ]  # fmt: skip

    return edit


def in_blocks(raw: Raw) -> None:
    def block(of: Any) -> Any:
        return [sum(of[at : at + 10]) for at in range(0, len(of), 10)] if isinstance(of, list) else of

    for span in raw["evidence"]["spans"]:
        span["columns"] = {
            name: of if isinstance(of, int) else [*map(block, of)] for name, of in span["columns"].items()
        }
        span["loss"] = [*map(block, span["loss"])]
    raw["evidence"]["block"] = 10


def loss(change: Callable[[int, float], float | None]) -> Edit:
    return lambda raw: losses(raw, change)


def without_losses(raw: Raw) -> None:
    raw["evidence"]["loss_tail"] = raw["quality"]["losses"]["values"][-50:]
    raw["quality"].update(losses=None, loss_curve=[])
    for span in raw["evidence"]["spans"]:
        del span["loss"]


def quality(**fields: Any) -> Edit:
    return lambda raw: raw["quality"].update(fields)


def evaluation(**fields: Any) -> Edit:
    return lambda raw: raw["quality"]["evaluations"][0].update(fields)


def accuracy(value: float | None) -> Edit:
    return evaluation(accuracy=value, published_accuracy=value)


def chance(detail: str) -> Edit:
    """Other words of the check above_chance."""
    return lambda raw: raw["quality"]["checks"][-1].update(detail=detail)


def did_not_converge(raw: Raw) -> None:
    accuracy(0.75)(raw)
    chance("acc 0.7500 of 10000 examples; guessing gives 0.5000, at most 0.5150")(raw)
    raw["quality"].update(converged=False, data={"train_examples": 67349})


IMPOSSIBLE: list[tuple[str, Edit, tuple[str, ...]]] = [
    # The steps, and the time that they took
    (DISTILBERT, steps_alone, ("train", "18.866 s", "11.715 s")),
    (AQUILA, steps_alone, ("infer", "62.237 s", "37.342 s")),
    (LORA, resumed, ("train", "66.919 s", "40.416 s")),
    (DISTILBERT, duration(5, 0.5), ("rank 5", "17.878 s", "9.433 s")),
    (DISTILBERT, duration(0, 1.001), ("rank 0", "18.885079", "18.866213")),
    (DISTILBERT, lambda raw: raw["evidence"].pop("durations"), ("duration of train",)),
    (DISTILBERT, timing("train", None), ("18.866213", "timing.train", "null")),
    (AQUILA, timing("e2e", None), ("timing.e2e",)),
    # Evaluations
    (DISTILBERT, timing("eval", 2.0), ("0.988429 s", "timing.eval is 2 s")),
    (DISTILBERT, timing("eval_initial", 100.0), ("0 s", "timing.eval_initial is 100 s")),
    (DISTILBERT, evaluation(seconds=1e4), ("10000 s", "361.0 s")),
    (DISTILBERT, evaluation(seconds=-1), ("-1 s", "361.0 s")),
    (DISTILBERT, evaluation(steps=999), ("999", "130")),
    (DISTILBERT, quality(data={"eval_examples": 872}), ("10,000", "872")),
    # What steps count
    (GLM, twice_the_tokens, ("FLOPs", "train", "6.34324e+15", "1.26864743989248e+16")),
    (AQUILA, flops("executed", lambda each: each // 3 * 4), ("infer", "4.33718e+16", "3.252886494511104e+16")),
    (DISTILBERT, flops("recomputed", lambda _: 10**15), ("recomputed", "none")),
    (DISTILBERT, published_by_one_rank, ("rank 0", "published 256", "32")),
    (DISTILBERT, lambda raw: column(raw, "tokens_useful", lambda n: 2 * n, rank=3), ("rank 3", "16384", "26214")),
    (LORA, lambda raw: column(raw, "tokens", lambda n: n + 1), ("2049 tokens", "4 samples of 512")),
    # Speeds, and parts of steps
    (DISTILBERT, a_few_fast_steps, ("rank 0", "4.189e+14 FLOP/s", "1.56e+14")),
    (DISTILBERT, lambda raw: raw["evidence"]["ceilings"].__setitem__(3, 2e14), ("2e+14 FLOP/s", "1.56e+14")),
    (DISTILBERT, parts("collectives", "first", 20), ("first collective", "21.0496 s", "2.62857 s")),
    (DISTILBERT, parts("collectives", "wait", 20), ("wait in collectives", "5.2624 s", "2.62857 s")),
    (DISTILBERT, in_blocks, ("blocks of 10", "blocks of 1")),
    (DISTILBERT, lambda raw: (raw.update(notes="x" * 900_000), in_blocks(raw)), ("blocks of 10", "blocks of 1")),
    # Losses, and the checks on them
    (LLAMA, loss(lambda step, each: 0.7), ("130 steps", "0.7")),
    (LLAMA, loss(lambda step, each: each - 9), ("a loss is -3.3",)),
    (DISTILBERT, without_losses, ("0 losses", "130 steps")),
    (DISTILBERT, lambda raw: raw["quality"]["losses"].update(first_step=7), ("first_step is 7", "0")),
    (LORA, loss(lambda step, each: None if step == 60 else each), ("loss_finite", "1 losses", "0 steps")),
    (GLM, quality(training={"skipped_steps": 100}), ("updated", "60", "90")),
    (DISTILBERT, loss(lambda step, each: 0.5 + step / 100), ("learned", "0.56", "1.73")),
    (AQUILA, quality(evaluations=[]), ("evaluated", "null", "130")),
    (DISTILBERT, evaluation(steps=120), ("evaluated", "120", "130")),
    (DISTILBERT, accuracy(None), ("above_chance", "no evaluation")),
    (DISTILBERT, accuracy(0.05), ("above_chance", "0.9150", "0.0500")),
    (DISTILBERT, evaluation(counted=1000), ("above_chance", "of 10000", "of 1000")),
    (DISTILBERT, chance("acc 0.9150 of 10000 examples; guessing gives 0.9140, at most 0.9224"), ("0.9150", "0.9224")),
    # The stop rule
    (DISTILBERT, accuracy(0.5), ("converged is true", "0.5", "0.91")),
    (DISTILBERT, quality(converged=None), ("converged is null", "0.91")),
    (DISTILBERT, did_not_converge, ("33,280", "670,674")),
    (DISTILBERT, quality(data={"train_examples": 100}), ("33,280", "10 epochs of 100")),
]  # fmt: skip


@pytest.mark.parametrize(("claim", "edit", "shown"), IMPOSSIBLE, ids=[" ".join(shown) for *_, shown in IMPOSSIBLE])
def test_what_is_impossible_is_invalid_however_consistent(claim: str, edit: Edit, shown: tuple[str, ...]) -> None:
    raw = made(claim)
    edit(raw)
    result = verified(consistent(raw), claim=claim)
    assert result.verdict is Verdict.INVALID
    assert [each for each in shown if each not in result.reason] == []
    assert "its evidence gives" not in result.reason


@pytest.mark.parametrize("name", ["computing", "pipeline"])
def test_a_pass_takes_no_longer_than_its_step(name: str) -> None:
    raw = made(LLAMA)
    parts("passes", name, 5)(raw)
    assert f"{name} of rank 0" in verified(consistent(raw), claim=LLAMA).reason


def test_every_rule_names_a_few_of_many() -> None:
    raw = made()
    column(raw, "tokens_useful", lambda tokens: 2 * tokens)
    assert verified(consistent(raw)).reason.count("16384 tokens") == plausible.MOST_CLAUSES


@pytest.mark.parametrize("layers", [[None], [0, 0, 0], "ab", 10**30, {"a": "b"}, True])
def test_a_size_that_is_no_number_costs_no_memory(layers: Any) -> None:
    raw = made()
    raw["config"]["model"]["layers"] = layers
    assert verified(sealed(raw)).verdict is Verdict.INVALID


@pytest.mark.parametrize("claim", [DISTILBERT, LORA, LLAMA])
@pytest.mark.parametrize("model", [{}, {"layers": {"x": 6}}, {"layers": {}, "dim": {"dim": {}}}], ids=str)
def test_a_hidden_size_or_few_flops_hide_no_speed(claim: str, model: Raw) -> None:
    """Sizes that the configuration does not give are those of the preset."""
    raw = made(claim)
    scale(raw, 0.1)
    for name in ("executed", "useful"):
        flops(name, lambda each: each // 1000)(raw)
    raw["flagbench"]["version"] = "0.0.9"
    del raw["config"]["model"]["layers"]
    raw["config"]["model"].update(model)
    assert "above the peak" in verified(consistent(raw), claim=claim).reason


def test_a_processor_is_not_faster_by_its_own_clock() -> None:
    raw = replayed("cpu-tiny")
    column(raw, "device", lambda micro: micro // 2)
    assert "same processor" in verified(consistent(raw)).reason


def test_a_pipeline_of_no_batches_is_invalid() -> None:
    raw = made(LLAMA)
    raw["conditions"]["gradient_accumulation_steps"] = 0
    raw["quality"]["training"] = {"predicted_bubble": 0}
    assert verified(raw, claim=LLAMA).verdict is Verdict.INVALID


def test_a_loss_of_one_rank_that_is_not_finite() -> None:
    raw = made()
    raw["evidence"]["spans"][1]["loss"][3][40] = None
    result = verified(sealed(raw))
    assert (result.verdict, "steps 60 to 61" in result.reason) == (Verdict.INVALID, True)


@pytest.mark.parametrize(
    "detail", ["", "acc 9.9.9 of 1 examples; guessing gives 0.5, at most 0.6", f"acc 0.9150 of {'9' * 5000} examples"]
)
def test_a_check_of_other_words_is_not_held_against_numbers(detail: str) -> None:
    raw = made()
    chance(detail)(raw)
    assert verified(raw).verdict is Verdict.REPRODUCED


@pytest.mark.parametrize("claim", [DISTILBERT, LORA, LLAMA, AQUILA])
@pytest.mark.parametrize("clock", ["host", "device"])
def test_a_clock_that_stands_still_hides_no_speed(claim: str, clock: str) -> None:
    for rank in (None, 0):
        raw = made(claim)
        scale(raw, 0.1)
        column(raw, clock, lambda _: 0, rank)
        result = verified(consistent(raw), claim=claim)
        assert (result.verdict, f"no time by the clock of the {clock}" in result.reason) == (Verdict.INVALID, True)


def test_a_slow_step_is_not_moved_out_of_the_hosts_clock() -> None:
    raw = honest_record(CLAIMS[DISTILBERT], Pace(slower=1 / 0.6), count=130)
    for span in raw["evidence"]["spans"]:
        both = each(raw, span, "after", "host")
        span["columns"]["after"] = [[a + h - 1 for a, h in zip(*of, strict=True)] for of in both]
    for name, change in (("host", lambda _: 1), ("device", lambda micro: round(0.6 * micro))):
        column(raw, name, change)
    result = verified(consistent(raw))
    assert (result.verdict, "hide work of the device" in result.reason) == (Verdict.INCONCLUSIVE, True)


def test_half_of_an_inference_step_is_not_moved_out_of_it() -> None:
    raw = made(AQUILA)
    for span in raw["evidence"]["spans"]:
        both = each(raw, span, "after", "host")
        span["columns"]["after"] = [[a + h - round(h / 2) for a, h in zip(*of, strict=True)] for of in both]
    for name in ("host", "device"):
        column(raw, name, lambda micro: round(micro / 2))
    result = verified(consistent(raw), claim=AQUILA)
    assert (result.verdict, "its window took 2." in result.reason) == (Verdict.INCONCLUSIVE, True)


def test_a_run_without_its_ceiling_is_inconclusive() -> None:
    raw = made()
    del raw["evidence"]["ceilings"]
    result = verified(consistent(raw))
    assert (result.verdict, "matrix product" in result.reason) == (Verdict.INCONCLUSIVE, True)


def runs(count: int, steps: int | None) -> list[Raw]:
    """As many runs of distilbert on different days."""
    return [made(steps=steps, run=f"made-up-run-{number}", seed=number) for number in range(count)]


def test_five_windows_of_a_step_each_are_too_few_steps() -> None:
    assert verified(*runs(5, 50)).verdict is Verdict.REPRODUCED
    result = verified(*runs(5, 21))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert all(words in result.reason for words in ("5 windows have 5 steps", "95 more"))


def in_another_order(number: int, raw: Raw) -> None:
    for span in raw["evidence"]["spans"]:
        order = random.Random(number).sample(range(span["steps"]), span["steps"])
        for name, of_ranks in span["columns"].items():
            if not isinstance(of_ranks, int):
                span["columns"][name] = [[own[at] for at in order] for (own,) in each(raw, span, name)]


def in_another_proportion(number: int, raw: Raw) -> None:
    scale(raw, 1 + number / 500)


@pytest.mark.parametrize(
    ("change", "why"), [(in_another_order, "in some order"), (in_another_proportion, "step times are equal")]
)
def test_a_copy_in_another_order_or_proportion_is_one_run(change: Callable[[int, Raw], None], why: str) -> None:
    copies = runs(5, None)
    for number, raw in enumerate(copies):
        raw.update({**made(), **{name: raw[name] for name in ("record_id", "run_id", "created_at")}})
        change(number, raw)
        consistent(raw).update(window=None)
    with pytest.raises(FlagbenchError, match=why):
        verified(*copies)


def test_what_nobody_published_is_not_what_a_baseline_had() -> None:
    first, second = runs(2, None)
    first["conditions"]["data"] = "not published"
    case = CATALOG.cases["distilbert"]
    assert verify_baseline([read(second)], read(first), case).verdict is Verdict.NOT_COMPARABLE
