"""Evidence of runs in miniature, and the records made of it: what the tests of records share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema

from flagbench_cases.node.request import Request
from flagbench_cases.record import assemble
from flagbench_cases.record.evidence import OK, Evidence, Outcome
from flagbench_cases.record.measured import Border, build_span
from flagbench_cases.shared import manifests
from flagbench_cases.shared.parallel_layout import Layout
from flagbench_cases.shared.spool import Step
from flagbench_core import config
from flagbench_core.evidence import Facts, RecordEvidence, StepRange, derive, pipeline

NAN, INF = float("nan"), float("inf")
FAILED = Outcome("failed", "launch", "it broke", "fix it", 4)
SCHEMA = json.loads((Path(__file__).parents[4] / "manifests/schema/record-v1.json").read_text(encoding="utf-8"))


def validate(made: dict[str, Any]) -> dict[str, Any]:
    """The record as a reader gets it, compared with its schema."""

    def refuse(constant: str) -> None:
        raise AssertionError("%s is no JSON" % constant)

    read = json.loads(assemble.to_line(made), parse_constant=refuse)
    jsonschema.Draft202012Validator(SCHEMA).validate(read)
    return read


def resolved(source: str | None = None, gpus: int = 2, **length: Any) -> dict[str, Any]:
    options = config.Options(gpus=gpus, preset="tiny", seed=0, source=source, **length)
    return config.resolve(manifests.load_case("distilbert"), manifests.load_stack("cpu"), options)


WINDOW_OF_30 = resolved(steps=30)
WARMUP = WINDOW_OF_30["train"]["warmup_steps"]
WINDOW = WARMUP + 30
TRAINING = ("precision", "loss_finite", "parameters_finite", "ranks_in_step", "rates_in_order", "steps")
"""The checks that every run of training gets."""


def request(configuration: dict[str, Any] | None, **changes: Any) -> Request:
    made = Request(
        argv=["distilbert"],
        case="distilbert",
        stack=manifests.load_stack("cpu"),
        run_id="run-1",
        preset="tiny",
        nodes=1,
        gpus=2,
        config=configuration,
        config_digest=config.digest(configuration) if configuration else None,
        formula="distilbert-matmul/v1" if configuration else None,
        unit="samples",
    )
    return made._replace(**changes)


def step(loss: float = 0.5, device: float = 0.25) -> Step:
    return Step(0.1, 0.01, 0.2, device, NAN, NAN, 0.0, loss, 32.0, 32.0, 4096.0, 512.0, 1e9, 1e8, 0.0)


def evidence(
    losses: Sequence[float] = (0.5,) * WINDOW,
    sums: tuple[float, ...] = (10.0, 10.0),
    executed: str = "fp32",
    error: float = 1e-7,
    **timing: Any,
) -> Evidence:
    """Two ranks that ran to the end."""
    facts: list[dict[str, Any]] = []

    def fact(kind: str, rank: int, **values: Any) -> None:
        facts.append(dict(values, kind=kind, rank=rank, time=1.0))

    device = {"index": 0, "name": "Some CPU", "memory_bytes": 1}
    for rank in range(2):
        fact("rank", rank, node=0, local_rank=rank, pid=10 + rank, host="h", device=dict(device, index=rank))
        fact("precision", rank, requested="fp32", executed=executed, relative_error=error)
        fact("memory", rank, peak=2**30, allocator_peak=None, parameters=sums[rank])
        fact("ceiling", rank, flops=1e11 * (rank + 1), precision="fp32", method="best of some")
        fact("timing", rank, **{"init": 1.0, "train": 20.0, "eval": 0.0, "e2e": 22.0, "converged": None, **timing})
    fact("software", 0, python="3.8.0", torch="1.12.1", cuda=None, packages={})
    fact("workload", 0, conditions={"batch_size": 32}, data={"source": "x"}, parameters=5)
    fact("evaluation", 0, epoch=0, steps=1, accuracy=0.9, published_accuracy=0.91, counted=10, extra=[], seconds=1.0)
    steps = [step(loss) for loss in losses]
    return Evidence({0: steps, 1: list(steps)}, facts, {}, {"samples": 3}, None)


def fact_of(found: Evidence, kind: str, rank: int = 0) -> dict[str, Any]:
    """The first fact of a kind and rank, to be changed."""
    return next(fact for fact in found.facts if fact["kind"] == kind and fact["rank"] == rank)


def without(found: Evidence, kind: str) -> Evidence:
    return found._replace(facts=[fact for fact in found.facts if fact["kind"] != kind])


def with_device_time(seconds: float) -> Evidence:
    """A window in which each step of rank 1 took its device so long; each step's own time is 0.31 s."""
    found = evidence()
    return found._replace(steps={0: found.steps[0], 1: [s._replace(device=seconds) for s in found.steps[1]]})


def record_of(
    found: Evidence, configuration: dict[str, Any] | None = WINDOW_OF_30, outcome: Outcome = OK, **changes: Any
) -> dict[str, Any]:
    return validate(assemble.assemble(request(configuration, **changes), found, outcome))


def checks_of(made: dict[str, Any]) -> dict[str, bool]:
    return {check["name"]: check["ok"] for check in made["quality"]["checks"]}


def state_of(made: dict[str, Any]) -> tuple[str, int]:
    return made["status"]["state"], made["status"]["exit_code"]


def evidence_of(
    ranks: dict[int, list[Step]], first: int = 0, trained: Sequence[float] = (), block: int = 1, **more: Any
) -> RecordEvidence:
    """The evidence of a training with a window from step `first` on. `trained`: its seconds by each rank's clock."""
    count = len(ranks[0])
    borders = (Border("train", "warmup", 0, first), Border("train", "window", first, count))
    empty: dict[str, Any] = {"timing": {}, "memory": {}, "ceilings": [], "loss_tail": []}
    return RecordEvidence(
        world=len(ranks),
        block=block,
        spans=[build_span(border, ranks, block) for border in borders if border.first < border.end],
        durations={"train": [round(seconds * 1e6) for seconds in trained]} if trained else {},
        **{**empty, **more},
    )


def bubbles_of(ranks: dict[int, list[Step]], first: int, count: int, layout: Layout) -> dict[int, float]:
    """The bubble of each rank in a window of steps `first` to `count`; empty if it was not measured."""
    window = StepRange([build_span(Border("train", "window", first, count), ranks, 1)], 1)
    return dict(enumerate(pipeline.measure_bubbles(window, layout.world, layout.pp)))


def facts_of(**changes: Any) -> Facts:
    """Of a training that counts samples, on one replica and until its published end."""
    plain = Facts("train", "samples", 1, True, "fp32", None, None, "cpu", [], [])
    return plain._replace(**changes)


def metrics_of(record_evidence: RecordEvidence, **facts: Any) -> dict[str, dict[str, Any]]:
    """What `derive` makes of evidence, by name."""
    found = derive(record_evidence, facts_of(**facts)).metrics
    assert len({entry["name"] for entry in found}) == len(found)
    return {entry["name"]: entry for entry in found}
