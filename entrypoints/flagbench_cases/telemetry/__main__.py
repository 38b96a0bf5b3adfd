"""`python -m flagbench_cases.telemetry`: samples one node into a file until it is told to stop."""

import argparse
import math
import sys
import time
from typing import List, Optional

from flagbench_cases.shared.errors import ExitCode, UsageError
from flagbench_cases.telemetry import monitor as monitors
from flagbench_cases.telemetry.cpu import CpuProbe
from flagbench_cases.telemetry.jsonlines import JsonLinesWriter
from flagbench_cases.telemetry.lifetime import Lifetime
from flagbench_cases.telemetry.sampler import MIN_INTERVAL_S, run


def main(argv: Optional[List[str]] = None) -> int:
    """Run the sampler; the code it ends with is 0 for every way of stopping, a full disk included."""
    lifetime = Lifetime()
    parser = _parser()
    options = parser.parse_args(argv)
    cpu = CpuProbe(options.pid)
    if not cpu.tree():
        parser.error("process %d does not run; give --pid a process that does" % options.pid)
    lifetime.bind()
    try:
        run(
            monitors.create(options.monitor, options.devices),
            cpu,
            lambda: _open(options.out),
            interval=options.interval,
            now=time.time,
            clock=time.monotonic,
            wait=lifetime.wait,
        )
    except UsageError as error:
        parser.error("%s; %s" % (error.message, error.remedy))
    return ExitCode.OK


def _open(path: str) -> JsonLinesWriter:
    try:
        return JsonLinesWriter(path)
    except OSError as error:
        raise UsageError(
            "%s cannot be opened for writing (%s)" % (path, error.strerror),
            "give --out a file in a folder that exists and can be written",
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flagbench_cases.telemetry",
        description="Append one JSON line a sample to FILE until SIGTERM, SIGINT, the parent's end or a full "
        "disk. FILE appears once the first sample is taken: from then on the devices may be used.",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="file of JSON lines, one for each run")
    parser.add_argument("--interval", type=_interval, default=1.0, metavar="SECONDS", help="1.0 or more")
    parser.add_argument("--monitor", choices=monitors.NAMES, required=True, help="how devices are read")
    parser.add_argument("--pid", type=int, required=True, help="root of the process tree whose memory counts")
    parser.add_argument(
        "--devices", type=_devices, metavar="0,1", help="the run's device numbers (default: all that it sees)"
    )
    return parser


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_INTERVAL_S <= seconds < math.inf:
        raise argparse.ArgumentTypeError(
            "%r is not an interval of %.1f s or more, and more samples would disturb the run; give %.1f"
            % (text, MIN_INTERVAL_S, MIN_INTERVAL_S)
        )
    return seconds


def _devices(text: str) -> List[int]:
    tokens = text.split(",")
    if not all(token.isdigit() for token in tokens) or len(set(tokens)) < len(tokens):
        raise argparse.ArgumentTypeError("%r is not a list of different device numbers; give them as in 0,1" % text)
    return [int(token) for token in tokens]


if __name__ == "__main__":
    sys.exit(main())
