"""The spool: what a rank writes during a run, in memory-mapped files that survive the rank's death.

Every rank has a file with a header and a fixed-size slot per step (`rank-00003.steps`), and a file with facts as JSON
lines (`rank-00003.facts`). The parent process can read both at any time; the header serves as heartbeat.

A rank uses `RankSpool`, the parent `SpoolReader`. `receive` writes the files of a rank on another node.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from typing import Any, NamedTuple

MAGIC = b"FBSPOOL1"
"""The first bytes of a file of steps."""
PHASES = ("launch", "init", "data", "warmup", "train", "val", "infer", "measure", "eval", "report", "done")
"""The phases of a rank; the header has the index of one."""

HEADER = struct.Struct("<8sQQQQQd")
"""The header of a file of steps: magic, capacity, steps, phase, done, total, last loss. The heartbeat follows it."""
_INTEGER = struct.Struct("<Q")
_NUMBER = struct.Struct("<d")
_PROGRESS = struct.Struct("<QQQ")
"""Three consecutive fields of the header: phase, done, total."""
_DONE_AND_TOTAL = struct.Struct("<QQ")
# Where fields of the header are, in bytes.
_CAPACITY_AT = 8
_STEPS_AT = 16
_PHASE_AT = 24
_DONE_AT = 32
_LOSS_AT = 48
_BEAT_AT = 56
HEADER_SIZE = 64
"""The offset of the first slot, bytes."""


class Step(NamedTuple):
    """One rank's measurements of one step. Times are in seconds, and NaN if they are not (yet) available."""

    data_wait: float
    """From the end of the last step's bookkeeping until the batch is available."""
    to_device: float
    """Host time of copying the batch to the device."""
    host: float
    """Host time of the step itself, on the publisher's clock."""
    device: float
    """Device time of the step."""
    first_collective: float
    """From the start of the step to the first gradient passed to a collective, without waits for buffers."""
    collective_wait: float
    """Waits for buffers, and from the last gradient's collective to the end of the backward pass."""
    after: float
    """Host time from the end of the step until the next may begin: see StepTimer.until_now."""
    loss: float
    samples: float
    """Examples in this rank's batch."""
    published_samples: float
    """Samples as the publisher counts them."""
    tokens: float
    """Tokens executed, padding included."""
    tokens_useful: float
    """Tokens without padding."""
    flops_executed: float
    """Model FLOPs with padding and without recomputation."""
    flops_useful: float
    """Model FLOPs without padding and without recomputation."""
    flops_recomputed: float
    """FLOPs that recomputing activations adds to flops_executed."""
    computing: float = float("nan")
    """Forward and backward passes of all micro-batches."""
    pipeline: float = float("nan")
    """From the start of the first of these passes to the end of the last."""


def repeat(operations: int, device: float, host: float, after: float) -> Step:
    """A repeat of a measurement, which is `operations` operations, as a step. Times are in seconds.

    `after`: host time until the next repeat.
    """
    return Step(
        data_wait=0.0,
        to_device=0.0,
        host=host,
        device=device,
        first_collective=float("nan"),
        collective_wait=float("nan"),
        after=after,
        loss=float("nan"),
        samples=operations,
        published_samples=operations,
        tokens=0,
        tokens_useful=0,
        flops_executed=0.0,
        flops_useful=0.0,
        flops_recomputed=0.0,
    )


SLOT = struct.Struct(f"<{len(Step._fields)}d")
"""The fields of a step in the file, as doubles in their order."""
_OFFSETS = {name: _NUMBER.size * index for index, name in enumerate(Step._fields)}
"""Where the fields of a step are in its slot, bytes."""


def path_of(folder: str, rank: int, kind: str) -> str:
    """The path of a file of a rank. `kind` is `steps`, `facts` or `nccl` (the log of NCCL)."""
    return os.path.join(folder, f"rank-{rank:05d}.{kind}")


