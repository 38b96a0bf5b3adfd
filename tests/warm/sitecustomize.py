"""In every Python that a warmed-up run starts: those that import torch are continued by a copy of a process that has
imported it."""

import os

MODULES = ("flagbench_cases.rank.worker", "flagbench_cases.prepare.child_main", "workloads")


def main():
    """Hand this process's work over, if it is of MODULES; return at once otherwise."""
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().decode("utf-8", "surrogateescape").split("\0")[1:-1]
    # On 3.8 a script stands for the -m of newer versions.
    start = next((at for at, word in enumerate(words) if word == "-m" or word.endswith("/python_module.py")), None)
    if start is None or words[start + 1] not in MODULES or any(not word.startswith("-") for word in words[:start]):
        return
    from hand_over import hand_over

    hand_over(os.environ["FLAGBENCH_TEST_WARM"], words[start + 1], words[start + 2 :])


if "FLAGBENCH_TEST_WARM" in os.environ:
    main()
