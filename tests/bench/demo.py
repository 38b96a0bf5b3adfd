"""What `make demo` runs, timed: at most 60 s from the command to the verdict, and from random weights to 95 % on
sentences that counting words cannot read.

`--kept STORE` judges the newest record there instead, of a `make demo` beside other work: at most 120 s by the run's
own clock, which leaves out imports.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

SECONDS = 60.0
ACCURACY = 0.95
COMMAND = [sys.executable, "-m", "flagbench"]
DEMO = [*COMMAND, "run", "distilbert:cpu", "--preset", "tiny", "--gpus", "2", "--via", "native"]


def shown(environment):
    """The newest record of the store."""
    command = [*COMMAND, "results", "show", "last", "--json"]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def timed():
    """The record of a run, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as store:
        # With the threads that a user's processes have.
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        environment["FLAGBENCH_STORE"] = store
        began = time.monotonic()
        subprocess.run(DEMO, env=environment, stdout=subprocess.DEVNULL, check=True)
        seconds = time.monotonic() - began
        return shown(environment), seconds


def main():
    """Judge one run; exit 1 where it took too long or did not learn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kept", metavar="STORE", help="judge the newest record of a store, and run nothing")
    store = parser.parse_args().kept
    if store is None:
        (record, seconds), limit = timed(), SECONDS
    else:
        record, limit = shown({**os.environ, "FLAGBENCH_STORE": store}), 2 * SECONDS
        seconds = record["timing"]["e2e"]
    accuracy = {metric["name"]: metric["value"] for metric in record["metrics"]}["acc"]
    failed = [check["name"] for check in record["quality"]["checks"] if not check["ok"]]
    print(
        "demo: %.1f s (at most %.0f), accuracy %.3f (at least %.2f), failed checks: %s"
        % (seconds, limit, accuracy, ACCURACY, ", ".join(failed) or "none")
    )
    return int(seconds > limit or accuracy < ACCURACY or not record["quality"]["converged"] or bool(failed))


if __name__ == "__main__":
    sys.exit(main())
