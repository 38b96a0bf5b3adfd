"""Edits of a record's evidence that make it impossible; `forging` computes again what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forging import column, losses, scale

Raw = dict[str, Any]
Edit = Callable[[Raw], object]


def each(raw: Raw, span: Raw, *names: str) -> list[tuple[list[int], ...]]:
    """The columns of each rank, by step."""
    world = raw["evidence"]["ranks"]

    def listed(value: Any) -> list[int]:
        if isinstance(value, dict):
            return [number for count, number in value["runs"] for _ in range(count)]
        return [value] * span["steps"] if isinstance(value, int) else value

    own = [[v] * world if isinstance(v := span["columns"][name], int) else v for name in names]
    return [tuple(map(listed, each)) for each in zip(*own, strict=True)]


def steps_alone(raw: Raw) -> None:
    scale(raw, 0.6, phases=False)


def lasted(rank: int, factor: float) -> Edit:
    def edit(raw: Raw) -> None:
        raw["evidence"]["durations"]["train"][rank] = round(raw["evidence"]["durations"]["train"][rank] * factor)

    return edit


def published_by_one_rank(raw: Raw) -> None:
    """The publisher's clock is that of rank 0, which counts for all."""
    column(raw, "samples_published", lambda _: 0)
    column(raw, "samples_published", lambda _: 8 * 32, rank=0)


def useful(raw: Raw) -> None:
    column(raw, "tokens_useful", lambda tokens: 2 * tokens, rank=3)


def tokens(raw: Raw) -> None:
    column(raw, "tokens", lambda tokens: tokens + 1)


def in_blocks(raw: Raw) -> None:
    for span in raw["evidence"]["spans"]:
        for name, of_ranks in span["columns"].items():
            if not isinstance(of_ranks, int):
                span["columns"][name] = [
                    of if isinstance(of, int) else [sum(of[at : at + 10]) for at in range(0, len(of), 10)]
                    for of in of_ranks
                ]
        span["loss"] = [of and [sum(of[at : at + 10]) for at in range(0, len(of), 10)] for of in span["loss"]]
    raw["evidence"]["block"] = 10


def ceiling(raw: Raw) -> None:
    raw["evidence"]["ceilings"][3] = 2e14


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


def accuracy(value: float | None, **fields: Any) -> Edit:
    return evaluation(accuracy=value, published_accuracy=value, **fields)


def did_not_converge(raw: Raw) -> None:
    accuracy(0.75)(raw)
    raw["quality"]["checks"][-1]["detail"] = "acc 0.7500 of 10000 examples; guessing gives 0.5000, at most 0.5150"
    raw["quality"].update(converged=False, data={"train_examples": 67349})


def timing(**fields: float | None) -> Edit:
    """Other seconds in the evidence's timing; None leaves a part out."""

    def edit(raw: Raw) -> None:
        for name, seconds in fields.items():
            raw["evidence"]["timing"].pop(name)
            if seconds is not None:
                raw["evidence"]["timing"][name] = round(seconds * 1e6)

    return edit


def steps_as_evaluations(raw: Raw) -> None:
    """What was taken off the steps is in the time of evaluations."""
    evidence = raw["evidence"]
    own = evidence["durations"]["train"][0] - evidence["timing"]["eval"]
    scale(raw, 0.6, phases=False)
    evidence["timing"]["eval"] += round(0.4 * own)


def steps_before_a_checkpoint(raw: Raw) -> None:
    raw["argv"].append("--resume=checkpoint")
    raw["quality"].update(resumed={"step": 1}, losses={**raw["quality"]["losses"], "first_step": 1})
    for entry in raw["quality"]["evaluations"]:
        entry["steps"] += 1
    scale(raw, 0.6, phases=False)


def flops(name: str, change: Callable[[int], int]) -> Edit:
    def edit(raw: Raw) -> None:
        for span in raw["evidence"]["spans"]:
            of = span["flops"][name]
            span["flops"][name] = change(of) if isinstance(of, int) else [*map(change, of)]

    return edit


def half_as_many_tokens_again(raw: Raw) -> None:
    for name in ("tokens", "tokens_useful"):
        column(raw, name, lambda tokens: 2 * tokens)


def a_few_fast_steps(raw: Raw) -> None:
    """As fast as no device is, with what that saves after the step."""
    for span in raw["evidence"]["spans"]:
        columns, steps = span["columns"], range(0, span["steps"], 25)
        own = {name: [own for (own,) in each(raw, span, name)] for name in ("host", "device", "after")}
        for rank in range(raw["evidence"]["ranks"]):
            for at in steps:
                saved = own["host"][rank][at] * 11 // 12
                own["after"][rank][at] += saved
                own["host"][rank][at] -= saved
                own["device"][rank][at] //= 12
        columns.update(own)


def collectives(name: str) -> Edit:
    def edit(raw: Raw) -> None:
        for span in raw["evidence"]["spans"]:
            of = span["collectives"]
            of[name] = [[20 * micro for micro in own] for own in of[name]]

    return edit


def passes(name: str) -> Edit:
    def edit(raw: Raw) -> None:
        for span in raw["evidence"]["spans"]:
            of = span["passes"][name]
            span["passes"][name] = 5 * of if isinstance(of, int) else [5 * micro for micro in of]

    return edit


def in_blocks_beside_much(raw: Raw) -> None:
    raw["notes"] = "x" * 900_000
    in_blocks(raw)
