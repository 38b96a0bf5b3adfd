"""Records read in several threads, in a process that has read none before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RECORD = Path(__file__).parents[1] / "verdict" / "replays" / "a100-1x8-80gb.json"
THREADS = """
import sys, threading
sys.setswitchinterval(1e-7)
from flagbench.records.read import read_record

content = open(sys.argv[1], "rb").read()
together, read = threading.Barrier(8), []

def work():
    together.wait()
    read.append(read_record(content).case)

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*read)
"""


def test_threads_read_their_first_record_at_once() -> None:
    """Without a lock, nearly every such process ended by a segmentation fault."""
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", THREADS, str(RECORD)], capture_output=True, text=True)
        assert (ended.returncode, ended.stdout.split()) == (0, ["distilbert"] * 8), ended.stderr
