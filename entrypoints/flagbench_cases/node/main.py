"""The entry point of a node: runs a request and always ends with one record on stdout and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from typing import Any

from flagbench_cases.node import background, cli, network, rendezvous, supervisor
from flagbench_cases.node.delivery import UPLOAD_SECONDS, Delivery, Targets, print_error
from flagbench_cases.node.placement import Placement, likely_node
from flagbench_cases.node.progress import say
from flagbench_cases.node.request import Request, refuse_removed_folder, resolve, unresolved
from flagbench_cases.record import answer, bundle, termination
from flagbench_cases.record import assemble as records
from flagbench_cases.record.evidence import NOTHING, Evidence, Outcome
from flagbench_cases.record.stores import Bundle
from flagbench_cases.shared import output, processes, user_home
from flagbench_cases.shared.checkpoint_facts import flat
from flagbench_cases.shared.errors import CaseError, system_error
from flagbench_cases.shared.files import check_folder
from flagbench_cases.shared.interruption import Interruption
from flagbench_cases.shared.redaction import redact
from flagbench_core import __version__, process_limits, scratch
from flagbench_core.environment import LAUNCHER
from flagbench_core.exit_codes import ExitCode
from flagbench_core.host_name import host_name

DATA_REMEDY = "set --data to a folder made by `prepare` or one the case can read, or use --data synthetic"
WEIGHTS_REMEDY = "set --weights to a folder made by `prepare`, or to a checkpoint folder that the case can read"
SPOOL_REMEDY = "set TMPDIR to a writable folder; with `docker run --read-only`, add `--tmpfs /tmp:exec`"
OPEN_FILES = 8
"""How many files this process opens at a time while it starts the ranks, in addition to a pipe to each rank and the
connections to other nodes."""
EXIT_SECONDS = 3.0
"""How long shutting down may take after a second signal."""


def main(argv: list[str], interruption: Interruption, refusal: CaseError | None = None) -> int:
    """Run from arguments to exit code.

    Args:
        interruption: the signals received since the start.
        refusal: why the arguments of --describe cannot be resolved. Nothing is run then.
    """
    if any(argument in ("-h", "--help", "--version") for argument in argv):
        return show_help(argv)
    attempt = Attempt(argv, output.keep_stdout(), user_home.leave_removed_folder(), interruption)
    attempt.refusal = refusal
    try:
        return finish(attempt, attempt.run())
    except KeyboardInterrupt:  # a second signal
        interruption.exit_within(EXIT_SECONDS, int(ExitCode.INTERRUPTED))
        processes.kill_all(os.getpid())
        if attempt.finished:
            return int(ExitCode.INTERRUPTED)
        return finish(attempt, attempt.abort())
    finally:
        attempt.remove_bundle()


class Attempt:
    """A request and the state of its execution."""

    def __init__(self, argv: list[str], stdout: int, folder_removed: bool, interruption: Interruption) -> None:
        self.argv = argv
        self.stdout = stdout
        self.interruption = interruption
        self._folder_removed = folder_removed
        self.refusal: CaseError | None = None
        """Why nothing is run, if that is known already."""
        self.arguments: argparse.Namespace | None = None
        self.request = unresolved(argv, None)
        self.writes_record = likely_node(argv)[0] == 0
        self.targets = Targets()
        self.evidence = NOTHING
        self.bundle: Bundle | None = None
        self.missing: list[CaseError] = []
        """Errors of requested results that could not be made."""
        self._bundles: scratch.Scratch | None = None
        self.running: supervisor.Run | None = None
        self.finished = False
        self.aborted = False

    def run(self) -> Outcome:
        """Execute the request."""
        try:
            self.arguments = cli.parse(self.argv)
            self.request = unresolved(self.argv, self.arguments)
            if self.refusal is not None:
                raise self.refusal
            if self._folder_removed:
                refuse_removed_folder(self.arguments)
            resolved = resolve(self.arguments, self.request)
            self.request = resolved.request
            self.writes_record = resolved.placement.node_rank == 0
            if (store := resolved.store) is not None:  # before any device is used
                background.run(store.check, self.interruption, 0.0, f"looking at {store.name}")
            for option in ("out", "bundle"):
                folder = getattr(self.arguments, option)
                if folder and (option == "bundle" or self.writes_record):
                    output.check_folder(f"--{option}", folder)
        except CaseError as error:
            outcome = Outcome("failed", "usage", error.message, error.remedy, int(error.code))
            if error.code == ExitCode.INTERRUPTED:
                outcome = outcome._replace(state="interrupted", phase="launch", reason=self.interruption.reason)
            self._tell_other_nodes(outcome)
            return outcome
        self.targets = Targets(self.arguments.out, self.arguments.bundle, resolved.store)
        return execute(self, self.arguments, resolved.placement, resolved.data)

    def _tell_other_nodes(self, outcome: Outcome) -> None:
        """Report a failure before the rendezvous to the other nodes, if the arguments say where they are."""
        if "--describe" in self.argv:
            return
        placement = likely_node(self.argv)[1]
        if placement is not None:
            rendezvous.report_failure(placement, host_name(), redacted(outcome), self.interruption)

    def collect(self, run: supervisor.Run) -> None:
        """Collect the evidence, and put it into a bundle if one is wanted."""
        self.evidence = run.evidence()
        all_connected = run.placement.nodes == 1 or run.peers.record_id
        if not self.targets.want_bundle or not all_connected:
            return
        request = self.request
        origin = bundle.Origin(
            request.record_id or "",
            request.run_id,
            run.placement.node_rank,
            request.config or {},
            run.environment(),
        )
        try:
            self._bundles = scratch.Scratch()
            self.bundle = bundle.write(self._bundles.folder, run.folder, run.own_ranks, origin)
        except OSError as error:
            reason = f"the bundle of this node's evidence could not be written ({error.strerror or error})"
            self.missing.append(CaseError(reason, SPOOL_REMEDY, ExitCode.NOT_STORED))

    def remove_bundle(self) -> None:
        """Remove the bundle that is not needed any more."""
        if self._bundles is not None:
            self._bundles.remove()

    def abort(self) -> Outcome:
        """The outcome of a run that must end immediately. The evidence left by the ranks is kept."""
        phase, self.aborted = "launch", True
        if self.running is not None:
            phase = self.running.ranks.phase()
            self.running.peers.report(Outcome("interrupted", phase, self.interruption.reason, None, 7))
            if self.evidence is NOTHING:  # otherwise it was already collected, and the spool may have been removed
                self.collect(self.running)
            self.running.remove_spool()
        return Outcome("interrupted", phase, self.interruption.reason, "run again", int(ExitCode.INTERRUPTED))

    def disconnect(self) -> None:
        """Close the connections to the other nodes after everything has been reported and written."""
        if self.running is not None:
            self.running.peers.close()


def finish(attempt: Attempt, outcome: Outcome) -> int:
    """Report the outcome and hand over the record or, on other nodes, the bundle; returns the exit code."""
    outcome = redacted(outcome)
    if not attempt.writes_record:
        attempt.finished = True
        print_failure(outcome)
        code, lost = delivery(attempt, attempt.request.record_id or "").deliver_bundle(int(outcome.exit_code))
        termination.write(termination.of_outcome(outcome, code, lost))
        attempt.disconnect()
        return code
    record = assemble(attempt.request, attempt.evidence, outcome, attempt.bundle)
    attempt.finished = True  # from here on a record may have been printed
    print_failure(Outcome(**record["status"]))
    code, lost = delivery(attempt, record["record_id"]).deliver_record(record, attempt.stdout)
    termination.write(termination.of_record(record, attempt.request.gate, code, lost))
    attempt.disconnect()
    if LAUNCHER not in os.environ:
        for line in answer.lines(record, attempt.request.gate):  # last: on a terminal the record fills the screen
            say(line)
    return code


def delivery(attempt: Attempt, record_id: str) -> Delivery:
    """The delivery of this node's results, with what is missing of them."""
    patience = 0.0 if attempt.aborted else UPLOAD_SECONDS
    results = Delivery(attempt.targets, record_id, attempt.bundle, attempt.interruption, patience)
    for error in attempt.missing:
        results.fail(error)
    return results


