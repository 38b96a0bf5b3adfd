"""Runs one rank: builds the workload, runs the loop, and writes facts to the spool."""

from __future__ import annotations

import functools
import gc
import importlib
import os
from typing import Any, Callable

import torch

from flagbench_cases.contract import Context, InferWorkload, MeasureWorkload, TrainWorkload
from flagbench_cases.engines import apex, precision_switches
from flagbench_cases.engines.groups import make_groups
from flagbench_cases.rank import checkpoint, matmul_peak
from flagbench_cases.rank.device import open_device
from flagbench_cases.rank.infer_loop import InferLoop, InferPlan
from flagbench_cases.rank.lap_health import LapHealth
from flagbench_cases.rank.laps import LapLoop
from flagbench_cases.rank.measure_loop import MeasureLoop, MeasurePlan, RoofsLoop
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.rank_group import (
    Job,
    check_same_configuration,
    collect_spools,
    keep_nccl_log,
    nccl_networks,
)
from flagbench_cases.rank.repeats import Repeater
from flagbench_cases.rank.software import software
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.rank.train_loop import TrainLoop, TrainPlan
from flagbench_cases.rank.waiting import ProcessorTime
from flagbench_cases.shared import interpreter
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.manifests import package_of
from flagbench_cases.shared.parallel_layout import layout_of
from flagbench_cases.shared.spool import RankSpool
from flagbench_cases.shared.system import host_name
from flagbench_cases.telemetry.summary import read_start
from flagbench_core.evidence.roofs import REPEATS, short_roofs


