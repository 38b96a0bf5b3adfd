"""`python -m flagbench_cases.telemetry`: samples one node into a file until it is stopped."""

from __future__ import annotations

import argparse
import math
import sys
import time

from flagbench_cases.shared.errors import UsageError
from flagbench_cases.telemetry import monitors
from flagbench_cases.telemetry.cpu import CpuProbe
from flagbench_cases.telemetry.jsonlines import JsonLinesWriter
from flagbench_cases.telemetry.sampler import Lifetime, run
from flagbench_core.exit_codes import ExitCode

MIN_INTERVAL_S = 1.0
"""More frequent samples would disturb the run."""


def main(argv: list[str] | None = None) -> int:
    """Run the sampler; returns 0 for every way of stopping, including a full disk."""
    lifetime = Lifetime()
    parser = _parser()
    options = parser.parse_args(argv)
    cpu = CpuProbe(options.pid)
    if not cpu.tree():
        parser.error(f"process {options.pid} is not running; set --pid to a running process")
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
            used_from=options.used_from,
        )
    except UsageError as error:
        parser.error(f"{error.message}; {error.remedy}")
    return ExitCode.OK


def _open(path: str) -> JsonLinesWriter:
    try:
        return JsonLinesWriter(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be opened for writing ({error.strerror})",
            "set --out to a file in a writable folder",
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flagbench_cases.telemetry",
        description="Append one JSON line per sample to FILE until SIGTERM, SIGINT, the end of the parent or a full "
        "disk. FILE is created with the first sample: after that, the devices may be used.",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="file of JSON lines, one per run")
    parser.add_argument(
        "--interval", type=_interval, default=1.0, metavar="SECONDS", help="sampling interval, at least 1.0"
    )
    parser.add_argument("--monitor", choices=monitors.NAMES, required=True, help="monitor to read devices with")
    parser.add_argument("--pid", type=int, required=True, help="root of the process tree whose memory counts")
    parser.add_argument(
        "--devices", type=_devices, metavar="0,1", help="device numbers of the run (default: all visible ones)"
    )
    parser.add_argument(
        "--used-from",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="time from which the run uses the devices even without a first sample, by the monotonic clock",
    )
    return parser


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not MIN_INTERVAL_S <= seconds < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an interval of at least {MIN_INTERVAL_S:.1f} s; "
            "more frequent samples would disturb the run"
        )
    return seconds


def _devices(text: str) -> list[int]:
    tokens = text.split(",")
    if not all(token.isdigit() for token in tokens) or len(set(tokens)) < len(tokens):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of distinct device numbers such as 0,1")
    return [int(token) for token in tokens]


if __name__ == "__main__":
    sys.exit(main())
