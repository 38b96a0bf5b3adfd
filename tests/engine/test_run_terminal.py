"""`flagbench run` on a real terminal: what is drawn while it runs, and the question before the published size."""

import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.image

COMMAND = [sys.executable, "-m", "flagbench", "run", "distilbert:cpu"]
SHORT = ["--preset", "tiny", "--data", "synthetic", "--steps", "60"]


@pytest.fixture
def terminal(environment):
    """The environment of a command on a terminal."""
    return {**environment, "TERM": "xterm", "OMP_NUM_THREADS": "1"}


class Terminal:
    """A command whose stdin and stderr are a terminal, and what it draws there."""

    def __init__(self, words, environment):
        ours, theirs = pty.openpty()
        streams = {"stdin": theirs, "stderr": theirs, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([*COMMAND, *words], env=environment, text=True, **streams)
        os.close(theirs)
        self.terminal = ours
        self.drawn = ""

    def read(self):
        """What is drawn next; False at the end."""
        try:
            select.select([self.terminal], [], [], 120)
            self.drawn += os.read(self.terminal, 65536).decode()
        except OSError:
            return False
        return True

    def cpu_seconds(self):
        """Of the command so far, its processes that have ended included."""
        with open("/proc/%d/stat" % self.process.pid) as file:
            fields = file.read().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        """The rest of it: exit code and stdout."""
        while self.read():
            pass
        out, _ = self.process.communicate(timeout=60)
        os.close(self.terminal)
        return self.process.returncode, out


def test_progress_from_the_first_second(terminal, flagbench):
    began = time.monotonic()
    run = Terminal([*SHORT, "--json"], terminal)
    assert run.read()
    # Its processor time, because a busy machine stretches the clock.
    assert min(run.cpu_seconds(), time.monotonic() - began) < 1.0
    assert run.drawn.startswith("flagbench: distilbert:cpu")
    code, out = run.end()
    assert code == 0, run.drawn
    assert "\x1b" not in run.drawn
    for word in ("launch", "train", "steps/s", "ETA"):
        assert word in run.drawn
    record = json.loads(out)
    kept = json.loads(flagbench("results", "show", "last", "--json").stdout)
    assert record == kept
    again = subprocess.run([*COMMAND, *SHORT, "--dry-run", "--json"], env=terminal, capture_output=True, check=True)
    planned = json.loads(again.stdout)
    assert planned["config_digest"] == record["config_digest"]
    assert record["record_id"] in planned["expected_basis"]
    assert planned["expected_seconds"] >= record["timing"]["train"]


def test_the_published_size_is_asked_for(terminal, tmp_path):
    run = Terminal([], terminal)
    while "[y/N]" not in run.drawn:
        assert run.read(), run.drawn
    os.write(run.terminal, b"n\n")
    assert run.end() == (7, "")
    assert "unknown" in run.drawn
    assert not (tmp_path / "store").exists()
