"""Compare each case with its re-enactment: the cost of a step, its operators, the bytes it keeps, its loss.

Ours over the publisher's, CPU time on one core or the device's time, in interleaved pairs of steps, over several
starts of both. On processors, as many cases are compared at a time as there are cores. Exit code 12: a 95 % interval
is not within 0.97 to 1.03, losses differ, or a difference in operators or bytes is not a listed quirk. With --quick
two rounds are enough where their ratio is within 0.985 to 1.015, or six within 0.98 to 1.02; else more follow until
an interval decides, or time is up, and the ratio alone is judged.
"""

import argparse
import json
import os
import queue
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List

from flagbench_cases.node.main import print_error
from flagbench_cases.shared import manifests, output
from flagbench_cases.shared.errors import CaseError
from flagbench_core import config as configuration
from flagbench_core.exit_codes import ExitCode

from .pairs import BOUNDS, ROUNDS_OF_AN_INTERVAL, Limits, compare, needs_libraries, publisher_libraries
from .side import STEPS
from .sizes import SMALL, TIMED
from .verdict import judge, judge_ratio

CASES = tuple(SMALL)
USUAL = tuple(name for name in CASES if name != "llama3-8b")
"""Without the one whose ratio takes 50 starts, seven minutes, to be decided."""
NOT_THE_SAME = 12


def parse(argv: List[str]) -> argparse.Namespace:
    """The arguments; ends the process with exit code 2 where they are wrong."""
    parser = argparse.ArgumentParser("python -m tests.reenact", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help="of: %s (default: all but llama3-8b)" % ", ".join(CASES)
    )
    parser.add_argument("--stack", default=os.environ.get("FLAGBENCH_STACK", "cpu"), help="default FLAGBENCH_STACK")
    parser.add_argument("--preset", choices=("reference", "tiny"), default="reference")
    parser.add_argument("--small", action="store_true", help="two layers at the published width, for a processor")
    parser.add_argument("--precision", choices=("tf32", "bf16", "fp16", "fp32"), help="default: the case's")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as for a run of the case")
    rounds = {"nargs": 2, "metavar": ("LEAST", "MOST"), "help": "two starts, of which each side is the first of one"}
    parser.add_argument("--rounds", type=int, default=(6, 50), **rounds)
    parser.add_argument("--quick", action="store_true", help="end as soon as there is no doubt, and judge the ratio")
    parser.add_argument("--pairs", type=int, default=16, metavar="N", help="steps of both in a start, at the most")
    parser.add_argument("--seconds", type=float, default=420.0, metavar="S", help="of a case's rounds (default 420)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--out", metavar="DIR", help="write reenact-CASE.json there, too")
    arguments = parser.parse_args(argv)
    unknown = [case for case in arguments.cases if case not in CASES]
    if unknown:
        parser.error("unknown case %r; choose from %s" % (unknown[0], ", ".join(CASES)))
    if not ROUNDS_OF_AN_INTERVAL <= arguments.rounds[0] <= arguments.rounds[1]:
        parser.error("--rounds: give at least six, and no fewer at the most than at the least")
    if arguments.pairs < 1:
        parser.error("--pairs: give at least one")
    return arguments


def resolved(arguments: argparse.Namespace, case: Dict[str, Any]) -> Dict[str, Any]:
    """The configuration of both sides: faithful, one device, synthetic data, random weights."""
    whole = ["%s=1" % name for name in ("tp", "pp") if name in case["settable"]]  # on one device
    options = configuration.Options(
        preset=arguments.preset,
        precision=arguments.precision,
        source="synthetic",
        steps=STEPS,
        settings=(*whole, *arguments.set),
    )
    config = configuration.resolve(case, manifests.load_stack(arguments.stack), options)
    return dict(configuration.merge(config, SMALL[case["name"]] if arguments.small else {}), stack=arguments.stack)


