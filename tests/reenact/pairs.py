"""Two sides that take turns, start after start: what a step of each costs, and what it does."""

import contextlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, Generator, Iterator, List, NamedTuple, Optional

from flagbench_cases.shared.errors import CaseError
from flagbench_core.exit_codes import ExitCode

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WARMUP = 3
KEYS = ("operators", "bytes", "saved_bytes", "saved")
BOUNDS = (0.97, 1.03)
# Both are started again until the interval is this narrow on either side of the ratio, or time is up. Where it lies
# does not decide when to stop.
HALF_WIDTH = 0.009
# So many rounds have an interval (its exact coverage is 31/32); fewer have a centre alone.
ROUNDS_OF_AN_INTERVAL = 6
# A quick comparison ends after so many rounds, if their centre is that near to 1; else once an interval decides, for
# which llama2-70b, with a ratio of 1.014, took 13 to 16 rounds.
QUICK_WITHIN = {2: 0.015, 6: 0.02}
# The pairs of a start take no longer, as far as FEWEST_PAIRS allow: a few percent of a step are those of the start.
START_SECONDS = 4.0
FEWEST_PAIRS = 8
# glibc gives large tensors back to the kernel and faults them in again, more or less of them by the order in which
# they are freed: several percent of a step that are no work of either side. Both keep their heap, as on a device.
# They ask for huge pages: which small ones a process was given decides what collides in the caches, from its start to
# its end, a percent of a step either way.
HEAP = {
    **{"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34), "MALLOC_TOP_PAD_": str(2**28)},
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # from glibc 2.35 on, where the kernel allows madvise
}
CONFIDENCE = 0.95
# Timed starts that are forked from one process: those of a round. Where its libraries lie is the same for all of them
# and costs 2 to 3 %, so rounds of one process would not be independent, and their interval too narrow.
FORKS = 2


class Limits(NamedTuple):
    """Rounds at the least and at the most, for how long at the most, and the pairs of a start at the most.

    A round is two starts, of which each side is the first of one. `quick`: whether QUICK_WITHIN applies.
    """

    least: int
    most: int
    seconds: float
    pairs: int
    quick: bool = False


class Interval(NamedTuple):
    """A ratio and the ends of its 95 % interval; None where too few rounds were made for one."""

    low: Optional[float]
    value: float
    high: Optional[float]


def centre(values: List[float]) -> Interval:
    """The Hodges-Lehmann centre of any number of values, without an interval."""
    return Interval(None, statistics.median(walsh_averages(values)), None)


def lies(ratio: Interval) -> Optional[bool]:
    """Whether an interval is within BOUNDS (True), has nothing in common with them (False), or neither (None)."""
    assert ratio.low is not None
    assert ratio.high is not None
    low, high = BOUNDS
    if low <= ratio.low and ratio.high <= high:
        return True
    return False if ratio.high < low or high < ratio.low else None


def walsh_averages(values: List[float]) -> List[float]:
    """The means of all pairs of values, each value with itself included, in ascending order."""
    return sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2))


def interval(values: List[float]) -> Interval:
    """The Hodges-Lehmann centre of at least six values, and its exact 95 % interval by Wilcoxon's signed ranks.

    The centre is the median of the means of all pairs of values, each value with itself included. The k-th smallest
    and k-th largest of these means hold it with probability 1 - 2 P(W < k), where W is the sum of the ranks of a
    random subset. It asks for a symmetric distribution, as that of a ratio in which each side was the first once.

    Source: Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, sections 3.2 and 3.3.
    """
    means = walsh_averages(values)
    subsets = [1] + [0] * len(means)  # by the sum of their ranks
    for rank in range(1, len(values) + 1):
        for total in range(len(means), rank - 1, -1):
            subsets[total] += subsets[total - rank]
    below = itertools.accumulate(subsets)
    k = sum(1 for _ in itertools.takewhile(lambda n: 2 * n <= (1 - CONFIDENCE) * 2 ** len(values), below))
    if k == 0:
        raise ValueError("%d values have no 95 %% interval; give six" % len(values))
    return Interval(means[k - 1], statistics.median(means), means[-k])


def publisher_libraries(case: str) -> Optional[str]:
    """The folder with the library versions that the publisher names, beside this Python; None where there is none.

    It is made by `make bench` from tests/locks/publisher-CASE.txt.
    """
    folder = os.path.join(sys.prefix, "publishers", case)
    return folder if os.path.isdir(folder) else None


def needs_libraries(case: str) -> bool:
    """Whether the publisher's loop is made of libraries whose version matters; GLM's model is no library's."""
    return os.path.exists(os.path.join(ROOT, "tests", "locks", "publisher-%s.txt" % case))


