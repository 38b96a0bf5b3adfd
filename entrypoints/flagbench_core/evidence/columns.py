"""Columns: one integer per step, or per block of consecutive steps, and the short form in which a record has them.

`document` reads and writes a record's evidence with `decode` and `encode`; an image rounds what it measured with
`microseconds`, `to_integer` and `round_loss`. All are integers, so that sums over steps and ranks are exact.

In a record a column is one of

  n                              the same number in every step
  [n, n, ...]                    a number for each block
  {"runs": [[count, n], ...]}    the same for each of `count` blocks, then the next

A list by rank, or a column of one block for each rank, may be packed:

  {"least": n, "bytes": w, "data": "..."}    base64 of numbers of w bytes each, big-endian, to which n is added

A block is one step unless the record says otherwise; the number of a longer block is the sum of its steps.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

TIMES = ("host", "device", "data_wait", "to_device", "after")
"""The columns of durations within a step, microseconds."""
WORK = ("samples", "samples_published", "tokens", "tokens_useful")
"""The columns of the amounts of work of a step."""
COLUMNS = TIMES + WORK
"""All columns that the evidence has of each rank."""
FLOPS = ("executed", "useful", "recomputed")
"""The counts of FLOPs, which the evidence has as sums over a span of steps."""
PASSES = ("computing", "pipeline")
"""The times of a rank's forward and backward passes in a pipeline, microseconds over a span.

`computing` is the sum of the passes of its micro-batches, `pipeline` the time from the first pass to the last.
"""

MICRO = 1e6
"""Microseconds per second."""


class EvidenceError(ValueError):
    """Evidence that contradicts itself; the message names the part."""


def microseconds(seconds: float) -> int:
    """Seconds as integer microseconds, rounded to the nearest; 0 if negative or not finite."""
    return to_integer(seconds * MICRO)


def to_integer(amount: float) -> int:
    """An amount as an integer, rounded to the nearest; 0 if negative or not finite."""
    if not 0 < amount < math.inf:
        return 0
    return round(amount)


def round_loss(loss: float) -> float | None:
    """A loss in nine significant digits, with which any two numbers in fp32 differ; None if it is not finite."""
    if not math.isfinite(loss):
        return None
    return float(f"{loss:.9g}")


def block_sizes(steps: int, block: int) -> list[int]:
    """The steps of each block; the last one may be shorter."""
    full, rest = divmod(steps, block)
    sizes = [block] * full
    if rest:
        sizes.append(rest)
    return sizes


def sum_blocks(values: Sequence[int], block: int) -> list[int]:
    """The exact sum of each block of consecutive steps."""
    if block == 1:
        return list(values)
    return [sum(values[start : start + block]) for start in range(0, len(values), block)]


def sum_loss_blocks(values: Sequence[float], block: int) -> list[float | None]:
    """The sum of each block's losses; None if one of them is not finite."""
    return [round_loss(math.fsum(values[start : start + block])) for start in range(0, len(values), block)]


def encode(values: Sequence[int], sizes: Sequence[int]) -> Any:
    """The shortest of the three forms of a column; `sizes`: the steps of each block."""
    per_step = values[0] // sizes[0]
    # Whether each block has the same number in each of its steps. `map` takes half the time of a loop.
    values_if_equal = map(per_step.__mul__, sizes)
    if all(map(int.__eq__, values, values_if_equal)):
        return per_step
    runs = [[len(list(equal)), number] for number, equal in groupby(values)]
    # A pair [count, number] is about three times as long in JSON as a number of the list.
    if 3 * len(runs) < len(values):
        return {"runs": runs}
    return list(values)


def decode(column: Any, sizes: Sequence[int], name: str) -> list[int]:
    """The number of each block, from any form of a column.

    Raises EvidenceError, which calls the column `name`, for another number of blocks.
    """
    if isinstance(column, int):
        return [column * size for size in sizes]
    if isinstance(column, dict):
        runs = column["runs"]
        length = sum(count for count, _ in runs)
        require_length(length, len(sizes), name)  # before a huge count takes memory
        numbers: list[int] = []
        for count, number in runs:
            numbers += [number] * count
        return numbers
    require_length(len(column), len(sizes), name)
    return list(column)


def pack(values: Sequence[int]) -> dict[str, Any]:
    """The packed form of a list of integers."""
    least = min(values)
    bits = (max(values) - least).bit_length()
    width = max(1, (bits + 7) // 8)  # whole bytes, rounded up
    content = b"".join((value - least).to_bytes(width, "big") for value in values)
    return {"least": least, "bytes": width, "data": b64encode(content).decode("ascii")}


def unpack(packed: Mapping[str, Any], count: int, name: str) -> list[int]:
    """The `count` integers of a packed list, which errors call `name`. Raises EvidenceError."""
    try:
        content = b64decode(packed["data"], validate=True)
    except ValueError as error:
        raise EvidenceError(f"{name} cannot be decoded: {error}") from None
    width = packed["bytes"]
    least = packed["least"]
    require_length(len(content), count * width, f"{name}, in bytes,")
    starts = range(0, len(content), width)
    return [least + int.from_bytes(content[start : start + width], "big") for start in starts]


def require_length(length: int, expected: int, name: str) -> None:
    """Raise EvidenceError unless a part of the evidence has as many entries as it should."""
    if length != expected:
        raise EvidenceError(f"{name} has {length} entries, and should have {expected}")


def add(columns: Iterable[Sequence[int]]) -> list[int]:
    """The sum of several columns, block by block."""
    first, *others = columns
    total = list(first)
    for column in others:
        total = list(map(int.__add__, total, column))  # `map` takes half the time of a loop
    return total
