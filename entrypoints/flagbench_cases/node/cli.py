"""The command line of an image. Arguments are validated before any device is touched."""

from __future__ import annotations

import argparse

from flagbench_cases.shared import checkpoint_facts
from flagbench_cases.shared.arguments import Parser, command_name
from flagbench_cases.shared.system import in_image
from flagbench_core import DIVISION, __version__

MAX_COUNT = checkpoint_facts.MAX_STEPS
SEED_LIMIT = 2**31
MAX_SECONDS = 365 * 24 * 3600
"""One year, in seconds. Longer waits would overflow the integers of system calls."""


def _integer(text: str, low: int, limit: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
    if not low <= value < limit:
        raise argparse.ArgumentTypeError(f"{text} is out of range: {low} to {limit - 1}")
    return value


def _count(text: str) -> int:
    return _integer(text, 1, MAX_COUNT)


def _rank(text: str) -> int:
    return _integer(text, 0, MAX_COUNT)


def _seed(text: str) -> int:
    """Valid for every random generator: NumPy's takes 32 bits, and ranks add their number."""
    return _integer(text, 0, SEED_LIMIT)


def _duration(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is out of range: above 0, at most {MAX_SECONDS}")
    return value


def _run_id(text: str) -> str:
    """A run id, which becomes part of file names."""
    if not text or len(text) > 128 or not all((c.isalnum() and c.isascii()) or c in "._-" for c in text):
        raise argparse.ArgumentTypeError(f"{text!r} may contain only letters, digits, '.', '_' and '-' (at most 128)")
    if not text[0].isalnum():
        raise argparse.ArgumentTypeError(f"{text!r} must start with a letter or digit")
    return text


def build_parser() -> Parser:
    """The argument parser of an image."""
    if in_image():
        work_of = "Run the case of this image"
        prepare = "prepare"
    else:
        work_of = "Run one case"
        prepare = "prepare CASE"
    parser = Parser(
        prog=command_name(),
        description=(
            f"{work_of} and print one JSON record on stdout. Progress and logs go to stderr. "
            f"`{prepare}` converts data and weights into the folders that a run reads."
        ),
        epilog="Exit codes: 0 done, 2 usage, 3 data or weights, 4 a rank failed, 5 out of memory, 6 timeout or hang, "
        "7 interrupted, 12 a check failed, 13 wrong hardware, 14 measured but not stored, 15 network.",
        # An abbreviation that is unique today may be ambiguous once an option is added.
        allow_abbrev=False,
    )
    parser.add_case()
    parser.add_argument("--version", action="version", version=f"flagbench {__version__}")
    job = parser.add_argument_group("job")
    job.add_argument("--nodes", type=_count, default=1, metavar="N", help="number of nodes (default 1)")
    job.add_argument(
        "--gpus", type=_count, default=1, metavar="G", help="processes per node; ranks on cpu (default 1)"
    )
    job.add_argument("--node-rank", type=_rank, metavar="K", help="rank of this node (default: from the platform)")
    job.add_argument("--master", metavar="HOST:PORT", help="address of node 0 (default: $FLAGBENCH_MASTER)")
    job.add_argument("--run-id", type=_run_id, metavar="ID", help="name of the run, equal on all nodes")
    work = parser.add_argument_group("work")
    work.add_argument(
        "--preset",
        choices=("reference", "tiny"),
        help="the published size or a tiny one that takes seconds (default reference; on a processor there is none)",
    )
    # Commands and jobs that were written for an earlier image may have it.
    work.add_argument("--division", choices=(DIVISION,), help=argparse.SUPPRESS)
    work.add_argument("--precision", choices=("fp32", "tf32", "fp16", "bf16", "fp8"), help="default: set by the case")
    work.add_argument("--data", metavar="DIR|synthetic", help="prepared data (default: /data if not empty)")
    work.add_argument("--weights", metavar="DIR", help="a checkpoint folder (default: random weights)")
    length = work.add_mutually_exclusive_group()
    length.add_argument("--steps", type=_count, metavar="N", help="measure N steps after warm-up, without evaluation")
    length.add_argument("--max-samples", type=_count, metavar="N", help="like --steps, in samples over all devices")
    length.add_argument(
        "--full", action="store_true", help="run until the published stop rule, even on synthetic data"
    )
    work.add_argument(
        "--roofs", action="store_true", help="measure before the steps what the devices reach without the model"
    )
    work.add_argument("--seed", type=_seed, help="default: set by the case")
    work.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="set a hyper-parameter")
    limits = parser.add_argument_group("limits and output")
    limits.add_argument(
        "--max-minutes", type=_duration, metavar="M", help="stop the run after M minutes (exit code 6)"
    )
    limits.add_argument(
        "--timeout",
        type=_duration,
        default=600.0,
        metavar="S",
        help="fail after S seconds without progress once the ranks have started (default 600)",
    )
    limits.add_argument("--out", metavar="DIR", help="also write the record to this folder")
    limits.add_argument(
        "--store",
        metavar="URL",
        help="also store the record and a bundle: file:///FOLDER or s3://BUCKET/PREFIX (default: $FLAGBENCH_STORE)",
    )
    limits.add_argument(
        "--bundle", metavar="DIR", help="also write the bundle of this node's evidence below this folder"
    )
    limits.add_argument("--resume", metavar="DIR", help="resume from a checkpoint, if the case supports it")
    limits.add_argument("--describe", action="store_true", help="print the resolved configuration and exit")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the arguments. Raises UsageError."""
    return build_parser().parse_args(argv)
