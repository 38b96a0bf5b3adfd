"""One side of a comparison in a process of its own, which takes a step only when it is told to.

    python -m tests.reenact.side ours|publisher FOLDER CORE

FOLDER holds config.json, read again at each start. What is forked runs on CORE. A line read from stdin is a command,
and each is answered by one line of JSON on stdout:

    start       {"software": {...}} once everything is built, in a process forked for what follows
    step        {"loss": nats, "seconds": of the process's CPU, or of the device}
    operators   the same, and what the step did (tests.reenact.inventory)
    saved       the same, and what it kept for its backward pass
    end         {} and the forked process ends; another start may follow

`ours` leaves weights.pt in FOLDER, and `publisher` starts from them: the first start is that of `ours`. End of file
ends everything.

A step is a whole iteration of the loop, from where a batch is there to where the next one is; ours runs under the one
loop of all cases that train, or of all that infer. Before each, the random numbers of both sides are those of its
number, so that dropout is the same.
"""

import contextlib
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Dict, Optional

from flagbench_cases.shared import output, tf32_environment
from flagbench_cases.shared.manifests import package_of

STEPS = 10_000  # more than anyone asks for
IMPORTED_LATE = "torch._dynamo"  # by the first optimizer, for a second


class End(BaseException):
    """No further step of this start is asked for."""


class Turns:
    """Reads commands and answers them; what lies between two calls of `next` is a step."""

    def __init__(self, stdout: int, device: Any, seed: int) -> None:
        self.stdout = stdout
        self.device = device
        self.seed = seed
        self._ended: Optional[Callable[[], Dict[str, Any]]] = None

    def say(self, **what: Any) -> None:
        """Write one line."""
        output.write_line(self.stdout, json.dumps(what))

    def wait(self) -> str:
        """The next command. Raises End where there is none, or that is it."""
        command = sys.stdin.readline().strip()
        if command == "end":
            self.say()
        if command in ("", "end"):
            raise End
        return command

    def next(self, loss: Any = None) -> None:
        """Answer for the step just done, which had this loss, and begin the next one once it is asked for.

        A loss that was left on the device is read here, after the step.
        """
        if self._ended is not None:
            measured = self._ended()
            self.say(loss=float(loss), **measured)
        command = self.wait()
        self.seed += 1
        seed(self.seed)
        self._ended = self._begin(command)

    def _begin(self, command: str) -> Callable[[], Dict[str, Any]]:
        """Begin a step; what is returned ends it and gives what was measured."""
        from . import inventory

        stack = contextlib.ExitStack()
        counter = inventory.COUNTERS[command]() if command != "step" else None
        if counter is not None:
            stack.enter_context(counter)
        seconds = self.clock()

        def end() -> Dict[str, Any]:
            taken = seconds()
            stack.close()
            return {"seconds": taken, **(counter.found() if counter is not None else {})}

        return end

    def clock(self) -> Callable[[], float]:
        """Seconds from now on: of this process's CPU, all threads, or of the device between two events."""
        if self.device.kind == "cpu":
            start = time.process_time()
            return lambda: time.process_time() - start
        begun = self.device.clock.mark()

        def taken() -> float:
            ended = self.device.clock.mark()
            self.device.synchronize()
            return float(self.device.clock.seconds(begun, ended))

        return taken


