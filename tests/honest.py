"""Records that are consistent in themselves: made by the image side's own code from made-up step times.

Nothing here was measured. A record says what a published row says: its configuration is that of the claim, resolved
by the image side, and its steps are as long as the claim's speed demands, with some noise.
"""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from catalogs import CATALOG
from flagbench.manifests.fields import NOT_PUBLISHED
from flagbench.manifests.rows import Claim
from flagbench.verdict.derivation import Unknown, derived_conditions
from flagbench_cases.record import assemble
from flagbench_cases.record.evidence import OK, Evidence
from flagbench_cases.record.request import Request
from flagbench_cases.shared import manifests
from flagbench_cases.shared.spool import Step
from flagbench_core import config as configs
from flagbench_core.evidence.roofs import amount, short_roofs
from flagbench_core.flops import batch_of, padded

STEPS = 120
NAN = float("nan")
UTILISATION = 0.25
"""Of the device's peak, by model FLOPs."""


class Pace(NamedTuple):
    """How a made-up run went: factors on the times of a row, and what varies."""

    slower: float = 1.0
    """Factor on every time of a step."""
    noise: float = 0.002
    """Standard deviation of step times, as a share."""
    drift: float = 0.0
    """How much longer the last step is than the first, as a share."""
    partial: float = 1.0
    """Share of a batch that holds examples; the publisher counts all of it."""
    evaluating: float = 0.0
    """Share of the training that is evaluations, besides those of the row."""
    ceiling: float = 0.8
    """What a matrix product reaches of the device's peak."""
    waiting: float = 0.0
    """Share of the training that each rank waited for a processor."""
    roofs: tuple[float, float, float] | None = None
    """What each device reached before the steps: FLOP/s of a product, B/s of a copy, and of an all-reduce."""
    seed: int = 0


EVEN = Pace()
"""The pace of the row itself."""


