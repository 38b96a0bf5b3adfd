"""Runs one rank of a job: builds the workload of its case, runs the loop for that kind of workload, writes facts.

rank/worker.py calls it in a process of its own. The spool is the set of files that this process writes; the parent
process of the node (flagbench_cases/node) reads it and assembles the record.
"""

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
    end_on_nccl_errors,
    keep_nccl_log,
    read_nccl_networks,
)
from flagbench_cases.rank.repeats import Repeater
from flagbench_cases.rank.software import describe_software
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.rank.train_loop import TrainLoop, TrainPlan
from flagbench_cases.rank.waiting import ProcessorTime
from flagbench_cases.shared import interpreter
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.manifests import package_of
from flagbench_cases.shared.parallel_layout import layout_of
from flagbench_cases.shared.spool import RankSpool
from flagbench_cases.telemetry.summary import read_start
from flagbench_core.evidence.roofs import REPEATS, short_roofs
from flagbench_core.host_name import host_name


class RankRun:
    """Executes the plan written by the node's parent process, on one rank."""

    def __init__(
        self, plan: dict[str, Any], spool: RankSpool, store: torch.distributed.Store | None, started: float
    ) -> None:
        """Open this rank's device, and join the other ranks.

        Args:
            plan: what to run, as the parent process wrote it to `plan.json`: `config` and its digest, `stack`,
                `data`, `weights`, `roofs`, `telemetry`, `resume`, `checkpoints`, `timeout`, `run_id` and `node_rank`.
            spool: receives measurements and facts.
            store: the one in which the ranks meet; None for a single rank.
            started: when this rank began, host seconds.

        Raises UsageError if the nodes' settings differ.
        """
        self.plan = plan
        self.config: dict[str, Any] = plan["config"]
        self.spool = spool
        self.started = started
        self.local_rank = int(os.environ["LOCAL_RANK"])
        precision_switches.set_switches(self.config["precision"])
        self.unused_libraries: dict[str, str] = {}
        """Why libraries that are installed are not used, by name."""
        apex_reason = apex.hide_if_unusable()
        if apex_reason is not None:
            self.unused_libraries["apex"] = apex_reason
        end_on_nccl_errors()
        self.device = open_device(plan["stack"], self.local_rank)
        if self.config["nodes"] > 1 and self.device.backend == "nccl":
            keep_nccl_log(spool)
        self.job = Job(self.device, store, plan["timeout"])
        check_same_configuration(self.job, plan)
        self.layout = layout_of(self.config)
        self.probe = CollectiveProbe(self.device.clock)

    def run(self) -> None:
        """Run the plan, from the facts about this rank to `done`."""
        job = self.job
        spool = self.spool
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
        networks = read_nccl_networks(spool)
        if networks:
            spool.fact("network", chosen=networks)
        collect_spools(job, self.plan, spool)
        job.barrier()
        spool.phase("done")
        # Node 0 cannot read the phases of other nodes: rank 0 tells it which ranks are done.
        ranks_done = job.all_gather(job.rank)
        if job.rank == 0:
            spool.fact("done", ranks=ranks_done)

    def _write_rank_facts(self) -> None:
        """Write facts about this rank, its device and its software."""
        spool = self.spool
        device_facts = self.device.describe(self.local_rank)
        uuid = self._uuid_of_device(self.local_rank)
        if uuid is not None:
            device_facts["uuid"] = uuid
        spool.fact(
            "rank",
            node=self.plan["node_rank"],
            local_rank=self.local_rank,
            pid=os.getpid(),
            processors=len(os.sched_getaffinity(0)),
            host=host_name(),
            device=device_facts,
            driver=self._monitor_start().get("driver_version"),
        )
        precision = precision_switches.measure_precision(self.device.torch_device, self.config["precision"])
        spool.fact("precision", **precision)
        if self.job.rank == 0:
            spool.fact("software", **describe_software(self.device.kind), **self.unused_libraries)

    def _monitor_start(self) -> dict[str, Any]:
        """The first line of the device monitor's log: `driver_version` and `devices`; empty without a monitor."""
        return read_start(self.plan["telemetry"]) or {}

    def _uuid_of_device(self, index: int) -> str | None:
        """The UUID of a device of this node according to the monitor; None if the monitor does not know it."""
        for device in self._monitor_start().get("devices", []):
            if device.get("index") == index:
                return device.get("uuid") or None
        return None

    def _load(self) -> Any:
        """Build and set up the case's workload for this rank."""
        groups = make_groups(self.layout, self.job.rank, self.job.collective_timeout)
        self.spool.phase("data")
        workload = self._build(self.config, self.plan["data"], self.plan["weights"], groups)
        workload.setup()
        if self.job.rank == 0:
            self.spool.fact("workload", **workload.describe())
        return workload

    def _build(self, config: dict[str, Any], *inputs: Any) -> Any:
        """Build the workload of a configuration's case. `inputs`: its data, weights and process groups."""
        package = package_of(config["case"])
        module = importlib.import_module(f"flagbench_cases.cases.{package}.workload")
        rank_context = (self.device, self.job.rank, self.layout, self.local_rank, self.probe, self.spool)
        return module.build(Context(config, *rank_context, *inputs))

    def _measure_roofs(self, config: dict[str, Any]) -> None:
        """Measure the roofs of the device, the rates that it reaches without a model, while nothing else is on it.

        `config` is that of the case `roofs`. This changes neither the random numbers nor the times of the run.
        """
        begun = now()
        devices = [] if self.device.kind == "cpu" else [self.device.torch_device]
        with torch.random.fork_rng(devices):
            plan = MeasurePlan(REPEATS, config["measure"]["seconds"], names=short_roofs(config["precision"]))
            repeater = Repeater(self.device, self.job.all_gather, self.spool.beat)
            RoofsLoop(self._build(config, None, None), plan, self.spool, repeater).run()
        self.device.reset_peak()
        self.started += now() - begun

    def _train(self, workload: TrainWorkload) -> None:
        """Train, resuming from the plan's checkpoint if there is one."""
        rank, device = self.job.rank, self.device
        checkpointing = checkpoint.prepare(self.plan, self.job, device.torch_device, workload, self.spool.beat)
        saved = checkpointing.saved
        first_step = 0
        if saved is not None:
            first_step = saved.step
        plan = train_plan_of(self.config, self.layout.dp, first_step)
        capacity = plan.capacity(workload.steps_per_epoch())
        restore_generators: Callable[[], None] | None = None
        if saved is not None:
            if capacity < 1:
                raise UsageError(
                    f"the checkpoint is from the last step, {saved.step}: there is nothing left to train",
                    "resume from an earlier checkpoint, or start a new run",
                )
            restore_generators = functools.partial(
                checkpoint.restore_generators, device.torch_device, saved.generators, rank
            )
            if rank == 0:
                self.spool.fact("resumed", step=saved.step, checkpoint=os.path.basename(saved.folder))
        init = self._begin(capacity)
        counts = self.layout.counts(rank)
        processor = ProcessorTime()
        loop = TrainLoop(
            workload, plan, self.spool, device, self.probe, checkpointing.write, restore_generators, counts
        )
        timing = loop.run()
        self.spool.fact("processor", **processor.seconds_since_start())
        self._end(workload, timing, init, excluded=timing["checkpoint"])
        if rank == 0:
            self.spool.fact("training", **workload.training_facts())

    def _infer(self, workload: InferWorkload) -> None:
        """Run the passes of an inference case."""
        section = self.config["infer"]
        plan = InferPlan(section["warmup_steps"], section["window_steps"])
        steps = sum(plan.steps(workload, name) for name in plan.passes(workload))
        first_results = workload.results()  # not timed, like the results after the loop
        init = self._begin(steps)
        counts = self.layout.counts(self.job.rank)
        processor = ProcessorTime()
        timing = InferLoop(workload, plan, self.spool, self.device, self.probe, counts).run()
        self.spool.fact("processor", **processor.seconds_since_start())
        self._end(workload, timing, init)
        if first_results:
            self.spool.fact("results", first=first_results, second=workload.results())
        self.spool.fact("inference", **workload.inference_facts())
        workload.close()

    def _measure(self, workload: MeasureWorkload) -> None:
        """Run the measurements of a case without a model, once or in laps."""
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
        first_results = workload.results()  # not timed, like the results after the loop
        loop = MeasureLoop(workload, plan, self.spool, repeater)
        if laps:
            model_and_driver = self._model_and_driver()
            health = self._open_lap_health()
            loop = LapLoop(workload, plan, self.spool, repeater, laps, first_results, model_and_driver, health)
        init = self._begin(loop.capacity, measurements=len(loop.measurements))
        processor = ProcessorTime()
        timing = loop.run()
        self.spool.fact("processor", **processor.seconds_since_start())
        self._end(None, timing, init)
        last_results = self._last_results(workload, loop)
        self.spool.fact("results", first=first_results, second=last_results)

    def _last_results(self, workload: MeasureWorkload, loop: MeasureLoop) -> dict[str, str]:
        """The results of the fixed operations after the loop. A loop of laps has computed them after its last lap."""
        if isinstance(loop, LapLoop):
            return loop.last_results
        return workload.results()

    def _model_and_driver(self) -> tuple[str, str | None]:
        """The model and driver of this rank's device. Devices in which both are equal compute the same bits."""
        model = self.device.describe(self.local_rank)["name"]
        return model, self._monitor_start().get("driver_version")

    def _open_lap_health(self) -> LapHealth | None:
        """The reader of the health of this node's devices, on the first rank of the node.

        None on every other rank, and if the monitor does not know the UUID of every device.
        """
        if self.local_rank > 0:
            return None
        uuids = []
        for index in range(self.config["gpus"]):
            uuid = self._uuid_of_device(index)
            if uuid is None:
                return None
            uuids.append(uuid)
        return LapHealth(self.plan["stack"]["monitor"], uuids)

    def _begin(self, steps: int, **planned: int) -> float:
        """Prepare for a loop of at most `steps` steps. Returns the seconds since this process started.

        `planned`: more numbers for the fact `plan`.
        """
        self.spool.reserve(steps)
        # Imports have made many objects, with the collector almost off. A collection within the loop would scan them.
        gc.collect()
        gc.set_threshold(*interpreter.DEFAULT_THRESHOLDS)
        self.spool.fact("plan", steps=steps, **planned)
        self.device.synchronize()
        self.device.reset_peak()  # initialising random weights can take more memory than the run
        return now() - self.started

    def _end(self, workload: Any, timing: dict[str, Any], init: float, excluded: float = 0.0) -> None:
        """Write the facts `timing` and `memory`, after the loop.

        Args:
            workload: has the model whose parameters' checksum is written; None if there is no model.
            timing: the durations that the loop returned, seconds.
            init: the seconds before the loop.
            excluded: seconds to subtract from `e2e`, the time since this process started.
        """
        self.spool.phase("report")
        e2e = now() - self.started - excluded
        self.spool.fact("timing", **dict(timing, init=init, e2e=e2e))
        memory: dict[str, float | None] = {
            "peak": self.device.sample_memory_peak(),
            "allocator_peak": self.device.allocator_peak(),
        }
        if workload is not None:
            memory["parameters"] = workload.parameter_sum()
        self.spool.fact("memory", **memory)


