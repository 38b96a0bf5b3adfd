"""`python -m flagbench_cases CASE ...`: one run, one record on stdout, an exit code."""

import argparse
import json
import os
import re
import sys
from typing import Any, Dict, List, Optional, Tuple

from flagbench_cases import cli, config, launch, nodes, output, record
from flagbench_cases.errors import CaseError, ExitCode, UsageError
from flagbench_cases.record import NOTHING, Evidence, Outcome, Request

FALLBACK_STACK = {"name": "cpu", "device": {"kind": "cpu"}, "accelerators": []}


def redact(argv: List[str]) -> List[str]:
    """The arguments without the credentials an URL may carry."""
    return [re.sub(r"://[^/@\s]+@", "://", argument) for argument in argv]


def unresolved(argv: List[str], arguments: Optional[argparse.Namespace]) -> Request:
    """What can be said of a request that was refused."""
    case = next((a for a in argv if not a.startswith("-")), "unknown")
    if arguments is None:
        return Request(
            redact(argv),
            case,
            FALLBACK_STACK,
            launch.new_run_id(),
            "reference",
            "faithful",
            1,
            1,
            None,
            None,
            None,
            "samples",
        )
    run_id = arguments.run_id or launch.new_run_id()
    shape = (arguments.preset, arguments.division, arguments.nodes, arguments.gpus)
    return Request(redact(argv), arguments.case, FALLBACK_STACK, run_id, *shape, None, None, None, "samples")


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


def deliver(made: Dict[str, Any], arguments: Optional[argparse.Namespace], stdout: Optional[int]) -> int:
    """Print the record, then write it where it was asked for; returns the exit code of the run."""
    line, code = record.to_line(made), int(made["status"]["exit_code"])
    name = made["record_id"] + ".json"
    tasks = []
    if stdout is not None:
        tasks.append(lambda: output.write_line(stdout, line))
        if arguments is not None and arguments.out:
            tasks.append(lambda: output.write_file(arguments.out, name, line))
        if arguments is not None and arguments.store:
            root = output.store_folder(arguments.store)
            tasks.append(lambda: output.write_file(output.store_path(root, made), name, line))
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
        cli.parse(argv)
    stdout: Optional[int] = output.keep_stdout()
    arguments: Optional[argparse.Namespace] = None
    evidence = NOTHING
    request = unresolved(argv, None)
    try:
        arguments = cli.parse(argv)
        request = unresolved(argv, arguments)
        request, place, data = resolve(arguments, request)
    except CaseError as error:
        outcome = Outcome("failed", "usage", error.message, error.remedy, int(error.code))
    else:
        if arguments.describe:
            described = {
                "config": request.config,
                "config_digest": request.config_digest,
                "stack": request.stack["name"],
            }
            output.write_line(stdout, json.dumps(described, sort_keys=True, ensure_ascii=False))
            return 0
        evidence, outcome = execute(arguments, request, place, data)
        if place.node_rank > 0:
            # Only node 0 speaks: its record is the job's.
            os.close(stdout)
            stdout = None
    if outcome.state != "ok":
        complain(outcome.reason, outcome.remedy)
    made = record.assemble(request, evidence, outcome._replace(exit_code=int(outcome.exit_code)))
    return deliver(made, arguments, stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