def run(arguments: argparse.Namespace, name: str, core: int) -> Dict[str, Any]:
    """Compare one case, its processes on that core."""
    case, libraries = manifests.load_case(name), publisher_libraries(name)
    config = resolved(arguments, case)
    timed = configuration.merge(config, TIMED.get(name, {}) if arguments.small else {})
    limits = Limits(*arguments.rounds, arguments.seconds, arguments.pairs, arguments.quick)
    made = compare(config, timed, libraries, limits, core)
    judged = dict(judge(case, config, made, arguments.small), ratio_faults=judge_ratio(made["ratio"]))
    on_cpu = manifests.load_stack(arguments.stack)["device"]["kind"] == "cpu"
    clock = "CPU time of a process, all threads" if on_cpu else "device time between two events"
    return {
        **{
            "case": name,
            "config": config,
            "clock": clock,
            "publisher_versions": libraries is not None or not needs_libraries(name),
        },
        **{**made, **judged},
    }


def run_all(arguments: argparse.Namespace) -> Iterator[Dict[str, Any]]:
    """Compare the cases, one at a time on a device, else one on each core; in the order in which they were given."""
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    if manifests.load_stack(arguments.stack)["device"]["kind"] != "cpu":
        del cores[1:]
    free: "queue.Queue[int]" = queue.Queue()
    for core in cores:
        free.put(core)

    def on_a_core(name: str) -> Dict[str, Any]:
        core = free.get()
        try:
            return run(arguments, name, core)
        finally:
            free.put(core)

    with ThreadPoolExecutor(len(cores)) as pool:
        futures = [pool.submit(on_a_core, name) for name in arguments.cases or USUAL]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:  # begin no more, if one has failed
                future.cancel()


def lines(made: Dict[str, Any]) -> List[str]:
    """What a person reads of a comparison."""
    ratio, ours, theirs = made["ratio"], made["inventories"]["ours"], made["inventories"]["publisher"]
    of = ", ".join("%s %s" % item for item in sorted(made["software"]["publisher"].items()))
    exact = ratio["low"] is not None
    ends, judged = (" [%(low).3f, %(high).3f]" % ratio, "interval") if exact else ("", "ratio")
    text = [
        "%s: ours / publisher %.3f%s %s, %d starts (%s within %.2f to %.2f)"
        % (made["case"], ratio["value"], ends, made["clock"], len(made["starts"]), judged, *BOUNDS),
        "  operators a step %d / %d, moving %.1f / %.1f MB; saved for backward %.3f / %.3f MB; losses within %.1g"
        " (%s)"
        % (
            *(sum(side["operators"].values()) for side in (ours, theirs)),
            *(sum(side["bytes"].values()) / 1e6 for side in (ours, theirs)),
            *(side["saved_bytes"] / 1e6 for side in (ours, theirs)),
            made["largest_loss_difference"],
            of,
        ),
    ]
    for quirk in made["quirks"]:
        text.append("  quirk %(id)s: %(share).2g of a step's bytes" % quirk)
    if not made["publisher_versions"]:
        text.append("  the publisher's library versions are not installed, so this is shown and not judged")
    return text + ["  not the publisher's: " + fault for fault in made["faults"] + made["ratio_faults"]]


def main(argv: List[str]) -> int:
    """Compare the cases, print what was found, and return the exit code."""
    arguments = parse(argv)
    made: List[Dict[str, Any]] = []
    try:
        for one in run_all(arguments):
            made.append(one)
            if arguments.out:
                text = json.dumps(one, indent=1, allow_nan=False)
                output.write_file(arguments.out, "reenact-%s.json" % one["case"], text, replace=True)
            if not arguments.json:
                print("\n".join(lines(one)), flush=True)
    except CaseError as error:
        print_error(error.message, error.remedy)
        return int(error.code)
    except KeyboardInterrupt:
        print_error("interrupted", "give fewer cases or --rounds")
        return int(ExitCode.INTERRUPTED)
    if arguments.json:
        print(json.dumps(made, indent=1, allow_nan=False))
    required = os.environ.get("CI") == "true"
    if required and not all(one["publisher_versions"] for one in made):
        print_error("the publisher's library versions are not installed", "run `make bench`, which installs them")
        return int(ExitCode.RANK_FAILED)
    faults = any(one["publisher_versions"] and (one["faults"] or one["ratio_faults"]) for one in made)
    return NOT_THE_SAME if faults else int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
