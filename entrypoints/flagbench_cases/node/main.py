"""The entry point of a node: runs a request and always ends with one record on stdout and an exit code."""

import argparse
import json
import os
import socket
import sys
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple

from flagbench_cases import __version__
from flagbench_cases.node import cli, network, rendezvous, rendezvous_protocol, supervisor
from flagbench_cases.node.placement import Placement, likely_rank
from flagbench_cases.node.request import Request, resolve, unresolved
from flagbench_cases.prepare import prepared_folder, remote
from flagbench_cases.record import assemble as record
from flagbench_cases.record import termination
from flagbench_cases.record.evidence import NOTHING, Evidence, Outcome
from flagbench_cases.shared import output, processes, user_home
from flagbench_cases.shared.checkpoint_facts import flat
from flagbench_cases.shared.errors import CaseError, ExitCode, system_error
from flagbench_cases.shared.interruption import Interruption
from flagbench_cases.shared.redaction import redact

DATA_REMEDY = "set --data to a folder made by `prepare` or one the case can read, or use --data synthetic"
# How long to wait for a stalled reader of stdout before the record is written to files.
PRINT_SECONDS = 10.0
WEIGHTS_REMEDY = "set --weights to a folder made by `prepare`, or to a checkpoint folder that the case can read"
SPOOL_REMEDY = "set TMPDIR to a writable folder"
# How long shutting down may take after a second signal.
EXIT_SECONDS = 3.0


def main(argv: List[str], interruption: Interruption) -> int:
    """Run from arguments to exit code; `interruption` holds the signals received since the start."""
    if any(argument in ("-h", "--help", "--version") for argument in argv):
        return show_help(argv)
    attempt = Attempt(argv, output.keep_stdout(), user_home.leave_removed_folder())
    try:
        return finish(attempt, attempt.run(interruption))
    except KeyboardInterrupt:  # a second signal
        interruption.exit_within(EXIT_SECONDS, int(ExitCode.INTERRUPTED))
        processes.kill_all(os.getpid())
        if attempt.finished:
            return int(ExitCode.INTERRUPTED)
        return finish(attempt, attempt.abort(interruption))


class Attempt:
    """A request and the state of its execution."""

    def __init__(self, argv: List[str], stdout: int, folder_removed: bool) -> None:
        self.argv = argv
        self.stdout = stdout
        self._folder_removed = folder_removed
        self.arguments: Optional[argparse.Namespace] = None
        self.request = unresolved(argv, None)
        self.writes_record = likely_rank(argv) == 0
        self.evidence = NOTHING
        self.remote = remote.NONE
        self.running: Optional[supervisor.Run] = None
        self.finished = False

    def run(self, interruption: Interruption) -> Optional[Outcome]:
        """Execute the request; None for --describe."""
        try:
            self.arguments = cli.parse(self.argv)
            self.request = unresolved(self.argv, self.arguments)
            if self._folder_removed:
                given = {
                    name: getattr(self.arguments, name) for name in ("data", "weights", "out", "resume", "store")
                }
                user_home.refuse_relative({k: v for k, v in given.items() if (k, v) != ("data", "synthetic")})
            self.remote = remote.look_up(self.arguments, interruption)
            self.request, placement, data = resolve(self.arguments, self.request)
            self.request = self.request._replace(sources=self.remote.urls())
        except CaseError as error:
            state = "interrupted" if error.code == ExitCode.INTERRUPTED else "failed"
            about_data = isinstance(error, remote.NotFetched) and error.code != ExitCode.USAGE
            phase = "data" if about_data else "usage"
            outcome = Outcome(state, phase, error.message, error.remedy, int(error.code))
            elsewhere = None if "--describe" in self.argv else cli.likely_placement(self.argv)
            if elsewhere is not None:
                rendezvous.report_failure(elsewhere, socket.gethostname(), redacted(outcome), interruption)
            return outcome
        if self.arguments.describe:
            return None
        self.writes_record = placement.node_rank == 0
        return execute(self, self.arguments, placement, data, interruption)

    def abort(self, interruption: Interruption) -> Outcome:
        """The outcome of a run that must end immediately. The evidence left by the ranks is kept."""
        phase = "launch"
        if self.running is not None:
            phase = self.running.ranks.phase()
            self.running.peers.report(Outcome("interrupted", phase, interruption.reason, None, 7))
            if self.evidence is NOTHING:  # otherwise it was already collected, and the spool may have been removed
                self.evidence = self.running.evidence()
            self.running.remove_spool()
        return Outcome("interrupted", phase, interruption.reason, "run again", int(ExitCode.INTERRUPTED))

    def disconnect(self) -> None:
        """Close the connections to the other nodes after everything has been reported and written."""
        if self.running is not None:
            self.running.peers.close()