class RankSpool:
    """Writes the spool of one rank."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder = folder
        self.rank = rank
        self.capacity = 0
        """How many steps the file has space for."""
        self._beats = 0
        self._steps = 0
        self._steps_are_progress = True
        self._facts = open(path_of(folder, rank, "facts"), "a", encoding="utf-8")
        self._file = open(path_of(folder, rank, "steps"), "w+b")
        self._map = self._allocate(HEADER_SIZE)
        HEADER.pack_into(self._map, 0, MAGIC, 0, 0, 0, 0, 0, float("nan"))

    def _allocate(self, size: int) -> mmap.mmap:
        """Extend the file to `size` bytes and map it.

        Blocks are allocated now, so that a full disk is an error here and not a SIGBUS during a step.
        """
        os.posix_fallocate(self._file.fileno(), 0, size)
        return mmap.mmap(self._file.fileno(), size)

    def reserve(self, capacity: int) -> None:
        """Allocate space for `capacity` steps. Raises OSError (ENOSPC) if the disk is full."""
        self._map.close()
        self._map = self._allocate(HEADER_SIZE + capacity * SLOT.size)
        self.capacity = capacity
        _INTEGER.pack_into(self._map, _CAPACITY_AT, capacity)

    def phase(self, name: str, total: int = 0, of_steps: bool = True) -> None:
        """Enter a phase with `total` units of progress.

        `of_steps`: whether each step is one unit; otherwise `progress` sets the number of units.
        """
        self._steps_are_progress = of_steps
        _PROGRESS.pack_into(self._map, _PHASE_AT, PHASES.index(name), 0, total)
        self.beat()
        self.fact("phase", name=name)

    def progress(self, done: int, total: int) -> None:
        """Update the progress within the phase."""
        _DONE_AND_TOTAL.pack_into(self._map, _DONE_AT, done, total)
        self.beat()

    def beat(self) -> None:
        """Update the heartbeat: this rank is making progress."""
        self._beats += 1
        _INTEGER.pack_into(self._map, _BEAT_AT, self._beats)

    def step(self, step: Step) -> None:
        """Append a step. Values that are measured later, such as device times, are added by `update`."""
        if self._steps >= self.capacity:
            raise IndexError(f"the spool holds {self.capacity} steps")
        SLOT.pack_into(self._map, HEADER_SIZE + self._steps * SLOT.size, *step)
        self._steps += 1
        _INTEGER.pack_into(self._map, _STEPS_AT, self._steps)
        if self._steps_are_progress:
            _INTEGER.pack_into(self._map, _DONE_AT, self._steps)
        _NUMBER.pack_into(self._map, _LOSS_AT, step.loss)
        self.beat()

    def update(self, index: int, **values: float) -> None:
        """Set fields of step `index` that were not known when it was appended, or are now known more exactly."""
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
    """The size of a file of steps up to the end of its last step, bytes. Raises OSError.

    Behind it is space for further steps. The size of any other file is all of its bytes.
    """
    with open(path, "rb") as file:
        header = file.read(HEADER_SIZE)
        file_bytes = os.fstat(file.fileno()).st_size
    if not _is_header(header):
        return file_bytes
    return min(file_bytes, HEADER_SIZE + _count_steps(header) * SLOT.size)


def _is_header(header: bytes) -> bool:
    """Whether the first HEADER_SIZE bytes of a file are a complete header."""
    return len(header) == HEADER_SIZE and header.startswith(MAGIC)


def _count_steps(header: bytes) -> int:
    """The number of steps in the file with this header."""
    steps: int = _INTEGER.unpack_from(header, _STEPS_AT)[0]
    return steps


class Heartbeat(NamedTuple):
    """The progress of a rank, from the header of its file of steps."""

    phase: str
    """One of PHASES."""
    done: int
    """The units of progress that are done in the phase."""
    total: int
    """All units of progress of the phase; 0 if they are not known."""
    steps: int
    """The number of steps so far, in all phases."""
    loss: float
    """The last loss; NaN if there is none yet."""
    beat: int
    """A number that changes whenever the rank makes progress."""


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
        if not _is_header(header):
            return None
        _, _, steps, phase, done, total, loss = HEADER.unpack_from(header)
        beat = _INTEGER.unpack_from(header, _BEAT_AT)[0]
        phase = min(phase, len(PHASES) - 1)  # the file may be damaged
        return Heartbeat(PHASES[phase], done, total, steps, loss, beat)

    def steps(self) -> list[Step]:
        """The steps written so far. The rest of the allocated space, which may be large, is not read."""
        try:
            with open(self._steps, "rb") as file:
                header = file.read(HEADER_SIZE)
                if not _is_header(header):
                    return []
                available = os.fstat(file.fileno()).st_size - HEADER_SIZE
                slots = file.read(min(_count_steps(header) * SLOT.size, available))
        except OSError:
            return []
        incomplete = len(slots) % SLOT.size  # the bytes of a last slot that is not complete
        slots = slots[: len(slots) - incomplete]
        return [Step(*values) for values in SLOT.iter_unpack(slots)]

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