def show_help(argv: list[str]) -> int:
    """Print help or version on stdout. argparse exits by itself unless another argument is invalid."""
    try:
        cli.parse(argv)
    except CaseError as error:
        print_error(error.message, error.remedy)
        return int(error.code)
    return int(ExitCode.USAGE)


def execute(
    attempt: Attempt,
    arguments: argparse.Namespace,
    placement: Placement,
    data: str | None,
) -> Outcome:
    """Run the job and collect its evidence. Every failure, including bugs of ours, becomes an outcome."""
    request, interruption = attempt.request, attempt.interruption
    total_seconds = None if arguments.max_minutes is None else arguments.max_minutes * 60
    limits = supervisor.Limits(arguments.timeout, total_seconds)
    connected = placement.nodes == 1
    try:
        process_limits.check_descriptors(OPEN_FILES + request.gpus)
        for what, folder, remedy in (("data", data, DATA_REMEDY), ("weights", arguments.weights, WEIGHTS_REMEDY)):
            if folder is not None:
                check_folder(what, folder, remedy)
        run = attempt.running = supervisor.Run(request.config or {}, request.stack, placement, limits, interruption)
        if placement.nodes == 1:
            network.check_loopback(placement.port)
        else:
            connected = True
            run.peers = rendezvous.connect(placement, node_info(attempt), limits.joining, interruption)
            request = attempt.request = request._replace(run_id=run.peers.run_id, record_id=run.peers.record_id)
        checkpoints = None
        if arguments.out:
            checkpoints = os.path.join(arguments.out, "checkpoints", request.run_id)
        folders = {
            "data": data,
            "weights": arguments.weights,
            "resume": arguments.resume,
            "checkpoints": checkpoints,
        }
        outcome = run.execute(request.config_digest or "", folders, request.run_id, request.roofs)
        if outcome.exit_code == ExitCode.WRONG_HARDWARE and attempt.targets.store is not None:
            say("nothing is stored: nothing was run on this hardware")
            attempt.targets = attempt.targets._replace(store=None)
        attempt.collect(run)
        return outcome
    except CaseError as error:
        state = "interrupted" if error.code == ExitCode.INTERRUPTED else "failed"
        phase = "data" if error.code == ExitCode.DATA else "launch"
        outcome = Outcome(state, phase, error.message, error.remedy, int(error.code))
    except Exception as error:  # top level: every error must end in a record
        outcome = system_failure(error, attempt.running)
    finally:
        if attempt.running is not None and sys.exc_info()[0] is not KeyboardInterrupt:
            attempt.running.remove_spool()
    if attempt.running is not None:
        attempt.running.peers.report(redacted(outcome))
    if not connected:
        rendezvous.report_failure(placement, host_name(), redacted(outcome), interruption)
    return outcome


