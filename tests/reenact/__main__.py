"""Run a case and its re-enactment in turn on one device, and write down how they compare.

A round is the case by its own command line, whose record is kept, then `tests.reenact.measure` on that record's
configuration: one process after the other, so each has the device alone. The best round of either counts.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from typing import Any, Dict, List, Optional, Tuple

from flagbench_cases import config as configuration
from flagbench_cases import edge, output
from flagbench_cases.errors import CaseError, ExitCode

from .measure import work_of_a_step

# The record of the case, and the line that its re-enactment printed.
Round = Tuple[Dict[str, Any], Dict[str, Any]]


def parse(argv: List[str]) -> argparse.Namespace:
    """The arguments; ends the process with exit code 2 where they are wrong."""
    parser = argparse.ArgumentParser("python -m tests.reenact", description=__doc__, allow_abbrev=False)
    parser.add_argument("case", help="one of: %s" % ", ".join(configuration.case_names()))
    parser.add_argument("--stack", default=os.environ.get("FLAGBENCH_STACK", "cpu"), help="default FLAGBENCH_STACK")
    parser.add_argument("--preset", choices=("reference", "tiny"), default="reference")
    parser.add_argument("--precision", choices=("tf32", "fp16", "fp32"), help="default: the case's")
    parser.add_argument("--batch-size", metavar="N", help="default: the preset's")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="steady steps of a round (default 200)")
    parser.add_argument("--rounds", type=int, choices=range(1, 11), default=2, metavar="N", help="default 2")
    parser.add_argument("--out", required=True, metavar="DIR", help="where records and the comparison are written")
    return parser.parse_args(argv)


def case_command(arguments: argparse.Namespace) -> List[str]:
    """The command line of the case, as the one of an image."""
    command = ["python", "-m", "flagbench_cases", arguments.case, "--nodes", "1", "--gpus", "1"]
    command += ["--preset", arguments.preset, "--data", "synthetic", "--steps", str(arguments.steps)]
    if arguments.precision:
        command += ["--precision", arguments.precision]
    if arguments.batch_size:
        command += ["--set", "batch_size=%s" % arguments.batch_size]
    return [*command, "--out", arguments.out]


def run(command: List[str], stack: str, what: str) -> Dict[str, Any]:
    """The one line of JSON that a command prints. Raises CaseError where it fails, with its code if it is of ours."""
    sys.stderr.write("%s: %s\n" % (what, shlex.join(command)))
    env = dict(os.environ, FLAGBENCH_STACK=stack)
    ended = subprocess.run([sys.executable, *command[1:]], env=env, stdout=subprocess.PIPE)
    if ended.returncode:
        code = ExitCode(ended.returncode) if ended.returncode > ExitCode.BUG else ExitCode.RANK_FAILED
        raise CaseError("%s ended with exit code %d" % (what, ended.returncode), "see its own words above", code)
    return json.loads(ended.stdout)


def compare(case: Dict[str, Any], rounds: List[Round], commands: Dict[str, str]) -> Dict[str, Any]:
    """The comparison, plain data; what is not known is null.

    The case's throughput is that by the publisher's clock, the metric that its gate is held by. Utilisations are
    model FLOPs of the case's formula over the datasheet's peak, and over the fastest matrix product of all rounds.
    """
    first = rounds[0][0]
    gate = next(metric for metric in case["metrics"] if metric["name"] == case["gate"])
    name = gate.get("held_by", gate["name"])
    ours = [next(m["value"] for m in record["metrics"] if m["name"] == name) for record, _ in rounds]
    best = {"case": max(ours), "reenactment": max(line["throughput"] for _, line in rounds)}
    flops = first["flops"]["executed"] / (first["window"]["steps"] * work_of_a_step(first))
    gemm = max((line["gemm"] for _, line in rounds), key=lambda product: product["flops"])
    peak, software = first["flops"]["peak"], first["software"]

    def utilisation(ceiling: Optional[Dict[str, Any]]) -> Dict[str, Optional[float]]:
        return {side: value * flops / ceiling["flops"] if ceiling else None for side, value in best.items()}

    return {
        **{name: first[name] for name in ("case", "stack", "preset", "created_at")},
        "precision": first["conditions"]["precision"],
        "batch_size": first["config"]["train"]["batch_size"],
        "commands": commands,
        "device": first["conditions"]["device_model"],
        "software": {
            **{name: software[name] for name in ("python", "torch", "cuda")},
            **{name: software["packages"].get(name) for name in ("transformers", "peft")},
            "driver": first["conditions"]["driver"],
        },
        "metric": name,
        "unit": gate["unit"],
        "throughput": dict(best, ratio=best["case"] / best["reenactment"]),
        "flops_per_unit": flops,
        "peak": peak,
        "gemm": gemm,
        "mfu": {"datasheet": utilisation(peak), "gemm": utilisation(gemm)},
        "rounds": [
            dict(line, record=record["record_id"] + ".json", case=value)
            for (record, line), value in zip(rounds, ours)
        ],
    }


def main(argv: List[str]) -> int:
    """All rounds, then `reenact-RECORD.json`, named after the first record; returns the exit code."""
    try:
        arguments = parse(argv)
        case = configuration.load_case(arguments.case)
        commands = {"case": case_command(arguments)}
        rounds: List[Round] = []
        for number in range(1, arguments.rounds + 1):
            where = "round %d of %d, " % (number, arguments.rounds)
            record = run(commands["case"], arguments.stack, where + "the case")
            path = os.path.join(arguments.out, record["record_id"] + ".json")
            commands["reenactment"] = ["python", "-m", "tests.reenact.measure", path]
            rounds.append((record, run(commands["reenactment"], arguments.stack, where + "the re-enactment")))
        made = compare(case, rounds, {side: shlex.join(command) for side, command in commands.items()})
        name = "reenact-%s" % made["rounds"][0]["record"]
        print(output.write_file(arguments.out, name, json.dumps(made, indent=1, allow_nan=False)))
        sys.stderr.write("case / re-enactment %.3f (%s)\n" % (made["throughput"]["ratio"], made["metric"]))
    except CaseError as error:
        edge.complain(error.message, error.remedy)
        return int(error.code)
    except KeyboardInterrupt:
        edge.complain("interrupted", "the records of finished rounds are in the folder given as --out")
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
