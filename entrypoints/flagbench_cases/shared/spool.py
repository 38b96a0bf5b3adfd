"""The spool: what a rank writes during a run, in memory-mapped files that survive the rank's death.

Every rank has a file with a fixed-size slot per step (`rank-00003.steps`) and a file with facts as JSON lines
(`rank-00003.facts`). The parent process can read both at any time; the header of the former serves as heartbeat.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from typing import Any, NamedTuple

MAGIC = b"FBSPOOL1"
PHASES = ("launch", "init", "data", "warmup", "train", "val", "infer", "measure", "eval", "report", "done")
HEADER = struct.Struct("<8sQQQQQd")  # magic, capacity, steps, phase, done, total, last loss
_PROGRESS = struct.Struct("<QQQ")  # phase, done, total
_PROGRESS_AT = 24
_COUNT = struct.Struct("<Q")
_CAPACITY_AT = 8
_COUNT_AT = 16
_NUMBER = struct.Struct("<d")
_LOSS_AT = 48
_BEAT_AT = 56
HEADER_SIZE = 64


class Step(NamedTuple):
    """One rank's measurements of one step. Times in seconds; NaN if not available (yet)."""

    data_wait: float  # from the end of the last step's bookkeeping until the batch is available
    to_device: float  # host time of copying the batch to the device
    host: float  # the publisher's clock: host time of the step itself
    device: float  # device time of the step
    first_collective: float  # from step start to the first gradient passed to a collective, without waits for buffers
    collective_wait: float  # for buffers, and from the last gradient's collective to the end of the backward pass
    after: float  # host time from the end of the step until the next may begin: see StepTimer.until_now
    loss: float
    samples: float  # examples of this rank's batch
    published_samples: float  # samples as counted by the publisher
    tokens: float  # tokens executed, padding included
    tokens_useful: float
    flops_executed: float  # model FLOPs, padding included, nothing recomputed
    flops_useful: float  # the same without padding
    flops_recomputed: float  # added to flops_executed by recomputing activations
    computing: float = float("nan")  # forward and backward passes of all micro-batches; NaN if not measured
    pipeline: float = float("nan")  # from the start of the first of these passes to the end of the last


def repeat(operations: int, device: float, host: float, after: float) -> Step:
    """A repeat of `operations` operations as a step. Times in seconds; `after`: host time until the next repeat."""
    nan = float("nan")
    work = (operations, operations, 0, 0, 0.0, 0.0, 0.0)
    return Step(0.0, 0.0, host, device, nan, nan, after, nan, *work)


SLOT = struct.Struct(f"<{len(Step._fields)}d")
_OFFSETS = {name: 8 * index for index, name in enumerate(Step._fields)}


def path_of(folder: str, rank: int, kind: str) -> str:
    """The file of a rank: kind is `steps`, `facts` or `nccl` (its log)."""
    return os.path.join(folder, f"rank-{rank:05d}.{kind}")


