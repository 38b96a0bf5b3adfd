"""What a command copied and what it did not, told line by line or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import typer

from flagbench.cli.output import echo_json, print_error
from flagbench.cli.records import note
from flagbench.errors import FlagbenchError
from flagbench.record.read import read_record
from flagbench.redaction import redact
from flagbench.s3.ticket import Ticket
from flagbench.stores import Bundle, Store
from flagbench.stores.series_document import Run
from flagbench.stores.ticket import upload_bundle, upload_record
from flagbench.terminal import visible

Source = tuple[str, "bytes | FlagbenchError", Callable[[], None]]
"""A record's name, its bytes or why it has none, and what is done once it is stored."""
BundleSource = tuple[Bundle, Path, Callable[[], None]]
"""A bundle, its file, and what is done once it is stored."""


class Copies:
    """What was copied and what was not. Every failure is reported; the first one decides the exit code."""

    def __init__(self, json: bool) -> None:
        self.json = json
        self.stored: list[tuple[str, str | None]] = []
        """Record ids, and where they are; None: where a ticket leads."""
        self.bundles: list[tuple[str, str | None]] = []
        self.series: list[tuple[str, str, list[str]]] = []
        """Ids, where they are, and their records that are not there."""
        self.failures: list[tuple[str, FlagbenchError]] = []

    def copy(self, sources: Iterable[Source], target: Store, known: dict[str, set[str]] | None = None) -> None:
        """Copy all that can be copied; `known` as Store.put has it."""
        for name, content, done in sources:
            try:
                if isinstance(content, FlagbenchError):
                    raise content
                known = target.keys() if known is None else known
                kept = target.put(content, known=known)
                self._tell("record", self.stored, kept.record_id, kept.location)
                done()
            except FlagbenchError as error:
                self.fail(name, error)

    def copy_bundle(self, bundle: Bundle, path: Path, target: Store) -> bool:
        """Copy a bundle; False where it failed."""
        try:
            target.bundles.put(bundle.place, path)
        except FlagbenchError as error:
            self.fail(f"{bundle.record_id}/{bundle.name}", error)
            return False
        self._tell("bundle of", self.bundles, bundle.record_id, target.blobs.location(bundle.place.key))
        return True

    def upload(self, sources: Iterable[Source], ticket: Ticket) -> None:
        """Upload a record with a ticket: it takes one, of its run."""
        for name, content, done in sources:
            try:
                if isinstance(content, FlagbenchError):
                    raise content
                record = read_record(content)
                if record.run_id != ticket.run_id:
                    raise FlagbenchError(
                        f"{name} is a record of the run {record.run_id}, the ticket is for {ticket.run_id}",
                        remedy="name the ticket of its run",
                    )
                upload_record(ticket, content)
                self._tell("record", self.stored, record.record_id, None, ticket.store)
                done()
            except FlagbenchError as error:
                self.fail(name, error)

    def upload_bundles(self, sources: Iterable[BundleSource], ticket: Ticket) -> None:
        """Upload bundles with a ticket."""
        for bundle, path, done in sources:
            try:
                upload_bundle(ticket, bundle.place.node, path)
                self._tell("bundle of", self.bundles, bundle.record_id, None, ticket.store)
                done()
            except FlagbenchError as error:
                self.fail(f"{bundle.record_id}/{bundle.name}", error)

    def tell_series(self, series_id: str, location: str | None, missing: Sequence[Run]) -> None:
        """Report a series that was copied (`location`), and which of its records neither store has."""
        if location is not None:
            self.series.append((series_id, location, [run.record_id or "" for run in missing]))
            if not self.json:
                typer.echo(visible(f"series {series_id} kept in {location}"), err=True)
        for run in missing:
            note(f"series {series_id}", f"run {run.run}: its record {run.record_id} is missing")

    def fail(self, name: str, error: FlagbenchError) -> None:
        """Report what was not copied; the same reason is printed once."""
        if not any((told.message, told.remedy) == (error.message, error.remedy) for _, told in self.failures):
            print_error(error.message, error.remedy)
        self.failures.append((name, error))

    def end(self, nothing: str) -> None:
        """Print the answer of --json, or how many there were. Raises Exit where one failed."""
        if self.json:
            stored, bundles = (
                [{"record_id": record_id, "location": location} for record_id, location in some]
                for some in (self.stored, self.bundles)
            )
            failed = [{"name": name, "error": redact(error.message)} for name, error in self.failures]
            names = ("series_id", "location", "missing")
            series = [dict(zip(names, each, strict=True)) for each in self.series]
            echo_json({"stored": stored, "bundles": bundles, "series": series, "failed": failed})
        elif not self.stored and not self.bundles and not self.series and not self.failures:
            typer.echo(nothing, err=True)
        else:
            more = f", {len(self.bundles)} bundle(s)" if self.bundles else ""
            more += f", {len(self.series)} series" if self.series else ""
            typer.echo(f"{len(self.stored)} stored{more}, {len(self.failures)} failed", err=True)
        if self.failures:
            raise typer.Exit(int(self.failures[0][1].code))

    def _tell(
        self,
        what: str,
        done: list[tuple[str, str | None]],
        record_id: str,
        location: str | None,
        uploaded: str | None = None,
    ) -> None:
        done.append((record_id, location))
        if not self.json:
            where = f"kept in {location}" if uploaded is None else f"uploaded to {uploaded}"
            typer.echo(visible(f"{what} {record_id} {where}"), err=True)
