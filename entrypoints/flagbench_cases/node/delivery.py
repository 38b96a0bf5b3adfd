"""Hands over the results of a run: prints the record, writes it to --out, and stores it with the node's bundle.

The order makes a kill at any moment lose nothing that was announced: what has to be uploaded is first kept in a
folder from which `flagbench results push` can store it, then the record is printed, and only then uploaded.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, NamedTuple

from flagbench_cases.node import background
from flagbench_cases.node.progress import say
from flagbench_cases.record import assemble, stores
from flagbench_cases.record.stores import Bundle
from flagbench_cases.record.unsent import Unsent
from flagbench_cases.shared import output
from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.interruption import Interruption
from flagbench_cases.shared.redaction import redact
from flagbench_core.exit_codes import ExitCode

PRINT_SECONDS = 10.0
"""How long to wait for a stalled reader of stdout before the record is stored."""
UPLOAD_SECONDS = 5.0
"""How long an upload may go on after a signal: `docker stop` gives a container 10 s in all."""


class Targets(NamedTuple):
    """Where the results of this node go in addition to stdout."""

    out: str | None = None
    """The folder of --out, for the record."""
    bundle: str | None = None
    """The folder of --bundle."""
    store: stores.Store | None = None
    """The store of --store, for the record and the bundle."""

    @property
    def want_bundle(self) -> bool:
        """Whether a bundle is made."""
        return self.store is not None or self.bundle is not None


class Delivered(NamedTuple):
    """The end of a delivery."""

    code: int
    """The exit code for this process."""
    lost: str | None
    """What failed, as text; None if nothing did."""


class Delivery:
    """Delivers the results of one node. Failures are printed and collected; nothing is raised."""

    def __init__(
        self,
        targets: Targets,
        record_id: str,
        bundle: Bundle | None,
        interruption: Interruption,
        patience: float = UPLOAD_SECONDS,
    ) -> None:
        """`patience`: how long an upload may go on after a signal, seconds."""
        self._targets = targets
        self._patience = patience
        self._record_id = record_id
        self._bundle = bundle
        self._interruption = interruption
        self._failures: list[str] = []
        """What failed so far, one message each."""
        self._complete = True
        """Whether everything that was asked for exists so far, apart from the record on stdout."""
        self._unsent: Unsent | None = None
        """The folder in which results wait for their upload; None if nothing is to be uploaded later."""
        if targets.store is not None and targets.store.meant_for:
            meant_for = targets.store.meant_for
            self._unsent = self._try(lambda: Unsent(record_id, meant_for, targets.out), required=False)
        self._waits = False
        """Whether something was written to that folder."""

    def fail(self, error: CaseError) -> None:
        """Note something that was asked for and is missing, such as a bundle."""
        print_error(error.message, error.remedy)
        self._failures.append(error.message)
        self._complete = False

    def deliver_record(self, record: dict[str, Any], stdout: int) -> Delivered:
        """Hand over a record and the bundle. `stdout`: the file descriptor to which the record is printed.

        The exit code is that of the run if the record was kept: on stdout or, if stdout failed, in --out or the
        store. It is 14 if the record was kept nowhere, or if a requested copy of it or of the bundle could not be
        written.
        """
        line = assemble.to_line(record)
        run_code = int(record["status"]["exit_code"])
        written = self._keep(line)
        writer = output.LineWriter(stdout, line)
        printed = self._print(writer, PRINT_SECONDS)
        stored = self._store(record, line)
        if printed is False:  # stdout is read slowly; meanwhile the record has been stored
            printed = self._print(writer)
        is_kept = printed or stored or written
        # A usage error keeps its own exit code, as no measurement is lost with its record.
        if record["status"]["phase"] != "usage" and not is_kept:
            return Delivered(int(ExitCode.NOT_STORED), self.lost)
        return Delivered(self._exit_code(run_code), self.lost)

    def deliver_bundle(self, run_code: int) -> Delivered:
        """Hand over the bundle of a node that writes no record. `run_code`: the exit code of the run."""
        self._keep(None)
        self._store(None, "")
        return Delivered(self._exit_code(run_code), self.lost)

    @property
    def lost(self) -> str | None:
        """What failed so far, as text; None if nothing did."""
        return "; ".join(self._failures) or None

    def _exit_code(self, run_code: int) -> int:
        """Return the exit code of the run, or NOT_STORED if the run succeeded and a result is missing."""
        if run_code or self._complete:
            return run_code
        return int(ExitCode.NOT_STORED)

    def _print(self, writer: output.LineWriter, seconds: float | None = None) -> bool | None:
        """Print the record, for at most `seconds`; return whether all of it is printed.

        Returns None, with the reason on stderr, if it cannot be printed. That alone does not change the exit code,
        because the record may be kept elsewhere.
        """
        try:
            return writer.write(seconds)
        except CaseError as error:
            print_error(error.message, error.remedy)
            self._failures.append(error.message)
            return None

    def _try(self, task: Callable[[], Any], required: bool = True) -> Any:
        """Run a task and return its result; return None, with the reason on stderr, if it raises CaseError.

        Args:
            task: the function to call.
            required: whether the task writes what the user asked for, so that a failure changes the exit code.
        """
        try:
            return task()
        except CaseError as error:
            if required:
                self.fail(error)
            else:
                say(f"warning: nothing is kept for a later upload: {error.message}")
            return None

    def _keep(self, line: str | None) -> bool:
        """Write the bundle to the folder of --bundle, and the record to that of --out; return whether --out has it.

        What has to be uploaded waits in the folder of --out, or in another one without --out (`Unsent`). It is
        uploaded even if it cannot wait there, for example because the disk is full.

        Args:
            line: the record as JSON on one line; None if this node writes no record.
        """
        folder = self._targets.bundle
        out = self._targets.out
        bundle = self._bundle
        unsent = self._unsent
        if folder is not None and bundle is not None:
            self._try(lambda: stores.FolderStore(folder).put_bundle(self._record_id, bundle))
        if unsent is not None and bundle is not None:  # before the record, which thus never waits without it
            self._waits = bool(self._try(lambda: unsent.keep_bundle(bundle), required=False))
        written = False
        if unsent is not None and line is not None:
            written = bool(self._try(lambda: unsent.keep_record(line), required=out is not None))
            self._waits = self._waits or written
        elif out is not None and line is not None:
            written = bool(self._try(lambda: output.write_file(out, self._record_id + ".json", line)))
        return written and out is not None

    def _store(self, record: dict[str, Any] | None, line: str) -> str | None:
        """Put the bundle into the store, then the record.

        Returns the address of the one that was stored last; None if one of them failed, or if there is no store.
        """
        store = self._targets.store
        bundle = self._bundle
        unsent = self._unsent
        if store is None or (record is None and bundle is None):
            return None
        target = store  # The function below would not know that it is not None.

        def put_all() -> str:
            where = ""
            if bundle is not None:
                where = target.put_bundle(self._record_id, bundle)
                if unsent is not None:
                    unsent.forget_bundle(bundle)
            if record is not None:
                where = target.put_record(record, line)
                if unsent is not None:
                    unsent.forget_record()
            return where

        if unsent is None:
            return self._try(put_all)
        where = self._try(lambda: self._upload(put_all, target.name))
        if where:
            say(f"stored {where}")
        return where

    def _upload(self, put_all: Callable[[], str], name: str) -> str:
        """Upload to the store called `name` in the background; return the address of what was stored last.

        Raises CaseError (NOT_STORED) if it fails. Its remedy names the command that stores what was kept.
        """
        doing = f"the upload to {name}"
        remedy = "see the reason"
        try:
            return background.run(put_all, self._interruption, self._patience, doing)
        except CaseError as error:
            reason = error.message
            remedy = error.remedy or remedy
        except (OSError, RuntimeError, MemoryError) as error:  # no more threads, files or memory
            reason = f"{doing} failed ({redact(str(error))})"
        if self._waits and self._unsent is not None:
            remedy += f"; what waits in {self._unsent.folder} is stored by `{self._unsent.command}`"
            if self._targets.out:
                remedy += " (outside a container: of the folder that is mounted there)"
        raise CaseError(reason, remedy, ExitCode.NOT_STORED)


def print_error(message: str | None, remedy: str | None) -> None:
    """Print on stderr what is wrong, and how to fix it if there is a remedy."""
    sys.stderr.write(f"error: {message}\n")
    if remedy:
        sys.stderr.write(f"fix: {remedy}\n")
    sys.stderr.flush()
