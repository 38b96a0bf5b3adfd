"""A worker of pytest-xdist, instead of the Python that execnet would start: `python worker.py -u -c COMMAND`.

What all workers import, which is most of what collecting tests costs, is imported once: by the process of which they
are copies.
"""

import os
import sys

if __name__ == "__main__":
    if "handed over" in sys.argv:
        # As of `python -c`, there is no module that processes of multiprocessing could import.
        __spec__ = None
        del __file__
        # The first line says what to execute; the rest is execnet's.
        exec(eval(sys.stdin.readline()))
    else:
        from hand_over import hand_over

        hand_over(os.environ["FLAGBENCH_TEST_WARM_SOCKET"], "worker", ["handed over"])
