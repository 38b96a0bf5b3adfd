"""`python -m flagbench_cases CASE ...`: one run, one record on stdout, an exit code."""

import argparse
import json
import os
import re
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from flagbench_cases import cli, config, launch, nodes, output, record
from flagbench_cases.errors import CaseError, ExitCode, UsageError
from flagbench_cases.evidence import NOTHING, Evidence, Outcome
from flagbench_cases.record import Request

FALLBACK_STACK = {"name": "cpu", "device": {"kind": "cpu"}, "accelerators": []}


def redact(argv: List[str]) -> List[str]:
    """The arguments without what an URL may carry of secrets: all before its last @, and its query.

    A secret may hold a slash. A file:// URL has no user, and its path may hold an @.
    """
    without_user = (re.sub(r"(?<!file)://.*@", "://", argument) for argument in argv)
    return [re.sub(r"(://[^?]*)\?.*", r"\1", argument) for argument in without_user]


def unresolved(argv: List[str], arguments: Optional[argparse.Namespace]) -> Request:
    """What can be said of a request before, or without, resolving it."""
    case = next((a for a in argv if not a.startswith("-")), "unknown")
    return Request(
        argv=redact(argv),
        case=arguments.case if arguments else case,
        stack=FALLBACK_STACK,
        run_id=(arguments.run_id if arguments else None) or launch.new_run_id(),
        preset=arguments.preset if arguments else "reference",
        division=arguments.division if arguments else "faithful",
        nodes=arguments.nodes if arguments else 1,
        gpus=arguments.gpus if arguments else 1,
        config=None,
        config_digest=None,
        formula=None,
        unit="samples",
    )


def resolve(arguments: argparse.Namespace, request: Request) -> Tuple[Request, nodes.Placement, Optional[str]]:
    """The whole request, its place among the nodes, and the data folder; UsageError for what contradicts."""
    case = config.load_case(arguments.case)
    stack = config.load_stack(os.environ.get("FLAGBENCH_STACK", "cpu"))
    if arguments.resume and not case["resume"]:
        raise UsageError("%s writes no checkpoints to resume from" % case["name"], "leave out --resume")
    if arguments.store:
        output.store_folder(arguments.store)
    source, folder = cli.locate_data(arguments.data)
    if arguments.preset == "tiny" and arguments.data is None:
        source, folder = None, None  # the tiny preset carries its own set
    weights = find_weights(arguments.weights, folder)
    resolved = config.resolve(
        case,
        stack,
        nodes=arguments.nodes,
        gpus=arguments.gpus,
        preset=arguments.preset,
        division=arguments.division,
        precision=arguments.precision,
        seed=arguments.seed,
        source=source,
        weights=weights is not None,
        steps=arguments.steps,
        max_samples=arguments.max_samples,
        full=arguments.full,
        settings=arguments.set,
    )
    place = nodes.place(arguments.nodes, arguments.node_rank, arguments.master)
    arguments.weights = weights
    request = request._replace(
        case=case["name"],
        stack=stack,
        config=resolved,
        config_digest=config.digest(resolved),
        formula=case["flops"]["formula"],
        unit=case["unit"],
    )
    return request, place, folder


def find_weights(given: Optional[str], data: Optional[str]) -> Optional[str]:
    """`--weights`, else the model/ folder that FlagPerf's archive has beside the data."""
    if given is not None:
        return os.path.abspath(given)
    beside = os.path.join(data, "model") if data else ""
    return beside if beside and os.path.isfile(os.path.join(beside, "config.json")) else None


def execute(
    arguments: argparse.Namespace, request: Request, place: nodes.Placement, data: Optional[str]
) -> Tuple[Evidence, Outcome]:
    """Run, and gather what was left; a spool that cannot even be made is a failure like any other."""
    limits = launch.Limits(arguments.timeout, arguments.max_minutes and arguments.max_minutes * 60)
    try:
        if place.nodes > 1:
            launch.wait_for_master(place.host, max(limits.no_progress, launch.START_SECONDS))
        run = launch.Run(request.config or {}, request.stack, place, limits)
    except OSError as error:
        reason = "the run's spool could not be made in %s: %s" % (
            os.environ.get("TMPDIR", "/tmp"),
            error.strerror,
        )
        return NOTHING, Outcome("failed", "launch", reason, "free space there, or set TMPDIR", ExitCode.RANK_FAILED)
    except CaseError as error:
        return NOTHING, Outcome("failed", "launch", error.message, error.remedy, error.code)
    try:
        outcome = run.execute(request.config_digest or "", data, arguments.weights)
        return run.evidence(), outcome
    except OSError as error:
        reason = "the run's spool in %s broke: %s" % (os.path.dirname(run.folder), error.strerror)
        return run.evidence(), Outcome(
            "failed", "launch", reason, "free space there, or set TMPDIR", ExitCode.RANK_FAILED
        )
    finally:
        run.clean()


def deliver(made: Dict[str, Any], arguments: Optional[argparse.Namespace], stdout: int) -> int:
    """Print the record, then write it where it was asked for; returns the exit code of the run."""
    line, code = record.to_line(made), int(made["status"]["exit_code"])
    name = made["record_id"] + ".json"
    out, store = (arguments.out, arguments.store) if arguments is not None else (None, None)

    def put_into_store() -> None:
        output.write_file(output.store_path(output.store_folder(store or ""), made), name, line)

    tasks: List[Callable[[], Any]] = [lambda: output.write_line(stdout, line)]
    if out:
        tasks.append(lambda: output.write_file(out, name, line))
    # A store that was refused has been complained of already: the record says it.
    if store and made["status"]["phase"] != "usage":
        tasks.append(put_into_store)
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


def main(argv: List[str]) -> int:
    """One run from its arguments to its exit code."""
    if any(argument in ("-h", "--help", "--version") for argument in argv):
        return show_help(argv)
    stdout = output.keep_stdout()
    arguments: Optional[argparse.Namespace] = None
    evidence, speaks = NOTHING, True
    request = unresolved(argv, None)
    try:
        arguments = cli.parse(argv)
        request = unresolved(argv, arguments)
        request, place, data = resolve(arguments, request)
    except CaseError as error:
        outcome = Outcome("failed", "usage", error.message, error.remedy, int(error.code))
    else:
        if arguments.describe:
            return describe(request, stdout)
        evidence, outcome = execute(arguments, request, place, data)
        speaks = place.node_rank == 0  # its record is the job's
    if outcome.state != "ok":
        complain(outcome.reason, outcome.remedy)
    if not speaks:
        return int(outcome.exit_code)
    made = record.assemble(request, evidence, outcome._replace(exit_code=int(outcome.exit_code)))
    return deliver(made, arguments, stdout)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
