"""The ranks of a large job, whose record says once what they have in common, with an entry for each."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import asdict

from flagbench.records.evidence import Packed
from flagbench.records.model import Rank, RankColumns
from flagbench_core.evidence.columns import EvidenceError, unpack


def expanded(columns: RankColumns, listed: Sequence[Rank]) -> tuple[Rank, ...]:
    """An entry for each rank, its own where it is listed. Raises EvidenceError for columns of another length."""
    size, rest = divmod(columns.ranks, len(columns.hosts) or 1)
    if rest or not columns.hosts:
        raise EvidenceError(f"it has {len(columns.hosts)} hosts of {columns.ranks} ranks")
    pids, ran, waited = (
        _column(columns, name) for name in ("pids", "processor_milliseconds", "processor_wait_milliseconds")
    )
    own = {entry.rank: entry for entry in listed}
    usual = (
        own.get(rank)
        or Rank(
            rank=rank,
            node=rank // size,
            local_rank=rank % size,
            pid=pids[rank],
            host=columns.hosts[rank // size],
            steps=columns.steps,
            processor_seconds=_seconds(ran[rank]),
            processor_wait_seconds=_seconds(waited[rank]),
            exit=columns.exit,
        )
        for rank in range(columns.ranks)
    )
    # A rank that is listed twice, or that there is none of, is for the verifier to see.
    more = (entry for entry in listed if entry.rank >= columns.ranks or own[entry.rank] is not entry)
    return (*usual, *more)


def _column(columns: RankColumns, name: str) -> Sequence[int | None]:
    packed: Packed | None = getattr(columns, name)
    return (None,) * columns.ranks if packed is None else unpack(asdict(packed), columns.ranks, name)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
