"""Whether `verify --explain` names what made a real run slow: causes are planted in runs of tiny presets on this
processor, and every explanation is compared with what was planted.

    python tests/bench/causes.py [--rounds 10] [--only CAUSE]

Each round makes a healthy run, and one with each cause: a loader that sleeps, a step that stalls, a slow rank, a
quota of processors (a control group; as root), other processes on all processors, more ranks than processors, and
evaluations. A cause must come first in at least 9 of 10 explanations; exit 1 otherwise. Whatever else runs is a cause
too: beside others, a run is made three times at most. Causes of accelerators are planted in made-up records by
tests/unit/host/verdict/test_explain.py.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from faults import slow_loader, slow_rank
from flagbench.machine.disturbance_limits import OTHER_PROCESSORS
from flagbench.manifests.load import load_catalog
from flagbench.records.read import read_record
from flagbench.verdict import choose_claim, verify_baseline, verify_claim
from flagbench.verdict.explain import explain
from running import control_group, run_case

LEAST = 0.9
"""Of the explanations of a cause: those in which it comes first."""
CASE = "distilbert"
STEPS = 120


def run(folder, ranks=2, words=(), environment=None, prefix=()):
    """A real run of the tiny preset, as a record."""
    words = ["--gpus", str(ranks), "--preset", "tiny", *(words or ["--steps", str(STEPS)])]
    command = [*prefix, sys.executable, "-m", "flagbench_cases", CASE]
    ended = run_case(folder, *words, isolated=True, command=command, env=environment or {})
    if ended.code:
        sys.exit(f"a run ended with exit code {ended.code}:\n{ended.stderr[-2000:]}")
    return read_record(ended.lines[0].encode())


def data_wait(folder, drawn):
    return run(folder, environment=slow_loader(folder, drawn.uniform(0.01, 0.05)))


def stall(folder, drawn):
    step, seconds = drawn.randint(20, STEPS), drawn.uniform(1.0, 3.0)
    return run(folder, environment=slow_rank(folder, drawn.randrange(2), seconds, step))


def straggler(folder, drawn):
    return run(folder, environment=slow_rank(folder, drawn.randrange(2), drawn.uniform(0.01, 0.05)))


def cpu_quota(folder, drawn):
    cores = os.cpu_count() or 1
    with control_group("cpu", int(100_000 * drawn.uniform(0.3, 0.8) * cores)) as prefix:
        return run(folder, ranks=cores, prefix=prefix)


@contextlib.contextmanager
def busy(count):
    """So many processes that compute all the time."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def other_tenants(folder, drawn):
    with busy((os.cpu_count() or 1) * drawn.randint(1, 2)):
        return run(folder)


def processors(folder, drawn):
    return run(folder, ranks=(os.cpu_count() or 1) * drawn.randint(2, 3))


def evaluation(folder, drawn):
    return run(folder, words=["--full", "--set", "max_epochs=1", "--set", "eval_batch_size=1"])


CAUSES = (data_wait, stall, straggler, cpu_quota, other_tenants, processors, evaluation)
COMPARED = {data_wait, stall, straggler, other_tenants}
"""Planted in runs of the same configuration as the healthy one; those of others are explained by themselves."""


def undisturbed(make, *given):
    """The record of a run beside which nothing ran that was not planted, if one of three is; its folder goes."""
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            record = make(folder, *given)
        if make is other_tenants or (record.telemetry.cpu.others_mean or 0.0) < OTHER_PROCESSORS:
            break
    return record


def explained(record, healthy):
    """The names of the causes, in order."""
    catalog = load_catalog()
    case = catalog.cases[record.case]
    if healthy is None:
        result = verify_claim([record], choose_claim(record, case, catalog.claims.values()), case)
        return [cause.name for cause in explain([record], result, case).causes]
    return [
        cause.name for cause in explain([record], verify_baseline([record], healthy, case), case, [healthy]).causes
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", choices=[cause.__name__ for cause in CAUSES])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chosen = [cause for cause in CAUSES if options.only in (None, cause.__name__)]
    drawn, first, wrong = random.Random(options.seed), Counter(), []
    for number in range(options.rounds):
        healthy = undisturbed(run)
        for cause in chosen:
            record = undisturbed(cause, drawn)
            names = explained(record, healthy if cause in COMPARED else None)
            first[cause.__name__] += names[:1] == [cause.__name__]
            if names[:1] != [cause.__name__]:
                others = record.telemetry.cpu.others_mean
                wrong.append({"round": number, "planted": cause.__name__, "found": names, "others": others})
            print(f"round {number + 1}: {cause.__name__}: {', '.join(names) or 'nothing'}", flush=True)
    print(json.dumps({"rounds": options.rounds, "first": dict(first), "wrong": wrong}, indent=1))
    return 0 if all(first[cause.__name__] >= LEAST * options.rounds for cause in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