def ours(config: Dict[str, Any], folder: str, device: Any, turns: Turns) -> None:
    """The case's own workload under the one loop of its kind."""
    import torch

    from flagbench_cases.contract import Context, InferWorkload
    from flagbench_cases.rank.infer_loop import InferLoop, InferPlan
    from flagbench_cases.rank.probe import CollectiveProbe
    from flagbench_cases.rank.train_loop import TrainLoop, TrainPlan
    from flagbench_cases.shared.parallel_layout import Layout
    from flagbench_cases.shared.spool import RankSpool

    spool, probe = RankSpool(folder, 0), CollectiveProbe(device.clock)
    module = importlib.import_module("flagbench_cases.cases.%s.workload" % package_of(config["case"]))
    work = module.build(Context(config, device, 0, Layout(), 0, probe, spool, None, None))
    work.setup()
    weights = os.path.join(folder, "weights.pt")
    if not os.path.exists(weights):  # those of every start are the same
        torch.save(work.module.state_dict(), weights)
    turns.say(software=software())
    infers = isinstance(work, InferWorkload)
    hand_over, step, last = work.to_device, work.infer if infers else work.step, [None]

    def begin(batch: Any) -> Any:
        turns.next(last[0])
        return hand_over(batch)

    def take(batch: Any) -> Any:
        last[0] = step(batch)
        return last[0]

    work.to_device = begin
    spool.reserve(STEPS)
    if infers:
        work.infer = take
        InferLoop(work, InferPlan(0, STEPS), spool, device, probe).run()
    else:
        work.step = take
        TrainLoop(work, TrainPlan(1, 0, STEPS, None, False), spool, device, probe).run()


def publisher(config: Dict[str, Any], folder: str, device: Any, turns: Turns) -> None:
    """The re-enactment, with the libraries that this process was given."""
    import torch

    module = importlib.import_module("." + config["case"].replace("-", "_"), __package__)
    weights = torch.load(os.path.join(folder, "weights.pt"), map_location=device.torch_device)
    loop = module.steps(config, device.torch_device, weights)
    loss = next(loop)
    weights.clear()  # copied into the model; kept, they would lie between what a step reads
    turns.say(software=software())
    while True:
        turns.next(loss)
        loss = next(loop)


def seed(number: int) -> None:
    """Set torch's generators, host and device."""
    import torch

    torch.manual_seed(number)


def software() -> Dict[str, Any]:
    """Versions of what was imported."""
    names = ("torch", "transformers", "peft")
    return {name: str(sys.modules[name].__version__) for name in names if name in sys.modules}


def main(side: str, folder: str, core: int) -> int:
    """Start this side as often as it is told to, each time in a process forked from one that has imported everything.

    Returns the exit code of the first start that failed, else 0.
    """
    stdout = output.keep_stdout()  # libraries print there too
    config = read_config(folder)
    tf32_environment.prepare_environment(os.environ, config["precision"])  # before torch is imported
    importlib.import_module(
        "flagbench_cases.cases.%s.workload" % package_of(config["case"])
        if side == "ours"
        else "%s.%s" % (__package__, config["case"].replace("-", "_"))
    )
    with contextlib.suppress(ImportError):
        importlib.import_module(IMPORTED_LATE)
    os.sched_setaffinity(0, {core})
    while sys.stdin.readline().strip() == "start":
        process = os.fork()
        if process == 0:
            run(side, read_config(folder), folder, stdout)
        status = os.waitpid(process, 0)[1]
        if status != 0:
            return abs(os.WEXITSTATUS(status) if os.WIFEXITED(status) else os.WTERMSIG(status))
    return 0


def read_config(folder: str) -> Dict[str, Any]:
    """The configuration of the next start."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config: Dict[str, Any] = json.load(file)
    return config


def run(side: str, config: Dict[str, Any], folder: str, stdout: int) -> None:
    """One start, which ends this process."""
    code = 1
    try:
        import torch

        from flagbench_cases.engines import precision_switches
        from flagbench_cases.rank.device import open_device
        from flagbench_cases.shared.manifests import load_stack

        precision_switches.set_switches(config["precision"])
        device = open_device(load_stack(config["stack"]), 0)
        if device.kind == "cpu":
            torch.set_num_threads(1)
        turns = Turns(stdout, device, config["seed"])
        with contextlib.suppress(End), tempfile.TemporaryDirectory() as scratch:
            os.environ["TMPDIR"] = scratch
            {"ours": ours, "publisher": publisher}[side](config, folder, device, turns)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # a monitor's thread, or a loader's worker, is not waited for


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