class RankRun:
    """Executes the plan written by the node's parent process, on one rank."""

    def __init__(self, plan: dict[str, Any], spool: RankSpool, started: float) -> None:
        """`started`: when this process started, by the stopwatch. Raises UsageError if the nodes' settings differ."""
        self.plan = plan
        self.config: dict[str, Any] = plan["config"]
        self.spool = spool
        self.started = started
        self.local_rank = int(os.environ["LOCAL_RANK"])
        precision_switches.set_switches(self.config["precision"])
        unusable = apex.hide_if_unusable()
        self.unused = {"apex": unusable} if unusable else {}
        self.device = open_device(plan["stack"], self.local_rank)
        if self.config["nodes"] > 1 and self.device.backend == "nccl":
            keep_nccl_log(spool)
        self.job = Job(self.device, plan["timeout"])
        check_same_configuration(self.job, plan)
        self.layout = layout_of(self.config)
        self.probe = CollectiveProbe(self.device.clock)

    def run(self) -> None:
        """Run everything."""
        job, spool = self.job, self.spool
        self._write_rank_facts()
        if self.plan["roofs"]:
            self._measure_roofs(self.plan["roofs"])
        workload = self._load()
        if isinstance(workload, MeasureWorkload):
            self._measure(workload)
        elif isinstance(workload, InferWorkload):
            self._infer(workload)
        else:
            self._train(workload)
        spool.fact("ceiling", **matmul_peak.measure(self.device, self.config["precision"]))
        if chosen := nccl_networks(spool):
            spool.fact("network", chosen=chosen)
        collect_spools(job, self.plan, spool)
        job.barrier()
        spool.phase("done")
        # Gathered, since node 0 cannot read the spools of other nodes.
        done = job.all_gather(job.rank)
        if job.rank == 0:
            spool.fact("done", ranks=done)

    def _write_rank_facts(self) -> None:
        """Write facts about this rank, its device and its software."""
        device, spool = self.device, self.spool
        monitored = read_start(self.plan["telemetry"]) or {}
        spool.fact(
            "rank",
            node=self.plan["node_rank"],
            local_rank=self.local_rank,
            pid=os.getpid(),
            processors=len(os.sched_getaffinity(0)),
            host=host_name(),
            device=dict(device.describe(self.local_rank), **uuid_of(monitored, self.local_rank)),
            driver=monitored.get("driver_version"),
        )
        spool.fact("precision", **precision_switches.prove(device.torch, self.config["precision"]))
        if self.job.rank == 0:
            spool.fact("software", **software(device.kind, self.config["precision"]), **self.unused)

    def _load(self) -> Any:
        """Build and set up the case's workload for this rank."""
        plan, spool = self.plan, self.spool
        groups = make_groups(self.layout, self.job.rank, self.job.limit)
        spool.phase("data")
        workload = self._build(self.config, plan["data"], plan["weights"], groups)
        workload.setup()
        if self.job.rank == 0:
            spool.fact("workload", **workload.describe())
        return workload

    def _build(self, config: dict[str, Any], *inputs: Any) -> Any:
        """The workload of a configuration's case; `inputs`: its data, weights and groups."""
        package = package_of(config["case"])
        module = importlib.import_module(f"flagbench_cases.cases.{package}.workload")
        rank_context = (self.device, self.job.rank, self.layout, self.local_rank, self.probe, self.spool)
        return module.build(Context(config, *rank_context, *inputs))

    def _measure_roofs(self, config: dict[str, Any]) -> None:
        """Measure the roofs of the device while nothing else is on it.

        This changes neither the random numbers nor the times of the run.
        """
        begun = now()
        devices = [] if self.device.kind == "cpu" else [self.device.torch]
        with torch.random.fork_rng(devices):
            plan = MeasurePlan(REPEATS, config["measure"]["seconds"], names=short_roofs(config["precision"]))
            repeater = Repeater(self.device, self.job.all_gather, self.spool.beat)
            RoofsLoop(self._build(config, None, None), plan, self.spool, repeater).run()
        self.device.reset_peak()
        self.started += now() - begun

    def _train(self, workload: TrainWorkload) -> None:
        """Train, resuming from the plan's checkpoint if there is one."""
        rank, device = self.job.rank, self.device
        saved, save = checkpoint.prepare(self.plan, self.job, device.torch, workload, self.spool.beat)
        first_step = 0 if saved is None else saved.step
        plan = plan_of(self.config, self.layout.dp, first_step)
        capacity = plan.capacity(workload.steps_per_epoch())
        resume: Callable[[], None] | None = None
        if saved is not None:
            if capacity < 1:
                raise UsageError(
                    f"the checkpoint is from the last step, {saved.step}: there is nothing left to train",
                    "resume from an earlier checkpoint, or start a new run",
                )
            resume = functools.partial(checkpoint.restore_generators, device.torch, saved.generators, rank)
            if rank == 0:
                self.spool.fact("resumed", step=saved.step, checkpoint=os.path.basename(saved.folder))
        init = self._begin(capacity)
        counts = self.layout.counts(rank)
        processor = ProcessorTime()
        timing = TrainLoop(workload, plan, self.spool, device, self.probe, save, resume, counts).run()
        self.spool.fact("processor", **processor.used())
        self._end(workload, timing, init, timing["checkpoint"])
        if rank == 0:
            self.spool.fact("training", **workload.training_facts())

    def _infer(self, workload: InferWorkload) -> None:
        """Run the passes of an inference case."""
        section = self.config["infer"]
        plan = InferPlan(section["warmup_steps"], section["window_steps"])
        init = self._begin(sum(plan.steps(workload, name) for name in plan.passes(workload)))
        counts = self.layout.counts(self.job.rank)
        processor = ProcessorTime()
        timing = InferLoop(workload, plan, self.spool, self.device, self.probe, counts).run()
        self.spool.fact("processor", **processor.used())
        self._end(workload, timing, init)

    def _measure(self, workload: MeasureWorkload) -> None:
        """Measure the device."""
        section = self.config["measure"]
        repeater = Repeater(self.device, self.job.all_gather, self.spool.beat)
        iterations = {}
        if section["window_steps"] is None:
            iterations = section["iterations"]
        laps = section.get("laps", 0)
        plan = MeasurePlan(
            section["window_steps"] or REPEATS,
            section["seconds"],
            iterations,
            heat_seconds=section.get("heat_seconds", 0),
            fill_share=laps > 0,
        )
        first_results = workload.results()  # not timed, as those after the loop
        loop = MeasureLoop(workload, plan, self.spool, repeater)
        if laps:
            alike = self._alike()
            health = self._lap_health()
            loop = LapLoop(workload, plan, self.spool, repeater, laps, first_results, alike, health)
        init = self._begin(loop.capacity, measurements=len(loop.measurements))
        processor = ProcessorTime()
        timing = loop.run()
        self.spool.fact("processor", **processor.used())
        self._end(None, timing, init)
        last_results = loop.last_results if isinstance(loop, LapLoop) else workload.results()
        self.spool.fact("results", first=first_results, second=last_results)

    def _alike(self) -> tuple[str, str | None]:
        """The model and driver of this rank's device: devices with equal ones compute the same bits."""
        monitored = read_start(self.plan["telemetry"]) or {}
        return self.device.describe(self.local_rank)["name"], monitored.get("driver_version")

    def _lap_health(self) -> LapHealth | None:
        """The reader of the health of this node's devices, on the first rank of the node.

        None on every other rank, and if the monitor does not name every device.
        """
        monitored = read_start(self.plan["telemetry"]) or {}
        uuids = [uuid_of(monitored, index).get("uuid") for index in range(self.config["gpus"])]
        named = [uuid for uuid in uuids if uuid is not None]
        if self.local_rank > 0 or len(named) < len(uuids):
            return None
        return LapHealth(self.plan["stack"]["monitor"], named)

    def _begin(self, steps: int, **planned: int) -> float:
        """Reserve space for the steps. Returns the seconds from the start of this process to that of the loop."""
        self.spool.reserve(steps)
        gc.collect()  # the objects of the imports: otherwise a collection within the loop would look through them
        gc.set_threshold(*interpreter.DEFAULT_THRESHOLDS)
        self.spool.fact("plan", steps=steps, **planned)
        self.device.synchronize()
        self.device.reset_peak()  # drawing random weights can take more memory than the run
        return now() - self.started

    def _end(self, workload: Any, timing: dict[str, Any], init: float, excluded: float = 0.0) -> None:
        """Write timing, memory and, of a workload with a model, the parameters' checksum.

        `excluded`: seconds to subtract from e2e.
        """
        self.spool.phase("report")
        e2e = now() - self.started - excluded
        self.spool.fact("timing", **dict(timing, init=init, e2e=e2e))
        memory = {"peak": self.device.memory_peak(), "allocator_peak": self.device.allocator_peak()}
        if workload is not None:
            memory["parameters"] = parameter_sum(workload.module)
        self.spool.fact("memory", **memory)


