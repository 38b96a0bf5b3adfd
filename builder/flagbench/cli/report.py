"""`flagbench report`: makes HTML pages of a store, or of one record or series."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator
from typing import Annotated

import typer

from flagbench import complete
from flagbench.cli.options import StoreOption
from flagbench.console.output import write_output
from flagbench.errors import FlagbenchError
from flagbench.fleet.judge import judge_fleet
from flagbench.fleet.read import read_fleet
from flagbench.fleet.result import Fleet
from flagbench.fleet.table import fleet_page, headline
from flagbench.manifests.load import load_catalog
from flagbench.price import check_price
from flagbench.records.bucket_blobs import request_errors
from flagbench.records.named import RECORD_HELP, SERIES_HELP, load_runs
from flagbench.records.store import Store, open_store
from flagbench.report.html import Link
from flagbench.report.site import INDEX_PAGE, file_name, run_page, store_pages
from flagbench.system.files import expanded
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import Bucket, parse_address

_NODES_PAGE = "nodes.html"


def command(
    record: Annotated[
        str | None,
        typer.Argument(
            metavar="RECORD|SERIES",
            autocompletion=complete.runs,
            help=f"Make the page of this one alone. {RECORD_HELP} {SERIES_HELP}",
        ),
    ] = None,
    out: Annotated[
        str,
        typer.Option("--out", "-o", metavar="DIR|URL", help="Where the pages go: a folder or s3://bucket/prefix."),
    ] = "flagbench-report",
    show: Annotated[bool, typer.Option("--open", help="Open the first page in a browser.")] = False,
    store: StoreOption = None,
) -> None:
    """Make static pages: an index, one for each published row, device, series and new record.

    The newest 50 records have a page of their own; a record or series that is named gets its page alone. Pages need
    no server, network or script. Prints the address of the first one. A page that is there is replaced, others are
    kept. A store with records of enough nodes to compare, eight, also has a page of the nodes, as `flagbench fleet`
    judges them.
    """
    check_price()
    bucket = None
    if out.startswith("s3:"):
        if show:
            raise FlagbenchError("--open shows pages in a folder", remedy="give --out a folder, or leave --open out")
        with request_errors():
            bucket = Bucket(parse_address(out))
    folder = expanded(out)
    name = ""
    for name, text in _pages(record, store):
        if bucket is not None:
            with request_errors():
                bucket.put(name, text.encode("utf-8"), kind="text/html; charset=utf-8")
        else:
            write_output(folder / name, text.encode())
    address = str(folder / name)  # of the last page, which is the one to look at first
    if bucket is not None:
        address = bucket.location(name)
    print(address)
    if show:
        webbrowser.open((folder / name).absolute().as_uri())


def _judge_nodes(store: Store) -> Fleet | None:
    """The nodes of a store as `flagbench fleet` judges them; None for too few nodes to compare."""
    catalog = load_catalog()
    hosts = {entry.summary.host for entry in store.list_records() if entry.summary is not None}
    if len(hosts) < catalog.fleet_limits.min_nodes:
        return None
    try:
        runs = read_fleet(store, catalog)
    except FlagbenchError:  # no record is of a single node
        return None
    return judge_fleet(runs, catalog.fleet_limits)


def _pages(record: str | None, store_url: str | None) -> Iterator[tuple[str, str]]:
    """The pages, each as the name of its file and its text. The last one is the one to look at first."""
    if record is None:
        place = open_store(store_url)
        links = []
        fleet = _judge_nodes(place)
        if fleet is not None:
            yield _NODES_PAGE, fleet_page(fleet, INDEX_PAGE)
            links.append(Link(headline(fleet), _NODES_PAGE))
        yield from store_pages(place, links)
        return
    runs = load_runs([record], store_url)
    records = runs.to_verify()
    if not records:
        raise FlagbenchError("; ".join(runs.problems), remedy="name a record of the series", code=ExitCode.DATA)
    kind = "record"
    title = records[0].record_id
    series = None
    if runs.series:
        series = runs.series[0]
        kind = "series"
        title = series.document.series_id
    yield file_name(kind, title), run_page(records, load_catalog(), title, series=series)
