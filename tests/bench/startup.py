"""What starting `flagbench` costs: CPU time of whole processes, as ratios, interleaved, the best of several.

Python's bytecode and the cache of manifests are warm, as they are from a user's second command on. Bounds: --version
at most 1.3 x an empty program (`python -c pass`), `list` 20 x; completion 1.5 x `list`; --help 0.35 x the same with
docker, boto3 and jinja2 imported eagerly; commands that use no network a multiple of `list`.
"""

import os
import resource
import subprocess
import sys
import tempfile

# What an installer writes as the `flagbench` script. (`python -m` adds the cost of runpy, which is Python's.)
SCRIPT = "import sys\nfrom flagbench.__main__ import main\nsys.exit(main())"
EAGER = "import docker, boto3, jinja2\n" + SCRIPT
COMPLETION = f"""import os
os.environ.update(_FLAGBENCH_COMPLETE="complete_bash", COMP_WORDS="flagbench run d", COMP_CWORD="2")
{SCRIPT}"""
REPEATS = 15
# By a command's words, the most that it may cost in units of `list`.
COMMANDS = {
    "run distilbert:cpu --preset tiny --dry-run": 1.7,
    "render --all --check": 1.8,
    "job distilbert:cpu --for kubernetes --registry registry.example.com": 1.7,
}


def cpu(*arguments):
    """CPU seconds, user and system, of one run of this Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def ratio(ours, theirs):
    """The best of ours over the best of theirs; taking turns, both meet the same disturbances."""
    pairs = [(cpu(*ours), cpu(*theirs)) for _ in range(REPEATS)]
    best = [min(column) for column in zip(*pairs)]
    return best[0] / best[1], best


def main():
    """Print all; exit 1 if one is over its bound."""
    listing = (SCRIPT, "list")
    compared = [
        ("--version / python -c pass", (SCRIPT, "--version"), ("pass",), 1.3),
        ("--help / eager imports", (SCRIPT, "--help"), (EAGER, "--help"), 0.35),
        ("list / python -c pass", listing, ("pass",), 20),
        ("completion / list", (COMPLETION,), listing, 1.5),
        *((f"{line} / list", (SCRIPT, *line.split()), listing, most) for line, most in COMMANDS.items()),
    ]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(FLAGBENCH_STORE=f"{folder}/store", XDG_CACHE_HOME=folder, PYTHONPYCACHEPREFIX=folder)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for _, ours, theirs, _ in compared:  # warm both caches
            cpu(*ours)
            cpu(*theirs)
        for name, ours, theirs, bound in compared:
            value, (a, b) = ratio(ours, theirs)
            text = "startup: %s %.2f (%.0f ms / %.0f ms of CPU, best of %d; at most %.2f)"
            print(text % (name, value, a * 1e3, b * 1e3, REPEATS, bound), flush=True)
            failed |= value > bound
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
