"""One rank: joins the others, runs the loop, leaves its facts and, if it fails, the reason, in the spool."""

import datetime
import functools
import importlib
import json
import os
import re
import socket
import sys
import traceback
from typing import Any, Callable, Dict, List, NoReturn, Optional

import torch
import torch.distributed as dist

from flagbench_cases.contract import Context
from flagbench_cases.engines import precision
from flagbench_cases.rank import checkpoint, matmul_peak
from flagbench_cases.rank.device import open_device
from flagbench_cases.rank.probe import CollectiveProbe
from flagbench_cases.rank.software import software
from flagbench_cases.rank.stopwatch import now
from flagbench_cases.rank.train_loop import Loop, Plan
from flagbench_cases.shared.errors import CaseError, ExitCode, UsageError, of_system
from flagbench_cases.shared.spool import RankSpool, receive
from flagbench_cases.telemetry.summary import read_start

PEER_LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket timeout|timed out|remote process exited"
    r"|unhandled system error",
    re.IGNORECASE,
)
OUT_OF_MEMORY = re.compile(
    r"out of (shared )?memory|can't allocate memory|not enough memory|cannot allocate|status_alloc_failed|bus error",
    re.IGNORECASE,
)


class Job:
    """This rank among the others: torch.distributed where there is more than one."""

    def __init__(self, device: Any, timeout: float) -> None:
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.control: Any = None
        if self.world > 1:
            # The parent's watchdog decides what a hang is; the collective's own limit is only a net below it.
            limit = datetime.timedelta(seconds=2 * timeout + 600)
            dist.init_process_group(device.backend, init_method="env://", timeout=limit)
            self.control = (
                dist.new_group(backend="gloo", timeout=limit) if device.backend != "gloo" else dist.group.WORLD
            )

    def everyone(self, value: Any) -> List[Any]:
        """Every rank's value, in rank order, on every rank."""
        if self.world == 1:
            return [value]
        values: List[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def gather(self, value: Any) -> Any:
        """Every rank's value, in rank order, on rank 0; None elsewhere."""
        if self.world == 1:
            return [value]
        values = [None] * self.world if self.rank == 0 else None
        dist.gather_object(value, values, dst=0, group=self.control)
        return values

    def meet(self) -> None:
        """Wait until every rank has sent what it had to send."""
        if self.world > 1:
            dist.barrier(group=self.control)


def parameter_sum(module: torch.nn.Module) -> float:
    """A checksum of the parameters: ranks in step have the same."""
    return float(sum(p.detach().double().sum() for p in module.parameters()))


def agree(job: Job, plan: Dict[str, Any]) -> None:
    """Refuse nodes that were started with other arguments, or other software, than node 0; on every rank alike."""
    mine = {"configuration": plan["config_digest"], "stack": plan["stack"]["name"], "torch": str(torch.__version__)}
    everyone = job.everyone(mine)
    for rank, theirs in enumerate(everyone):
        for what, value in theirs.items():
            first = everyone[0][what]
            if value != first:
                raise UsageError(
                    "rank %d has the %s %s and rank 0 %s" % (rank, what, value, first),
                    "start every node with the same arguments and the same image",
                )


def run(plan: Dict[str, Any], spool: RankSpool, started: float) -> None:
    """Everything this rank does."""
    config, stack = plan["config"], plan["stack"]
    local_rank = int(os.environ["LOCAL_RANK"])
    precision.set_switches(config["precision"])
    device = open_device(stack, local_rank)
    job = Job(device, plan["timeout"])
    agree(job, plan)
    spool.fact(
        "rank",
        node=plan["node_rank"],
        local_rank=local_rank,
        pid=os.getpid(),
        host=socket.gethostname(),
        device=device.describe(local_rank),
        driver=(read_start(plan["telemetry"]) or {}).get("driver_version"),
    )
    spool.fact("precision", **precision.prove(device.torch, config["precision"]))
    if job.rank == 0:
        spool.fact("software", **software(device.kind, config["precision"]))
    module = importlib.import_module("flagbench_cases.cases.%s.workload" % config["case"].replace("-", "_"))
    probe = CollectiveProbe(device.clock)
    context = Context(config, device, job.rank, job.world, local_rank, probe, spool, plan["data"], plan["weights"])
    spool.phase("data")
    workload = module.build(context)
    workload.setup()
    if job.rank == 0:
        spool.fact("workload", **workload.describe())
    point, save = checkpoint.prepare(plan, job, device.torch, workload)
    loop_plan = plan_of(config, job.world, point.step if point else 0)
    capacity = loop_plan.capacity(workload.steps_per_epoch())
    resume: Optional[Callable[[], None]] = None
    if point is not None:
        if capacity < 1:
            raise UsageError("the checkpoint is at the end, step %d" % point.step, "there is nothing left to train")
        resume = functools.partial(
            checkpoint.set_generators, device.torch, checkpoint.of_rank(point.generators, job.rank)
        )
        if job.rank == 0:
            spool.fact("resumed", step=point.step, checkpoint=os.path.basename(point.folder))
    spool.reserve(capacity)
    spool.fact("plan", steps=capacity)
    device.synchronize()
    init = now() - started
    timing = Loop(workload, loop_plan, spool, device, probe, save, resume).run()
    spool.phase("report")
    timing.update(init=init, e2e=now() - started - timing["checkpoint"])
    spool.fact("timing", **timing)
    if job.rank == 0:
        spool.fact("training", **workload.training_facts())
    spool.fact(
        "memory",
        peak=device.memory_peak(),
        allocator_peak=device.allocator_peak(),
        parameters=parameter_sum(workload.module),
    )
    spool.fact("ceiling", **matmul_peak.measure(device, config["precision"]))
    collect(job, plan, spool)
    job.meet()
    spool.phase("done")
    # Sent to the others as well: node 0 does not see the spools of other nodes.
    done = job.everyone(job.rank)
    if job.rank == 0:
        spool.fact("done", ranks=done)


def plan_of(config: Dict[str, Any], world: int, first_step: int) -> Plan:
    """How long to train, and when to evaluate: samples of all devices become steps."""
    train = config["train"]
    every, most = train.get("evaluate_every_samples"), train.get("max_samples")
    batch = train["batch_size"] * world
    return Plan(
        train["max_epochs"],
        train["warmup_steps"],
        train["window_steps"],
        train["target_acc"],
        config["eval"]["initial"],
        evaluate_every=None if every is None else -(-every // batch),
        # The publisher goes on until more than that many samples are trained, and evaluates from that many on.
        max_steps=None if most is None else most // batch + 1,
        evaluate_from=None if most is None else -(-most // batch),
        first_step=first_step,
        checkpoint_every=train.get("checkpoint_every_steps"),
    )


def collect(job: Job, plan: Dict[str, Any], spool: RankSpool) -> None:
    """Bring the spools of other nodes to node 0, where the record is assembled."""
    theirs = job.gather(spool.files() if plan["node_rank"] > 0 else None)
    for rank, files in enumerate(theirs or []):
        if files:
            receive(spool.folder, rank, files)


def classify(error: BaseException) -> Dict[str, Any]:
    """A failure as facts: exit code, words, and whether it only echoes another rank's end."""
    text = str(error).strip()
    first = text.split("\n")[0] if text else type(error).__name__
    if isinstance(error, CaseError):
        return {"code": int(error.code), "message": error.message, "remedy": error.remedy, "secondary": False}
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(text):
        remedy = "use a smaller --set batch_size, or a device with more memory"
        return {"code": int(ExitCode.OUT_OF_MEMORY), "message": first, "remedy": remedy, "secondary": False}
    known = of_system(error, os.environ.get("TMPDIR", "/tmp"))
    if known is not None:
        return {"code": int(known.code), "message": known.message, "remedy": known.remedy, "secondary": False}
    secondary = isinstance(error, RuntimeError) and PEER_LOST.search(text) is not None
    message = "%s: %s" % (type(error).__name__, first)
    if secondary:
        message = "the connection to another rank broke: %s" % first
    remedy = "see the log above for the traceback of the rank that failed first"
    return {"code": int(ExitCode.RANK_FAILED), "message": message, "remedy": remedy, "secondary": secondary}


def report(spool: RankSpool, failure: Dict[str, Any]) -> None:
    """Leave the reason in the spool. Where the disk is full even for that, the traceback above is all there is."""
    try:
        spool.fact("failure", **failure)
    except OSError:
        traceback.print_exc()


def main(folder: str) -> NoReturn:
    """Run the rank that the launcher's environment names."""
    started = now()
    rank = int(os.environ["RANK"])
    spool = RankSpool(folder, rank)
    spool.fact("process", pid=os.getpid())
    spool.phase("init")
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    code = 0
    try:
        run(plan, spool, started)
    except BaseException as error:  # the edge of this process: whatever ends it must be in the record
        if not isinstance(error, CaseError):  # whose words say what is wrong and what to do
            traceback.print_exc()
        report(spool, classify(error))
        code = 1
    # Not sys.exit: destructors of a process group can wait for peers that are gone, and a rank of torch 1.12 was seen
    # once to hang after its last word. Everything is in the spool by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