class Side:
    """One process of tests.reenact.side, whose forks share a core with those of the other one."""

    def __init__(self, name: str, folder: str, core: int, libraries: Optional[str] = None) -> None:
        entrypoints = os.path.join(ROOT, "entrypoints")
        path = [libraries, entrypoints, os.environ.get("PYTHONPATH")]
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(part for part in path if part), OMP_NUM_THREADS="1", **HEAP)
        self.name = name
        self.losses: List[float] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.reenact.side", name, folder, str(core)],
            **{"cwd": ROOT, "env": env, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True},
        )

    def hear(self) -> Dict[str, Any]:
        """The next line that the side says. Raises CaseError where it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise CaseError(
                "the side %r ended with exit code %d" % (self.name, code),
                "see its own words above",
                ExitCode.RANK_FAILED,
            )
        return json.loads(line)

    def tell(self, command: str) -> None:
        """Give a command."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `hear` says that it has ended

    def take(self, command: str) -> Dict[str, Any]:
        """Have it take one step, and answer. Raises CaseError where its loss is not finite."""
        self.tell(command)
        answer = self.hear()
        if "loss" in answer:
            self.losses.append(answer["loss"])
            if not math.isfinite(answer["loss"]):
                raise CaseError(
                    "a loss of the side %r is not finite" % self.name,
                    "give another --precision",
                    ExitCode.RANK_FAILED,
                )
        return answer

    def close(self) -> None:
        """End it and what it has forked, which read the end of their commands."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def configure(config: Dict[str, Any], folder: str) -> None:
    """Write what the next starts read."""
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


def opened(folder: str, libraries: Optional[str], core: int) -> Generator[List[Side], None, None]:
    """Both sides, for one start after the other; they import side by side, and end with the generator.

    The first processes are forked for the counted start, too.
    """
    forks = 1 + FORKS
    while True:
        with contextlib.ExitStack() as stack:
            sides = []
            for name, path in (("ours", None), ("publisher", libraries)):
                sides.append(Side(name, folder, core, path))
                stack.callback(sides[-1].close)
            for _ in range(forks):
                yield sides
        forks = FORKS


def compare(
    config: Dict[str, Any], timed: Dict[str, Any], libraries: Optional[str], limits: Optional[Limits], core: int
) -> Dict[str, Any]:
    """Let both sides of a resolved configuration take turns on a core; raises CaseError where one of them ends.

    `timed`: the configuration whose steps are timed; those of `config` are counted. Both have the same precision.
    Without `limits` nothing is timed.

    Where a process has its memory costs it a few percent of a step, from its start to its end, and so does being the
    first to start. So the ratio is the centre of those of many rounds, each of them the geometric mean of two starts
    in either order, and that of a start the median of its pairs of steps.
    """
    with tempfile.TemporaryDirectory(prefix="flagbench-reenact-") as folder:
        configure(config, folder)
        with contextlib.closing(opened(folder, libraries, core)) as again:
            sides = next(again)
            software = start(sides)
            warm_up(sides)
            inventories = count(sides)
            end(sides)
            gap = loss_difference(sides)
            made: Dict[str, Any] = {"largest_loss_difference": gap}
            if limits is not None:
                configure(timed, folder)
                made = start_again(again, limits, gap)
    return {"software": software, "inventories": inventories, **made}


def start(sides: List[Side]) -> Dict[str, Any]:
    """Start both in this order; returns their software."""
    return {side.name: side.take("start")["software"] for side in sides}


def warm_up(sides: List[Side]) -> float:
    """The first steps; returns the CPU time of the last pair, seconds."""
    for _ in range(WARMUP):
        seconds = sum(side.take("step")["seconds"] for side in sides)
    return seconds


def end(sides: List[Side]) -> None:
    """End what was started."""
    for side in sides:
        side.take("end")


def count(sides: List[Side]) -> Dict[str, Dict[str, Any]]:
    """Have each side take a step whose operators and one whose saved bytes are counted."""
    found: Dict[str, Dict[str, Any]] = {side.name: {} for side in sides}
    for command in ("operators", "saved"):
        for side in sides:
            found[side.name].update(side.take(command))
    return {name: {key: answer[key] for key in KEYS} for name, answer in found.items()}


def loss_difference(sides: List[Side]) -> float:
    """The largest difference of both sides' losses in any step so far, nats."""
    ours, theirs = (side.losses for side in sides)
    return max(abs(a - b) for a, b in zip(ours, theirs))


def start_again(again: Iterator[List[Side]], limits: Limits, gap: float) -> Dict[str, Any]:
    """Start both and time pairs of their steps, again and again, in rounds. `gap`: between the losses before.

    An interval with which a quick comparison decided when to end would be too narrow, so it has none.
    """
    starts: List[float] = []
    rounds: List[float] = []
    seconds: Dict[str, List[List[float]]] = {"ours": [], "publisher": []}
    until = time.monotonic() + limits.seconds
    while True:
        for order in (1, -1):
            sides = next(again)[::order]
            start(sides)
            fitting = int(START_SECONDS / warm_up(sides))
            told = take_turns(sides, min(limits.pairs, max(FEWEST_PAIRS, fitting)))
            end(sides)
            for name, answers in told.items():
                seconds[name].append([answer["seconds"] for answer in answers])
            pairs = zip(told["ours"], told["publisher"])
            starts.append(statistics.median(ours["seconds"] / theirs["seconds"] for ours, theirs in pairs))
            gap = max(gap, loss_difference(sides))
        rounds.append(math.sqrt(starts[-1] * starts[-2]))
        if limits.quick and abs(centre(rounds).value - 1) <= QUICK_WITHIN.get(len(rounds), 0.0):
            break
        if len(rounds) < limits.least:
            continue
        ratio = interval(rounds)
        if limits.quick:
            enough = lies(ratio) is not None
        else:
            enough = max(ratio.value - ratio.low, ratio.high - ratio.value) <= HALF_WIDTH
        if enough or len(rounds) >= limits.most or time.monotonic() > until:
            break
    judged = centre(rounds) if limits.quick else ratio
    return {"ratio": judged._asdict(), "starts": starts, "seconds": seconds, "largest_loss_difference": gap}


def take_turns(sides: List[Side], pairs: int) -> Dict[str, List[Dict[str, Any]]]:
    """A step of one side and a step of the other, so many times.

    Each step follows one of the other side, and finds the caches as that left them. If the order changed within a
    start, every second step would find what its own side left, and the ratios of a start would have two modes.
    """
    told: Dict[str, List[Dict[str, Any]]] = {side.name: [] for side in sides}
    for _ in range(pairs):
        for side in sides:
            told[side.name].append(side.take("step"))
    return told
