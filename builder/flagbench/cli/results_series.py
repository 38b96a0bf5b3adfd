"""`flagbench results series`: the series in a store, listed, or one of them as its document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import JsonOption, StoreOption, WideOption
from flagbench.errors import FlagbenchError
from flagbench.output import echo_json, print_page
from flagbench.page import Table
from flagbench.records.named import note
from flagbench.records.series import load_all, load_series
from flagbench.records.series_document import SeriesDocument
from flagbench.records.store import open_store


def command(
    series: Annotated[
        str | None,
        typer.Argument(metavar="[SERIES]", autocompletion=complete.series, help="Print this one, as JSON."),
    ] = None,
    store: StoreOption = None,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """List the series that `flagbench run --repeat` stored, or print one, which `flagbench verify` takes as a file.

    One that has not ended, or was killed, is listed too. Damaged ones are reported on stderr.

    --json prints {"store": URL, "series": [...]}, each as it is stored.
    """
    place = open_store(store)
    if series is not None:
        echo_json(load_series(place, series).to_dict())
        return
    found = [*load_all(place)]
    readable = [each for _, each in found if isinstance(each, SeriesDocument)]
    if json:
        echo_json({"store": place.url, "series": [each.to_dict() for each in readable]})
    elif readable:
        columns = ("SERIES", "STARTED", "IMAGE", "RUNS", "OK", "STATE")
        print_page(Table(columns, [_row(each) for each in readable], drop=("STARTED", "IMAGE", "STATE")), wide=wide)
    else:
        print(f"no series in {place.url}")
    for series_id, each in found:
        if isinstance(each, FlagbenchError):
            note(series_id, each.message)


def _row(series: SeriesDocument) -> Sequence[str]:
    request = series.request
    return (
        series.series_id,
        series.started_at,
        request.image or f"{request.case}:{request.stack}",
        str(series.requested),
        str(sum(run.state == "ok" for run in series.runs)),
        "not ended" if series.ended_at is None else "ended",
    )
