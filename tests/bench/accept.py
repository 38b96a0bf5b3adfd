"""Whether `flagbench accept` finds what is planted, and passes a machine that has nothing: for an idle machine.

    python tests/bench/accept.py [--clean 20] [--faults 8] [--minutes 1] [--only FAULT]

The faults: a rank that is pinned to a processor on which something else runs, a quota of 60 % of the processors (a
control group; as root), and one flipped bit in one product. Exit 1 unless of 20 clean runs none fails and 18 pass,
and of 8 with each fault 7 fail by the right check and rank, and none passes. `--load` has other processes come and go
during clean runs, of which none may fail, and any may be inconclusive.
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
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from faults import fault
from running import control_group

PASSES, FAILS = 0.9, 0.875
"""The shares of clean runs that pass, and of runs with a fault that fail by its check."""
SPIN = (sys.executable, "-c", "while True: pass")
PIN = "import os; os.sched_setaffinity(0, {%d})"
# The third product of this rank that is computed for its bits has one bit flipped.
FLIP = """
import torch
multiply, count = torch.mm, [0]
def flipped(a, b, **more):
    found = multiply(a, b, **more)
    if not more:
        count[0] += 1
        if count[0] == 3:
            kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
            found.view(kinds[found.element_size()])[1, 1] ^= 1
    return found
torch.mm = flipped
"""


@contextlib.contextmanager
def pinned(folder):
    processor = max(os.sched_getaffinity(0))
    busy = subprocess.Popen(["taskset", "-c", str(processor), *SPIN])
    try:
        yield fault(folder, 1, "start", PIN % processor), ()
    finally:
        busy.kill()
        busy.wait()


@contextlib.contextmanager
def quota(folder):
    with control_group("cpu", 2 * 60_000) as prefix:
        yield {}, prefix


@contextlib.contextmanager
def flipped(folder):
    yield fault(folder, 1, "before measure", FLIP), ()


FAULTS = {
    "pinned": (pinned, "product alike", [1]),
    "quota": (quota, "quota", []),
    "flipped": (flipped, "same bits", [1]),
}
"""What plants each, the check that must fail, and the ranks that it must name."""


def accept(folder, *words, environment=None, prefix=(), store=None):
    """The exit code and the certificate of an acceptance on two ranks, and what it said."""
    known = {"FLAGBENCH_STORE": f"file://{store or Path(folder) / 'store'}", "TMPDIR": str(folder), "NO_COLOR": "1"}
    command = [*prefix, sys.executable, "-m", "flagbench", "accept", *words, "--gpus=2", "--json"]
    command.append(f"--out={Path(folder) / 'certificate.tar.gz'}")
    roots = [str(Path(__file__).parents[2] / name) for name in ("builder", "entrypoints")]
    given = {**os.environ, **known, **(environment or {})}
    given["PYTHONPATH"] = os.pathsep.join([*filter(None, [given.get("PYTHONPATH")]), *roots])
    ended = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else None, ended.stderr


def planted(name, folder, minutes=1.0):
    """The exit code and the certificate of an acceptance with that fault."""
    plant = FAULTS[name][0]
    with plant(folder) as (environment, prefix):
        return accept(folder, f"--minutes={minutes:g}", environment=environment, prefix=prefix)


def found(name, certificate):
    """Whether a certificate names the check and the ranks of a fault."""
    _, check, ranks = FAULTS[name]
    failed = {each["name"]: each["ranks"] for each in certificate["checks"] if each["outcome"] == "FAIL"}
    return failed.get(check) == ranks


@contextlib.contextmanager
def changing_load(share):
    """Processes that come and go, with that chance of one on each processor at any time."""
    script = "import random, sys, time\nwhile True:\n end = time.time() + random.uniform(0.5, 5)\n"
    script += f" if random.random() < {share}:\n  while time.time() < end: pass\n else: time.sleep(end - time.time())"
    others = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(os.cpu_count() if share else 0)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--faults", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--load", type=float, default=0.0, help="of 1: the chance of another process on a processor")
    parser.add_argument("--only", choices=list(FAULTS))
    options = parser.parse_args()
    bad = []
    with tempfile.TemporaryDirectory() as store:
        counts = Counter()
        for number in range(options.clean if options.only is None else 0):
            with tempfile.TemporaryDirectory() as folder, changing_load(random.uniform(0, 1) * options.load):
                _, certificate, stderr = accept(folder, f"--minutes={options.minutes:g}", store=store)
            outcome = certificate["outcome"] if certificate else stderr[-500:]
            counts[outcome] += 1
            print(f"clean {number + 1}: {outcome} {certificate['reason'] if certificate else ''}", flush=True)
    if counts["FAIL"] or (not options.load and counts["PASS"] < PASSES * sum(counts.values())):
        bad.append(f"clean: {dict(counts)}")
    for name in FAULTS if options.only is None else [options.only]:
        right, counts = 0, Counter()
        for number in range(options.faults):
            with tempfile.TemporaryDirectory() as folder:
                _, certificate, stderr = planted(name, folder, options.minutes)
            outcome = certificate["outcome"] if certificate else stderr[-500:]
            counts[outcome] += 1
            right += certificate is not None and found(name, certificate)
            print(f"{name} {number + 1}: {outcome} {certificate['reason'] if certificate else ''}", flush=True)
        if counts["PASS"] or right < FAILS * options.faults:
            bad.append(f"{name}: {right} of {options.faults} by its check, {dict(counts)}")
    print("\n".join(bad) or "all as expected")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