def finish(attempt: Attempt, outcome: Optional[Outcome]) -> int:
    """Report the outcome and write the record; returns the exit code."""
    if outcome is None:
        return describe(attempt.request, attempt.stdout)
    outcome = redacted(outcome)
    if not attempt.writes_record:
        attempt.finished = True
        print_failure(outcome)
        termination.write(termination.of_outcome(outcome))
        attempt.disconnect()
        return int(outcome.exit_code)
    made = assemble(attempt.request, attempt.evidence, outcome)
    attempt.finished = True  # from here on a record may have been printed
    print_failure(Outcome(**made["status"]))
    code, lost = deliver(made, attempt.arguments, attempt.stdout)
    termination.write(termination.of_record(made, attempt.request.gate, code, lost))
    attempt.disconnect()
    return code


def show_help(argv: List[str]) -> int:
    """Print help or version on stdout. argparse exits by itself unless another argument is invalid."""
    try:
        cli.parse(argv)
    except CaseError as error:
        print_error(error.message, error.remedy)
        return int(error.code)
    return int(ExitCode.USAGE)


def describe(request: Request, stdout: int) -> int:
    """Print the resolved configuration."""
    described = {
        "config": request.config,
        "config_digest": request.config_digest,
        "stack": request.stack["name"],
    }
    try:
        output.write_line(stdout, json.dumps(described, sort_keys=True, ensure_ascii=False), "the configuration")
    except CaseError as error:
        print_error(error.message, error.remedy)
        return int(error.code)
    return 0


def execute(
    attempt: Attempt,
    arguments: argparse.Namespace,
    placement: Placement,
    data: Optional[str],
    interruption: Interruption,
) -> Outcome:
    """Run the job and collect its evidence. Every failure, including bugs of ours, becomes an outcome."""
    request = attempt.request
    limits = supervisor.Limits(arguments.timeout, arguments.max_minutes and arguments.max_minutes * 60)
    connected = placement.nodes == 1
    try:
        attempt.remote.fetch(interruption)
        for what, folder, remedy in (("data", data, DATA_REMEDY), ("weights", arguments.weights, WEIGHTS_REMEDY)):
            if folder is not None:
                prepared_folder.check_folder(what, folder, remedy)
        run = attempt.running = supervisor.Run(request.config or {}, request.stack, placement, limits, interruption)
        if placement.nodes == 1:
            network.check_loopback(placement.port)
        else:
            connected = True
            joining = max(limits.joining, attempt.remote.joining)
            run.peers = rendezvous.connect(placement, node_info(attempt), joining, interruption)
            request = attempt.request = request._replace(run_id=run.peers.run_id)
        folders = {
            "data": data,
            "weights": arguments.weights,
            "resume": arguments.resume,
            "checkpoints": arguments.out and os.path.join(arguments.out, "checkpoints", request.run_id),
        }
        outcome = run.execute(request.config_digest or "", folders, request.run_id, request.argv)
        attempt.evidence = run.evidence()
        return outcome
    except CaseError as error:
        state = "interrupted" if error.code == ExitCode.INTERRUPTED else "failed"
        about_data = error.code == ExitCode.DATA or isinstance(error, remote.NotFetched)
        phase = "data" if about_data else "launch"
        outcome = Outcome(state, phase, error.message, error.remedy, int(error.code))
    except Exception as error:  # top level: every error must end in a record
        outcome = system_failure(error, attempt.running)
    finally:
        if attempt.running is not None and sys.exc_info()[0] is not KeyboardInterrupt:
            attempt.running.remove_spool()
    if attempt.running is not None:
        attempt.running.peers.report(redacted(outcome))
    if not connected:
        rendezvous.report_failure(placement, socket.gethostname(), redacted(outcome), interruption)
    return outcome


