"""Hands over what a run has come to: prints the record, writes it to --out, and stores it with the node's bundle.

The order makes a kill at any moment lose nothing that was announced: what has to be uploaded is first kept in a
folder from which `flagbench results push` can store it, then the record is printed, and only then uploaded.
"""

import argparse
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from flagbench_cases.node import background
from flagbench_cases.record import assemble, stores
from flagbench_cases.record.stores.folder import FolderStore
from flagbench_cases.record.stores.store import Bundle
from flagbench_cases.shared import output
from flagbench_cases.shared.errors import CaseError, ExitCode
from flagbench_cases.shared.interruption import Interruption
from flagbench_cases.shared.redaction import redact

# How long to wait for a stalled reader of stdout before the record is written to files.
PRINT_SECONDS = 10.0
UPLOAD_SECONDS = 5.0
"""How long an upload may go on after a signal: `docker stop` gives a container 10 s in all."""


class Targets(NamedTuple):
    """Where the results of this node go, beside stdout; the folders of --out and --bundle."""

    out: Optional[str] = None
    bundle: Optional[str] = None
    store: Optional[stores.Store] = None

    @classmethod
    def of(cls, arguments: Optional[argparse.Namespace], store: Optional[stores.Store]) -> "Targets":
        """Those of the arguments; none if there are no valid ones."""
        return cls() if arguments is None else cls(arguments.out, arguments.bundle, store)

    @property
    def want_bundle(self) -> bool:
        """Whether a bundle is made."""
        return self.store is not None or self.bundle is not None


class Delivery:
    """The results of one node on their way. What goes wrong is printed and collected; nothing is raised."""

    def __init__(
        self,
        targets: Targets,
        record_id: str,
        bundle: Optional[Bundle],
        interruption: Interruption,
        patience: float = UPLOAD_SECONDS,
    ) -> None:
        """`patience`: how long an upload may go on after a signal, seconds."""
        self._targets = targets
        self._patience = patience
        self._record_id = record_id
        self._bundle = bundle
        self._interruption = interruption
        self._failures: List[str] = []
        self._complete = True

    def fail(self, error: CaseError) -> None:
        """Note something that was asked for and is missing, such as a bundle."""
        print_error(error.message, error.remedy)
        self._failures.append(error.message)
        self._complete = False

    def of_record(self, record: Dict[str, Any], stdout: int) -> Tuple[int, Optional[str]]:
        """Hand over a record and the bundle; returns the exit code of the process, and what failed.

        The exit code is that of the run if the record was kept: on stdout or, if stdout failed, in --out or the
        store. It is 14 if the record was kept nowhere, or if a requested copy of it or of the bundle could not be
        written.
        """
        line, own = assemble.to_line(record), int(record["status"]["exit_code"])
        unsent = self._set_aside(record, line)
        writer = output.LineWriter(stdout, line)
        printed = self._print(writer, PRINT_SECONDS)
        kept = [self._targets.out]
        if self._targets.out and unsent is None:  # else it waits there already
            kept = [self._try(lambda: output.write_file(self._targets.out or "", self._record_id + ".json", line))]
        self._write_bundle()
        kept.append(self._store(record, line, unsent))
        if printed is False:  # stdout is read slowly; meanwhile the files have been written
            printed = self._print(writer)
        if record["status"]["phase"] != "usage" and not printed and not any(kept):
            return int(ExitCode.NOT_STORED), self.lost
        return self._code(own), self.lost

    def of_bundle(self, own: int) -> Tuple[int, Optional[str]]:
        """Hand over the bundle of a node that writes no record, as `of_record` does. `own`: the run's code."""
        unsent = self._set_aside(None, "")
        self._write_bundle()
        self._store(None, "", unsent)
        return self._code(own), self.lost

    @property
    def lost(self) -> Optional[str]:
        """What failed, as text."""
        return "; ".join(self._failures) or None

    def _code(self, own: int) -> int:
        return own if self._complete else own or int(ExitCode.NOT_STORED)

    def _print(self, writer: output.LineWriter, seconds: Optional[float] = None) -> Optional[bool]:
        """Whether the record is printed; None, with the reason on stderr, if it cannot be. That alone does not change
        how the run ended: the record may be kept elsewhere."""
        try:
            return writer.write(seconds)
        except CaseError as error:
            print_error(error.message, error.remedy)
            self._failures.append(error.message)
            return None

    def _try(self, task: Callable[[], Any]) -> Any:
        """The result of the task; None, with the reason on stderr, if it failed."""
        try:
            return task()
        except CaseError as error:
            self.fail(error)
            return None

    def _set_aside(self, record: Optional[Dict[str, Any]], line: str) -> Optional[stores.Unsent]:
        """Keep what has to be uploaded; None if there is nothing, or no room for it."""
        store = self._targets.store
        if store is None or store.meant_for is None or (record is None and self._bundle is None):
            return None
        unsent = stores.Unsent(store.meant_for, self._targets.out)
        try:
            if self._bundle is not None:
                unsent.keep_bundle(self._record_id, self._bundle)
            if record is not None:
                unsent.keep_record(self._record_id, line)
        except (CaseError, OSError) as error:
            reason = error.message if isinstance(error, CaseError) else error.strerror or str(error)
            background.say("warning: nothing is kept for a later upload in %s: %s" % (unsent.folder, reason))
            if self._bundle is not None:
                unsent.forget_bundle(self._record_id, self._bundle)
            return None
        return unsent

    def _write_bundle(self) -> None:
        folder, bundle = self._targets.bundle, self._bundle
        if folder is not None and bundle is not None:
            self._try(lambda: FolderStore(folder).put_bundle(self._record_id, bundle))

    def _store(self, record: Optional[Dict[str, Any]], line: str, unsent: Optional[stores.Unsent]) -> Optional[str]:
        """Put the bundle into the store, then the record; returns where the record is, None if anything failed."""
        store, bundle = self._targets.store, self._bundle
        if store is None or (record is None and bundle is None):
            return None
        target = store

        def put() -> str:
            where = ""
            if bundle is not None:
                where = target.put_bundle(self._record_id, bundle)
                if unsent is not None:
                    unsent.forget_bundle(self._record_id, bundle)
            if record is not None:
                where = target.put_record(record, line)
                if unsent is not None:
                    unsent.forget_record(self._record_id)
            return where

        where = self._try(lambda: self._uploaded(put, target, unsent))
        if where and store.meant_for is not None:
            background.say("stored %s" % where)
        return where or None

    def _uploaded(self, put: Callable[[], str], store: stores.Store, unsent: Optional[stores.Unsent]) -> str:
        if store.meant_for is None:
            return put()
        doing = "the upload to %s" % store.name
        try:
            return background.run(put, self._interruption, self._patience, doing)
        except CaseError as error:
            found = error
        except (OSError, RuntimeError, MemoryError) as error:  # no more threads, files or memory
            found = CaseError("%s failed (%s)" % (doing, redact(str(error))), "see the reason")
        later = "" if unsent is None else "; what waits in %s is stored by `%s`" % (unsent.folder, unsent.command)
        if later and self._targets.out:
            later += " (outside a container: of the folder that is mounted there)"
        raise CaseError(found.message, found.remedy + later, ExitCode.NOT_STORED)


def print_error(message: Optional[str], remedy: Optional[str]) -> None:
    """Print on stderr what is wrong and how to fix it."""
    sys.stderr.write("error: %s\n" % message)
    if remedy:
        sys.stderr.write("fix: %s\n" % remedy)
    sys.stderr.flush()
