"""The edge of the process: whatever was asked for and however it ends, one record on stdout and an exit code."""

import argparse
import json
import os
import sys
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple

from flagbench_cases import cli, launch, network, nodes, output, record, termination
from flagbench_cases.errors import CaseError, ExitCode
from flagbench_cases.evidence import NOTHING, Evidence, Outcome
from flagbench_cases.interruption import Interruption
from flagbench_cases.redaction import redact
from flagbench_cases.request import Request, resolve, unresolved

DATA_REMEDY = "give --data the folder that `prepare` made, or one that the case reads; --data synthetic needs none"
SPOOL_REMEDY = "free space there, or set TMPDIR"


def main(argv: List[str], interruption: Interruption) -> int:
    """One run from its arguments to its exit code; `interruption` notes the signals that came since the start."""
    if any(argument in ("-h", "--help", "--version") for argument in argv):
        return show_help(argv)
    stdout = output.keep_stdout()
    arguments: Optional[argparse.Namespace] = None
    evidence, speaks = NOTHING, True
    request = unresolved(argv, None)
    try:
        arguments = cli.parse(argv)
        speaks = not arguments.node_rank
        request = unresolved(argv, arguments)
        request, place, data = resolve(arguments, request)
    except CaseError as error:
        outcome = Outcome("failed", "usage", error.message, error.remedy, int(error.code))
    else:
        if arguments.describe:
            return describe(request, stdout)
        speaks = place.node_rank == 0  # its record is the job's
        evidence, outcome = execute(arguments, request, place, data, interruption)
    if outcome.state != "ok":
        outcome = outcome._replace(reason=redact(outcome.reason or ""), exit_code=int(outcome.exit_code))
        complain(outcome.reason, outcome.remedy)
    if not speaks:
        termination.leave(termination.of_outcome(outcome))
        return int(outcome.exit_code)
    made = assemble(request, evidence, outcome)
    code = deliver(made, arguments, stdout)
    termination.leave(termination.of_record(made, request.gate, code))
    return code


def show_help(argv: List[str]) -> int:
    """Help or version on stdout; argparse ends the process itself unless the rest is wrong."""
    try:
        cli.parse(argv)
    except CaseError as error:
        complain(error.message, error.remedy)
    return int(ExitCode.USAGE)


def describe(request: Request, stdout: int) -> int:
    """Print the resolved configuration and run nothing."""
    described = {
        "config": request.config,
        "config_digest": request.config_digest,
        "stack": request.stack["name"],
    }
    try:
        output.write_line(stdout, json.dumps(described, sort_keys=True, ensure_ascii=False))
    except CaseError as error:
        complain(error.message, error.remedy)
        return int(error.code)
    return 0


def execute(
    arguments: argparse.Namespace,
    request: Request,
    place: nodes.Placement,
    data: Optional[str],
    interruption: Interruption,
) -> Tuple[Evidence, Outcome]:
    """Run, and gather what was left. Whatever goes wrong here, our own mistakes too, ends in a record."""
    limits = launch.Limits(arguments.timeout, arguments.max_minutes and arguments.max_minutes * 60)
    run: Optional[launch.Run] = None
    try:
        if place.nodes > 1:
            network.wait_for_master(place.host, max(limits.no_progress, launch.START_SECONDS), interruption)
        elif data and not os.path.lexists(data):
            # Of several nodes a rank finds it: the others would wait long for a node that never joined them.
            reason = "the data folder %s does not exist" % data
            return NOTHING, Outcome("failed", "data", reason, DATA_REMEDY, int(ExitCode.DATA))
        run = launch.Run(request.config or {}, request.stack, place, limits, interruption)
        folders = {
            "data": data,
            "weights": arguments.weights,
            "resume": arguments.resume,
            "checkpoints": arguments.out and os.path.join(arguments.out, "checkpoints", request.run_id),
        }
        outcome = run.execute(request.config_digest or "", folders, request.run_id, request.argv)
        return run.evidence(), outcome
    except CaseError as error:
        state = "interrupted" if error.code == ExitCode.INTERRUPTED else "failed"
        return NOTHING, Outcome(state, "launch", error.message, error.remedy, error.code)
    except OSError as error:
        folder = os.path.dirname(run.folder) if run else os.environ.get("TMPDIR", "/tmp")
        reason = "the run's spool in %s broke: %s" % (folder, error.strerror or error)
        return NOTHING, Outcome("failed", "launch", reason, SPOOL_REMEDY, ExitCode.RANK_FAILED)
    except Exception as error:  # the edge of the process
        return NOTHING, bug(error)
    finally:
        if run is not None:
            run.clean()


def assemble(request: Request, evidence: Evidence, outcome: Outcome) -> Dict[str, Any]:
    """The record; one of how the run ended alone, where what it left cannot be made sense of."""
    try:
        return record.assemble(request, evidence, outcome)
    except Exception as error:  # the edge of the process: a run that was paid for must leave a record
        failed = bug(error)
        complain(failed.reason, failed.remedy)
        return record.assemble(request, NOTHING, failed)


def bug(error: Exception) -> Outcome:
    """An error nobody foresaw, as an outcome; its traceback goes to stderr."""
    traceback.print_exception(type(error), error, error.__traceback__)
    reason = "a bug in flagbench: %s: %s" % (type(error).__name__, str(error).split("\n")[0])
    return Outcome("failed", "report", reason, "report it with the traceback above", int(ExitCode.BUG))


def deliver(made: Dict[str, Any], arguments: Optional[argparse.Namespace], stdout: int) -> int:
    """Print the record, then write it where it was asked for; returns the exit code of the run."""
    line, code = record.to_line(made), int(made["status"]["exit_code"])
    name = made["record_id"] + ".json"
    tasks: List[Callable[[], Any]] = [lambda: output.write_line(stdout, line)]
    # Where the request was refused, its --out and --store may be what was wrong with it.
    if arguments is not None and made["status"]["phase"] != "usage":
        out, store = arguments.out, arguments.store
        if out:
            tasks.append(lambda: output.write_file(out, name, line))
        if store:
            tasks.append(lambda: output.store(output.store_folder(store), made, line))
    for task in tasks:
        try:
            task()
        except CaseError as error:
            complain(error.message, error.remedy)
            code = code or int(error.code)
    return code


def complain(message: Optional[str], remedy: Optional[str]) -> None:
    """One sentence of what is wrong and one of what to do, on stderr."""
    sys.stderr.write("error: %s\n" % message)
    if remedy:
        sys.stderr.write("fix: %s\n" % remedy)
    sys.stderr.flush()