def system_failure(error: Exception, running: Optional[supervisor.Run]) -> Outcome:
    """An unexpected error as an outcome: a resource that the system denied this process, or a bug."""
    folder = os.path.dirname(running.folder) if running else os.environ.get("TMPDIR", "/tmp")
    known = system_error(error, folder)
    if known is None and isinstance(error, OSError):
        reason = "cannot use the run's temporary files in %s: %s" % (folder, error.strerror or error)
        known = CaseError(reason, SPOOL_REMEDY)
    if known is None:
        return bug_outcome(error)
    return Outcome("failed", "launch", known.message, known.remedy, int(known.code))


def node_info(attempt: Attempt) -> rendezvous_protocol.NodeInfo:
    """This node's identity and the settings that must be equal on all nodes."""
    request, arguments = attempt.request, attempt.arguments
    same = {"version": __version__, "stack": request.stack["name"], "nodes": request.nodes, "gpus": request.gpus}
    same.update((key, value) for key, value in flat(request.config or {}) if key not in same)
    same["--resume"] = bool(arguments and arguments.resume)
    given = arguments.run_id if arguments else None
    return rendezvous_protocol.NodeInfo(socket.gethostname(), request.run_id, given, same)


def assemble(request: Request, evidence: Evidence, outcome: Outcome) -> Dict[str, Any]:
    """The record. If the evidence cannot be processed, a record of the outcome only."""
    try:
        return record.assemble(request, evidence, outcome)
    except Exception as error:  # top level: a completed run must leave a record
        return record.assemble(request, NOTHING, bug_outcome(error))


def bug_outcome(error: Exception) -> Outcome:
    """An unexpected error as an outcome; its traceback goes to stderr."""
    traceback.print_exception(type(error), error, error.__traceback__)
    reason = "a bug in flagbench: %s: %s" % (type(error).__name__, str(error).split("\n")[0])
    return Outcome("failed", "report", reason, "report it with the traceback above", int(ExitCode.BUG))


def deliver(made: Dict[str, Any], arguments: Optional[argparse.Namespace], stdout: int) -> Tuple[int, Optional[str]]:
    """Print the record and write it to --out and --store; returns the exit code of the process, and what failed.

    The exit code is that of the run if the record was kept: on stdout or, if stdout failed, in --out or the store. It
    is 14 if the record was kept nowhere, or if a requested copy could not be written.
    """
    line, own = record.to_line(made), int(made["status"]["exit_code"])
    name = made["record_id"] + ".json"
    refused = arguments is None or made["status"]["phase"] == "usage"
    # If the request was rejected, --out or --store may be what is invalid.
    out, store = (None, None) if arguments is None or refused else (arguments.out, arguments.store)
    files: List[Callable[[], Any]] = []
    if out:
        files.append(lambda: output.write_file(out, name, line))
    if store:
        files.append(lambda: output.store(output.store_folder(store), made, line))
    line_writer = output.LineWriter(stdout, line)
    failures: List[str] = []

    def try_write(task: Callable[[], Any]) -> Any:
        """The result of the task; None, with the reason on stderr, if it failed."""
        try:
            return task()
        except CaseError as error:
            print_error(error.message, error.remedy)
            failures.append(error.message)
            return None

    printed = try_write(lambda: line_writer.write(PRINT_SECONDS))
    written = [try_write(task) is not None for task in files]
    if printed is False:  # stdout is read slowly; meanwhile the files have been written
        printed = try_write(line_writer.write)
    lost = "; ".join(failures) or None
    if refused:
        return own, lost
    if not printed and not any(written):
        return int(ExitCode.NOT_STORED), lost
    return own if all(written) else own or int(ExitCode.NOT_STORED), lost


def redacted(outcome: Outcome) -> Outcome:
    """The outcome without secrets, as it may be shown and sent."""
    if outcome.state == "ok":
        return outcome
    return outcome._replace(reason=redact(outcome.reason or ""), exit_code=int(outcome.exit_code))


def print_failure(outcome: Outcome) -> None:
    """Print on stderr why a run did not succeed."""
    if outcome.state != "ok":
        print_error(outcome.reason, outcome.remedy)


def print_error(message: Optional[str], remedy: Optional[str]) -> None:
    """Print on stderr what is wrong and how to fix it."""
    sys.stderr.write("error: %s\n" % message)
    if remedy:
        sys.stderr.write("fix: %s\n" % remedy)
    sys.stderr.flush()