def uuid_of(monitored: dict[str, Any], index: int) -> dict[str, str]:
    """`uuid` of a device of this node according to the monitor's start line; empty if the line lacks it."""
    for device in monitored.get("devices", []):
        if device.get("index") != index:
            continue
        if device.get("uuid"):
            return {"uuid": device["uuid"]}
        return {}
    return {}


def parameter_sum(module: torch.nn.Module) -> float:
    """A checksum of the parameters, equal on replicas that are in sync."""
    return float(sum(p.detach().double().sum() for p in module.parameters()))


def plan_of(config: dict[str, Any], replicas: int, first_step: int) -> TrainPlan:
    """How long to train and when to evaluate. Samples over all devices are converted to steps."""
    train = config["train"]
    evaluate_every_samples = train.get("evaluate_every_samples")
    max_samples = train.get("max_samples")
    batch = train["batch_size"] * replicas
    evaluate_every = None
    if evaluate_every_samples is not None:
        evaluate_every = -(-evaluate_every_samples // batch)
    max_steps = None
    evaluate_from = None
    if max_samples is not None:
        # The publisher trains until that number of samples is exceeded, and evaluates from that number on.
        max_steps = max_samples // batch + 1
        evaluate_from = -(-max_samples // batch)
    return TrainPlan(
        train["max_epochs"],
        train["warmup_steps"],
        train["window_steps"],
        train["target_acc"],
        config["eval"]["initial"],
        evaluate_every=evaluate_every,
        max_steps=max_steps,
        evaluate_from=evaluate_from,
        first_step=first_step,
        checkpoint_every=train.get("checkpoint_every_steps"),
    )
