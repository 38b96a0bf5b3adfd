"""What a run takes beside its steps, from the command to the verdict: wall time of each phase, for tiny presets.

At most 20 s. Phases: `command` (imports of the command line, the record, the verdict), `start` (the parent, torch in
the launcher and then in the rank, and the ceiling at the end), `init` (data, model, optimizer), `steps`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

CASES = ("distilbert", "glm", "llama2-7b-lora", "llama2-70b", "aquila-33b", "roofs")
"""One of each family."""
MOST = 20.0


def phases(case, store):
    """Seconds of each phase of one run."""
    words = ["run", f"{case}:cpu", "--preset", "tiny", "--via", "native", "--store", store, "--json"]
    words += [] if case == "roofs" else ["--steps", "5"]
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "flagbench", *words], stdout=subprocess.PIPE, check=True)
    wall, record = time.monotonic() - begun, json.loads(done.stdout)
    timing, launch = record["timing"], record["launch"]["seconds"]
    steps = sum(timing.get(name, 0.0) for name in ("train", "infer", "measure"))
    start = launch - timing["init"] - steps
    return {"command": wall - launch, "start": start, "init": timing["init"], "steps": steps, "beside": wall - steps}


def main():
    """Print all; exit 1 if a run takes longer than it may."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            found[case] = phases(case, os.path.join(folder, case))
    names = list(found["roofs"])
    print(f"{'seconds':16}" + "".join(f"{name:>9}" for name in names))
    for case, seconds in found.items():
        print(f"{case:16}" + "".join(f"{seconds[name]:9.1f}" for name in names))
    return int(max(seconds["beside"] for seconds in found.values()) > MOST)


if __name__ == "__main__":
    sys.exit(main())
