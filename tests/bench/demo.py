"""What `make demo` runs, timed: at most 60 s from the command to the verdict, and from random weights to 95 % on
sentences that counting words cannot read."""

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


def main():
    """Run it once; exit 1 where it took too long or did not learn."""
    with tempfile.TemporaryDirectory() as store:
        # With the threads that a user's processes have.
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        environment["FLAGBENCH_STORE"] = store
        began = time.monotonic()
        subprocess.run(DEMO, env=environment, stdout=subprocess.DEVNULL, check=True)
        seconds = time.monotonic() - began
        shown = [*COMMAND, "results", "show", "last", "--json"]
        record = json.loads(subprocess.run(shown, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    accuracy = {metric["name"]: metric["value"] for metric in record["metrics"]}["acc"]
    failed = [check["name"] for check in record["quality"]["checks"] if not check["ok"]]
    print(
        "demo: %.1f s (at most %.0f), accuracy %.3f (at least %.2f), failed checks: %s"
        % (seconds, SECONDS, accuracy, ACCURACY, ", ".join(failed) or "none")
    )
    return int(seconds > SECONDS or accuracy < ACCURACY or not record["quality"]["converged"] or bool(failed))


if __name__ == "__main__":
    sys.exit(main())