def honest_record(
    claim: Claim,
    pace: Pace = EVEN,
    *,
    steps: int | None = None,
    count: int = STEPS,
    change: Callable[[int, Step], Step] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """A record that reproduces a claim of a stack, at another pace if one is given.

    `steps`: of a window; by default the published run, which reached its target after `count` steps. `change` gets
    each rank's steps with the rank and returns them changed. `fields` replace those of the record; `conditions` are
    added.
    """
    request = _request(claim, steps)
    taken = _steps(claim, request, pace, count if steps is None else steps)
    if change:
        taken = {rank: [change(rank, step) for step in own] for rank, own in taken.items()}
    evidence = _evidence(claim, request, pace, taken)
    made = assemble.assemble(request, evidence, OK)
    made = json.loads(assemble.to_line(made))
    made.update(
        record_id="made-up-" + claim.id.replace("/", "-"), run_id="made-up", created_at="2026-01-01T12:00:00Z"
    )
    made["conditions"].update(fields.pop("conditions", {}))
    made.update(fields)
    return made


@functools.cache
def _manifests(case: str, stack: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return manifests.load_case(case), manifests.load_stack(stack)


def _request(claim: Claim, steps: int | None) -> Request:
    case, stack = copy.deepcopy(_manifests(claim.case, claim.stack or "cpu"))
    run = claim.run
    settings = tuple(f"{name}={json.dumps(value).strip(chr(34))}" for name, value in run.set.items())
    warmup = configs.schedule(configs.preset_of(case["presets"], run.preset))["warmup_steps"]
    options = configs.Options(
        nodes=run.nodes,
        gpus=run.gpus,
        preset=run.preset,
        precision=run.precision,
        source=None if run.preset == "tiny" else "files",
        weights=True,
        steps=None if steps is None else steps - warmup,
        full=steps is None,
        settings=settings,
    )
    resolved = configs.resolve(case, stack, options)
    words = ["--nodes", str(run.nodes), "--gpus", str(run.gpus), "--precision", run.precision]
    words += [word for setting in settings for word in ("--set", setting)]
    request = Request(
        argv=[claim.case, *words, *(["--full"] if steps is None else ["--steps", str(steps - warmup)])],
        case=claim.case,
        stack=stack,
        run_id="made-up",
        preset=run.preset,
        nodes=run.nodes,
        gpus=run.gpus,
    )
    return request.resolved(case, stack, resolved)


def _published(claim: Claim, name: str) -> float | None:
    found = claim.metric(name)
    return None if found is None else float(found.value)


def _known(claim: Claim, name: str) -> Any:
    value = claim.conditions.get(name, claim.environment.get(name, NOT_PUBLISHED))
    return "here" if value == NOT_PUBLISHED else value


def _evidence(claim: Claim, request: Request, pace: Pace, steps: dict[int, list[Step]]) -> Evidence:
    world, count = request.layout.world, len(steps[0])
    ends = max(sum(s.data_wait + s.to_device + s.host + s.after for s in own) for own in steps.values())
    facts: list[dict[str, Any]] = []

    def fact(kind: str, rank: int, **values: Any) -> None:
        facts.append(dict(values, kind=kind, rank=rank, time=1.0))

    units = sum(s.published_samples if request.unit == "samples" else s.tokens for s in steps[0]) * request.layout.dp
    whole = _published(claim, "p_whole") or _published(claim, "p_infer_whole")
    trained = max(ends, units / whole * pace.slower) if whole else ends * 1.01
    trained /= 1 - pace.evaluating
    e2e = max(trained + 1.0, (_published(claim, "e2e_time") or trained + 60.0) * pace.slower)
    device = {"name": _device(claim, request), "memory_bytes": _memory(claim, request)}
    peak = int((_published(claim, "mem_peak") or 30.0) * 2**30)
    for rank in range(world):
        local = rank % request.gpus
        where = {"node": rank // request.gpus, "local_rank": local, "pid": 10 + rank, "host": "machine"}
        driver = _known(claim, "driver")
        fact("rank", rank, **where, device=dict(device, index=local), driver=None if driver == "here" else driver)
        executed = request.config["precision"]
        error = {"fp32": 1e-7, "bf16": 3e-3, "fp8": 4e-2}.get(executed, 4e-4)
        fact("precision", rank, requested=executed, executed=executed, relative_error=error)
        fact("memory", rank, peak=peak, allocator_peak=peak - 2**30, parameters=1.0)
        fact("processor", rank, ran=trained * (1 - pace.waiting), waited=trained * pace.waiting)
        fact("ceiling", rank, flops=pace.ceiling * _peak(request), precision=executed, method="best of some")
        for name, measured, speed in _roofs(executed, pace):
            seconds = amount(measured) / speed
            fact("roof", rank, name=name, operations=1, times=[[seconds, seconds, 0.0]] * 20, measured=measured)
        if request.kind == "infer":
            fact("pass_begun", rank, name="infer", first_step=0)
            fact("pass", rank, name="infer", first_step=0, steps=count, seconds=trained)
            fact("timing", rank, init=e2e - trained, infer=trained, e2e=e2e)
        else:
            times = {"eval": trained - ends, "eval_initial": 0.0, "checkpoint": 0.0, "converged": True}
            fact("timing", rank, init=e2e - trained, train=trained, e2e=e2e, **times)
    fact("software", 0, python="3.8.0", torch=_known(claim, "torch"), cuda=_known(claim, "cuda"), packages={})
    own = {"device_model", "devices", "nodes", "division", "precision", "seed", "stop_rule", "layout"}
    own |= {"torch", "cuda", "driver"}
    conditions = {name: _known(claim, name) for name in claim.conditions if name not in own}
    derived = derived_conditions(CATALOG.cases[claim.case], request.config)
    for name in conditions.keys() & derived.keys():
        value = derived[name]
        if not isinstance(value, Unknown):
            conditions[name] = value  # that of the row, or what a run has instead
        elif conditions[name] == "here" and value.allowed:
            conditions[name] = value.allowed[0]
    fact("workload", 0, conditions=conditions, data={"source": "files"}, parameters=1, chance=0.1)
    fact("plan", 0, steps=count)
    if request.layout.pp > 1:
        stages, batches = request.layout.pp, conditions["gradient_accumulation_steps"]
        fact("training", 0, predicted_bubble=(stages - 1) / (batches + stages - 1))
    fact("evaluation", 0, **_evaluation(claim, count, trained - ends))
    return Evidence(steps, facts, {}, None, "made up")


def _roofs(precision: str, pace: Pace) -> list[tuple[str, dict[str, Any], float]]:
    """The measurements before the steps: name, operation, rate."""
    product = {"operation": "matmul", "precision": precision, "shape": [8192, 8192, 8192]}
    copy, reduce = ({"operation": name, "bytes": 2**32} for name in ("copy", "all_reduce"))
    names = short_roofs(precision)
    operations = zip(names, (product, {**product, "tried": 24}, copy, reduce), strict=True)
    speeds = (pace.roofs[0], *pace.roofs) if pace.roofs else ()
    return [(name, measured, speed) for (name, measured), speed in zip(operations, speeds, strict=False)]


def _evaluation(claim: Claim, count: int, seconds: float) -> dict[str, Any]:
    accuracy, loss = _published(claim, "acc"), _published(claim, "loss")
    extra = []
    if loss is not None and claim.case in ("llama2-7b-lora", "aquila-33b"):
        name = "loss_as_published" if claim.case == "llama2-7b-lora" else "loss"
        extra.append({"name": name, "value": loss, "unit": "nats", "note": "made up"})
    found = {"accuracy": accuracy, "published_accuracy": accuracy, "counted": 10_000, "extra": extra}
    return {"epoch": 0, "steps": count, "seconds": seconds, **found}


def _device(claim: Claim, request: Request) -> str:
    """The name by which a driver reports the claim's device."""
    model = str(claim.conditions["device_model"])
    return next((a["match"][0] for a in request.stack["accelerators"] if a["name"] == model), model)


def _memory(claim: Claim, request: Request) -> int:
    """Bytes, as much as the claim's device has; 80 GiB where the stack does not say."""
    model = claim.conditions["device_model"]
    return int(next((a["memory_gib"] for a in request.stack["accelerators"] if a["name"] == model), 80) * 2**30)


def _peak(request: Request) -> float:
    """The peak of the stack's device in the run's precision, FLOP/s; 1e14 where the stack has none."""
    peaks = [a["peaks"].get(request.config["precision"]) for a in request.stack["accelerators"]]
    return next((float(peak["flops"]) for peak in peaks if peak), 1e14)


def _steps(claim: Claim, request: Request, pace: Pace, count: int) -> dict[int, list[Step]]:
    """The steps of each rank, all as long: one rank of each replica counts its work."""
    config, layout = request.config, request.layout
    batch = configs.schedule(config)["batch_size"]
    tokens = batch * config["data"]["sequence_length"]
    units = (tokens if request.unit == "tokens" else batch) * layout.dp
    per_device = _published(claim, "tokens_per_second_per_device")
    train = _published(claim, "p_train") or (per_device and per_device * layout.world)
    core = _published(claim, "p_core") or _published(claim, "p_infer_core") or (train and train * 1.02)
    length = config["data"]["sequence_length"]
    case = CATALOG.cases[claim.case]
    assert case.count_flops is not None
    needed = case.count_flops(padded(config["model"], layout.tp), batch_of(1, length)).executed / (
        length if case.unit == "tokens" else 1
    )
    # A row without a speed: a second, or as long as its devices need.
    host = units / core if core else max(1.0, needed * units / layout.world / (UTILISATION * _peak(request)))
    wait = max(units / train - host, 0.0) if train else 0.02 * host
    drawn = random.Random(pace.seed)
    executed = int(batch * pace.partial) * config["data"]["sequence_length"]
    flops = needed * (executed if request.unit == "tokens" else int(batch * pace.partial))
    recomputes = derived_conditions(case, config).get("recompute") not in (None, False, "none")
    counting, other = [], []
    for number in range(count):
        factor = pace.slower * (1 + drawn.gauss(0, pace.noise)) * (1 + pace.drift * number / count)
        loss = (_published(claim, "loss") or 0.5) * (1.0 if number >= count - 50 else 2.0 - number / count)
        step = host * factor
        collective = (0.4 * step, 0.1 * step) if layout.world > 1 else (NAN, NAN)
        passes = (0.8 * step, 0.95 * step) if layout.pp > 1 else (NAN, NAN)
        times = (0.8 * wait * factor, 0.2 * wait * factor, step, 0.999 * step, *collective, 1e-4, loss)
        again = 0.3 * flops if recomputes else 0.0
        work = (int(batch * pace.partial), batch, executed, int(0.8 * executed), flops, 0.8 * flops, again)
        counting.append(Step(*times, *work, *passes))
        other.append(Step(*times, 0, 0, 0, 0, 0, 0, 0, *passes))
    return {rank: counting if layout.counts(rank) else other for rank in range(layout.world)}


CLAIMS = {
    name: claim
    for name, claim in CATALOG.claims.items()
    if claim.stack is not None and CATALOG.cases[claim.case].kind != "measure"
}
"""The claims that a record can be made of: those with a stack, of a model's steps."""
