"""What starting `flagbench` costs: CPU time of whole processes, as ratios, interleaved, the best of many.

Bounds: --version at most 2 x an empty program; --help at most 0.35 x the same with docker, boto3 and jinja2
imported eagerly.
"""

import resource
import subprocess
import sys

SCRIPT = "import sys\nfrom flagbench.__main__ import main\nsys.exit(main())"
EAGER = "import docker, boto3, jinja2\n" + SCRIPT
REPEATS = 15


def cpu(*arguments):
    """CPU seconds, user and system, of one run of this Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def ratio(ours, theirs):
    """The best of ours over the best of theirs."""
    pairs = [(cpu(*ours), cpu(*theirs)) for _ in range(REPEATS)]
    best = [min(column) for column in zip(*pairs)]
    return best[0] / best[1], best


def main():
    """Print both; exit 1 where one is over its bound."""
    failed = 0
    for name, ours, theirs, bound in (
        ("--version / python -c pass", ("-c", SCRIPT, "--version"), ("-c", "pass"), 2.0),
        ("--help / eager imports", ("-c", SCRIPT, "--help"), ("-c", EAGER, "--help"), 0.35),
    ):
        value, (a, b) = ratio(ours, theirs)
        text = "startup: %s %.2f (%.0f ms / %.0f ms of CPU, best of %d; at most %.2f)"
        print(text % (name, value, a * 1e3, b * 1e3, REPEATS, bound))
        failed |= value > bound
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