def system_failure(error: Exception, running: supervisor.Run | None) -> Outcome:
    """An unexpected error as an outcome: a resource that the system denied this process, or a bug."""
    folder = os.path.dirname(running.folder) if running else os.environ.get("TMPDIR", "/tmp")
    explained = system_error(error, folder)
    if explained is None and isinstance(error, OSError):
        reason = f"cannot use the run's temporary files in {folder}: {error.strerror or error}"
        explained = CaseError(reason, SPOOL_REMEDY)
    if explained is None:
        return bug_outcome(error)
    return Outcome("failed", "launch", explained.message, explained.remedy, int(explained.code))


def node_info(attempt: Attempt) -> rendezvous.NodeInfo:
    """This node's identity and the settings that must be equal on all nodes."""
    request, arguments = attempt.request, attempt.arguments
    same = {"version": __version__, "stack": request.stack["name"], "nodes": request.nodes, "gpus": request.gpus}
    same.update((key, value) for key, value in flat(request.config or {}) if key not in same)
    same["--roofs"] = bool(request.roofs)
    same["--resume"] = bool(arguments and arguments.resume)
    store = attempt.targets.store
    same["--store"] = None
    if store is not None:
        same["--store"] = store.meant_for or "a folder"
    requested_run_id = arguments.run_id if arguments else None
    return rendezvous.NodeInfo(host_name(), request.run_id, requested_run_id, same, request.record_id or "")


def assemble(request: Request, evidence: Evidence, outcome: Outcome, node_bundle: Bundle | None) -> dict[str, Any]:
    """The record. If the evidence cannot be processed, a record of the outcome only. `node_bundle`: node 0's."""
    field = None
    if node_bundle is not None:
        field = {"node": node_bundle.node, "sha256": node_bundle.sha256, "bytes": node_bundle.bytes}
    try:
        return records.assemble(request, evidence, outcome, field)
    except Exception as error:  # top level: a completed run must leave a record
        return records.assemble(request, NOTHING, bug_outcome(error), field)


def bug_outcome(error: Exception) -> Outcome:
    """An unexpected error as an outcome; its traceback goes to stderr."""
    traceback.print_exception(type(error), error, error.__traceback__)
    first_line = str(error).split("\n")[0]
    reason = f"a bug in flagbench: {type(error).__name__}: {first_line}"
    return Outcome("failed", "report", reason, "report it with the traceback above", int(ExitCode.BUG))


def redacted(outcome: Outcome) -> Outcome:
    """The outcome without secrets, as it may be shown and sent."""
    if outcome.state == "ok":
        return outcome
    return outcome._replace(reason=redact(outcome.reason or ""), exit_code=int(outcome.exit_code))


def print_failure(outcome: Outcome) -> None:
    """Print on stderr why a run did not succeed."""
    if outcome.state != "ok":
        print_error(outcome.reason, outcome.remedy)
