"""In every Python that a warmed-up run starts: those that import torch are continued by a copy of a process that has
imported it."""

import os

MODULES = (
    *("flagbench_cases.engines.elastic", "flagbench_cases.rank.worker", "flagbench_cases.prepare.job"),
    *("tests.reenact", "tests.reenact.side", "workloads"),
)


def main():
    """Hand this process's work over, if it is of MODULES; return at once otherwise."""
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().decode("utf-8", "surrogateescape").split("\0")[1:-1]
    options = words[: words.index("-m")] if "-m" in words else []
    if not (options or words[:1] == ["-m"]) or words[len(options) + 1] not in MODULES:
        return
    if any(not option.startswith("-") for option in options):
        return
    from hand_over import hand_over

    hand_over(os.environ["FLAGBENCH_TEST_WARM"], words[len(options) + 1], words[len(options) + 2 :])


if "FLAGBENCH_TEST_WARM" in os.environ:
    main()
