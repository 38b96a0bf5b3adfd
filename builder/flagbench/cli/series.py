"""The runs that the arguments of `verify` name: records, and series of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from flagbench.cli.records import is_path, require_one_stdin, stored_record
from flagbench.errors import FlagbenchError
from flagbench.records.model import Record
from flagbench.records.read import read_content, read_record
from flagbench.records.store import Store, StoreError, open_store
from flagbench.records.store.series import Series, check_series, read_series, series_ids, series_of
from flagbench.records.store.series_document import is_series, parse_series
from flagbench.terminal import brief
from flagbench.verdict.result import LeftOutRun, SeriesSummary
from flagbench_core.exit_codes import ExitCode

SERIES_HELP = "Or a series: the id of a stored one, or its file."
_SERIES_ID = re.compile("[0-9A-Za-z][0-9A-Za-z_-]*")


@dataclass
class Runs:
    """Records, with the series that some of them are of."""

    records: list[Record] = field(default_factory=list)
    """Of runs that ended well, where they are of a series."""
    series: list[Series] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What makes the series worthless as evidence."""
        return [f"series {s.document.series_id}: {what}" for s in self.series for what in s.problems]

    @property
    def in_series(self) -> set[str]:
        """Ids of the records that are of a series."""
        return {record.record_id for each in self.series for record in (*each.records, *each.failed)}

    @property
    def own_seeds(self) -> bool:
        """Whether runs have seeds of their own, derived from a nonce."""
        return any(each.document.seeds == "derived" for each in self.series)

    def to_verify(self) -> list[Record]:
        """The records to hold: those of failed runs where no run ended well, so that the verdict says how they ended.

        Of a series with problems one at most, since they need not be alike. Raises FlagbenchError (data) if no
        run has a record; a series with problems is given a verdict all the same.
        """
        found = self.records or [record for each in self.series for record in each.failed]
        if self.problems:
            return found[:1]
        if not found:
            why = [f"run {run.run}: {run.reason}" for each in self.series for run in each.left_out]
            raise FlagbenchError(
                f"no run of the series can be verified: {'; '.join(why)}",
                remedy="run it again, or name the store that has its records with --store",
                code=ExitCode.DATA,
            )
        return found

    def summaries(self, side: Literal["runs", "baseline"]) -> list[SeriesSummary]:
        """Each series as a verdict names it."""
        return [_summary(each, side) for each in self.series]


def load_runs(names: Sequence[str], store_url: str | None) -> Runs:
    """The records and series named by `-`, `last`, a file, an id in the store, or the beginning of one.

    `last` is the newest record; where that is a run of a series, the whole series. Raises FlagbenchError as
    `load_records` does.
    """
    require_one_stdin(names)
    runs = Runs()
    for name in names:
        found = _load(name, store_url)
        if isinstance(found, Series):
            runs.series.append(found)
            runs.records += found.records
        else:
            runs.records.append(found)
    return runs


def _load(name: str, store_url: str | None) -> Record | Series:
    if is_path(name):
        content, called = read_content(None if name == "-" else Path(name))
        if is_series(content):
            return check_series(open_store(store_url), parse_series(content, called))
        return read_record(content, called)
    store = open_store(store_url)
    if name == "last":
        record = read_record(stored_record(name, store))
        series = series_of(store, record)
        return record if series is None else check_series(store, series)
    series_id = named_series(name, store)
    return read_record(stored_record(name, store)) if series_id is None else read_series(store, series_id)


def named_series(name: str, store: Store) -> str | None:
    """The id of the series that a name is or, where no record has such an id, is the beginning of; else None.

    Raises FlagbenchError (usage) for the beginning of several.
    """
    ids = _ids(store) if _SERIES_ID.fullmatch(name) and name != "last" else []
    if name in ids:
        return name
    found = [series_id for series_id in ids if series_id.startswith(name)]
    return _only(name, found) if found and not store.find(name) else None


def _ids(store: Store) -> list[str]:
    """The ids of the store's series; none where its key may not list."""
    with suppress(StoreError):
        return series_ids(store)
    return []


def _only(beginning: str, found: Iterable[str]) -> str:
    ids = [*found]
    if len(ids) == 1:
        return ids[0]
    raise FlagbenchError(
        f"'{brief(beginning)}' is the beginning of {len(ids)} series: {', '.join(ids[:10])}",
        remedy="give more of the id",
    )


def _summary(series: Series, side: Literal["runs", "baseline"]) -> SeriesSummary:
    document = series.document
    return SeriesSummary(
        series_id=document.series_id,
        side=side,
        nonce=document.nonce,
        nonce_by=document.nonce_by,
        seeds=document.seeds,
        requested=document.requested,
        held=len(series.records),
        left_out=tuple(LeftOutRun(run.run, run.run_id, run.reason) for run in series.left_out),
        problems=series.problems,
        looks=document.looks or (),
    )