class RankSpool:
    """Writes the spool of one rank."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder = folder
        self.rank = rank
        self.capacity = 0
        self._beats = 0
        self._steps = 0
        self._of_steps = True
        self._facts = open(path_of(folder, rank, "facts"), "a", encoding="utf-8")
        self._file = open(path_of(folder, rank, "steps"), "w+b")
        self._map = self._reserved(HEADER_SIZE)
        HEADER.pack_into(self._map, 0, MAGIC, 0, 0, 0, 0, 0, float("nan"))

    def _reserved(self, size: int) -> mmap.mmap:
        """Extend the file to `size` bytes and map it. Blocks are allocated now, so that a full disk is an error here
        and not a SIGBUS during a step."""
        os.posix_fallocate(self._file.fileno(), 0, size)
        return mmap.mmap(self._file.fileno(), size)

    def reserve(self, capacity: int) -> None:
        """Allocate space for `capacity` steps. Raises OSError (ENOSPC) if the disk is full."""
        self._map.close()
        self._map = self._reserved(HEADER_SIZE + capacity * SLOT.size)
        self.capacity = capacity
        _COUNT.pack_into(self._map, _CAPACITY_AT, capacity)

    def phase(self, name: str, total: int = 0, of_steps: bool = True) -> None:
        """Enter a phase with `total` units of progress. `of_steps`: each step is one; otherwise `progress` counts."""
        self._of_steps = of_steps
        _PROGRESS.pack_into(self._map, _PROGRESS_AT, PHASES.index(name), 0, total)
        self.beat()
        self.fact("phase", name=name)

    def progress(self, done: int, total: int) -> None:
        """Update the progress within the phase."""
        struct.pack_into("<QQ", self._map, _PROGRESS_AT + 8, done, total)
        self.beat()

    def beat(self) -> None:
        """Update the heartbeat: this rank is making progress."""
        self._beats += 1
        _COUNT.pack_into(self._map, _BEAT_AT, self._beats)

    def step(self, step: Step) -> None:
        """Append a step. What is measured later, such as device times, is added by `update`."""
        if self._steps >= self.capacity:
            raise IndexError(f"the spool holds {self.capacity} steps")
        SLOT.pack_into(self._map, HEADER_SIZE + self._steps * SLOT.size, *step)
        self._steps += 1
        _COUNT.pack_into(self._map, _COUNT_AT, self._steps)
        if self._of_steps:
            _COUNT.pack_into(self._map, _PROGRESS_AT + 8, self._steps)
        _NUMBER.pack_into(self._map, _LOSS_AT, step.loss)
        self.beat()

    def update(self, index: int, **values: float) -> None:
        """Set fields of step `index` that were not known when it was written, or are known better."""
        for name, value in values.items():
            _NUMBER.pack_into(self._map, HEADER_SIZE + index * SLOT.size + _OFFSETS[name], value)
        if "loss" in values:
            _NUMBER.pack_into(self._map, _LOSS_AT, values["loss"])

    def fact(self, kind: str, **values: Any) -> None:
        """Append a fact as a JSON line."""
        line = json.dumps({"kind": kind, "rank": self.rank, "time": time.time(), **values}, sort_keys=True)
        self._facts.write(line + "\n")
        self._facts.flush()

    def files(self) -> dict[str, bytes]:
        """The contents of both files, to be sent from another node to node 0."""
        self._map.flush()
        return {kind: _read(path_of(self.folder, self.rank, kind)) for kind in ("steps", "facts")}


def receive(folder: str, rank: int, files: dict[str, bytes]) -> None:
    """Write the files of a rank of another node into this node's spool."""
    for kind, content in files.items():
        with open(path_of(folder, rank, kind), "wb") as file:
            file.write(content)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def used_bytes(path: str) -> int:
    """The bytes of a file of steps up to the end of the last one; the rest is reserved for more. Raises OSError."""
    with open(path, "rb") as file:
        header = file.read(HEADER_SIZE)
        whole = os.fstat(file.fileno()).st_size
    if len(header) < HEADER_SIZE or not header.startswith(MAGIC):
        return whole
    return min(whole, HEADER_SIZE + _COUNT.unpack_from(header, _COUNT_AT)[0] * SLOT.size)


class Heartbeat(NamedTuple):
    """A rank's heartbeat: `beat` changes whenever the rank makes progress."""

    phase: str
    done: int
    total: int
    steps: int
    loss: float
    beat: int


class SpoolReader:
    """Reads the spool of one rank. Every file may be missing, empty or incomplete."""

    def __init__(self, folder: str, rank: int) -> None:
        self.rank = rank
        self._steps = path_of(folder, rank, "steps")
        self._facts = path_of(folder, rank, "facts")

    def progress(self) -> Heartbeat | None:
        """The heartbeat, or None before the rank has started."""
        try:
            with open(self._steps, "rb") as file:
                header = file.read(HEADER_SIZE)
        except OSError:
            return None
        if len(header) < HEADER_SIZE or not header.startswith(MAGIC):
            return None
        _, _, steps, phase, done, total, loss = HEADER.unpack_from(header)
        beat = _COUNT.unpack_from(header, _BEAT_AT)[0]
        return Heartbeat(PHASES[min(phase, len(PHASES) - 1)], done, total, steps, loss, beat)

    def steps(self) -> list[Step]:
        """The steps written so far. The rest of the allocated space, which may be large, is not read."""
        try:
            with open(self._steps, "rb") as file:
                header = file.read(HEADER_SIZE)
                if len(header) < HEADER_SIZE or not header.startswith(MAGIC):
                    return []
                room = os.fstat(file.fileno()).st_size - HEADER_SIZE
                whole = file.read(min(_COUNT.unpack_from(header, _COUNT_AT)[0] * SLOT.size, room))
        except OSError:
            return []
        whole = whole[: len(whole) - len(whole) % SLOT.size]
        return [Step(*values) for values in SLOT.iter_unpack(whole)]

    def facts(self) -> list[dict[str, Any]]:
        """The facts written so far; an incomplete last line is skipped."""
        try:
            lines = _read(self._facts).split(b"\n")
        except OSError:
            return []
        facts = []
        for line in lines:
            try:
                fact = json.loads(line.decode("utf-8"))
            except ValueError:
                continue
            if isinstance(fact, dict) and "kind" in fact:
                facts.append(fact)
        return facts