def train_plan_of(config: dict[str, Any], replicas: int, first_step: int) -> TrainPlan:
    """The training plan of a configuration. Numbers of samples over all replicas are converted to steps."""
    train = config["train"]
    evaluate_every_samples = train.get("evaluate_every_samples")
    max_samples = train.get("max_samples")
    samples_per_step = train["batch_size"] * replicas
    evaluate_every = None
    if evaluate_every_samples is not None:
        evaluate_every = _divide_rounding_up(evaluate_every_samples, samples_per_step)
    max_steps = None
    evaluate_from = None
    if max_samples is not None:
        # The publisher trains until this number of samples is exceeded, and evaluates as soon as it is reached.
        max_steps = max_samples // samples_per_step + 1
        evaluate_from = _divide_rounding_up(max_samples, samples_per_step)
    return TrainPlan(
        max_epochs=train["max_epochs"],
        warmup_steps=train["warmup_steps"],
        window_steps=train["window_steps"],
        target_acc=train["target_acc"],
        initial_evaluation=config["eval"]["initial"],
        evaluate_every=evaluate_every,
        max_steps=max_steps,
        evaluate_from=evaluate_from,
        first_step=first_step,
        checkpoint_every=train.get("checkpoint_every_steps"),
    )


def _divide_rounding_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
