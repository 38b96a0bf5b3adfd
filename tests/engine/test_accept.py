"""`flagbench accept` for real on a processor: two planted faults are found, and it ends where a rank hangs.

tests/bench/accept.py plants all three faults, and repeats each.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bench.accept import accept, found, planted
from faults import fault

pytestmark = [pytest.mark.image, pytest.mark.slow]


@pytest.mark.parametrize(
    ("name", "action"), [("flipped", "drain"), pytest.param("quota", "fix", marks=pytest.mark.long)]
)
def test_a_planted_fault_fails(name, action, tmp_path):
    code, certificate, stderr = planted(name, tmp_path, minutes=0.8)
    assert (code, found(name, certificate)) == (9, True), stderr
    assert certificate["action"]["do"] == action


def test_a_rank_that_hangs_leaves_a_certificate(tmp_path, flagbench):
    stopped = fault(tmp_path, 1, "before measure", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    began = time.monotonic()
    code, certificate, stderr = accept(tmp_path, "--minutes=0.5", "--price=24", environment=stopped)
    assert time.monotonic() - began < 1.1 * 30 + 5, "and the start of Python"
    assert (code, certificate["outcome"]) == (11, "INCONCLUSIVE"), stderr
    bundle = str(tmp_path / "certificate.tar.gz")
    assert flagbench("bundle", "verify", bundle).returncode == 0


def test_an_interruption_leaves_a_certificate(tmp_path, environment):
    command = [sys.executable, "-m", "flagbench", "accept", "--minutes=1", "--gpus=2", "--json"]
    command.append(f"--out={tmp_path / 'certificate.tar.gz'}")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if b"launch" in line:
                break
        os.kill(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    certificate = json.loads(output)
    assert (process.returncode, certificate["outcome"], certificate["reason"]) == (7, "INCONCLUSIVE", "interrupted")
