"""`flagbench reproduce` for real: a row is run on a processor, and every byte of its bundle is bound."""

import json
import os
import subprocess
import sys

import pytest

from warmup import warm

pytestmark = pytest.mark.image

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATHS = os.pathsep.join(os.path.join(ROOT, name) for name in ("builder", "entrypoints"))
CLAIM = "distilbert/a100-1x1-fp32-bs96"


@pytest.fixture
def environment(tmp_path):
    """Both packages importable, and a store and a spool of this test's own."""
    (tmp_path / "spool").mkdir()
    store = "file://%s" % (tmp_path / "store")
    return dict(os.environ, FLAGBENCH_STORE=store, TMPDIR=str(tmp_path / "spool"), NO_COLOR="1", **warm(PATHS))


def flagbench(environment, *arguments):
    command = [sys.executable, "-m", "flagbench", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_row_on_a_processor_is_not_comparable_and_its_bundle_holds(environment, tmp_path):
    folder = tmp_path / "bundle"
    arguments = ["reproduce", CLAIM, "--on", "cpu", "--preset", "tiny", "--steps", "20", "--runs", "1"]
    ended = flagbench(environment, *arguments, "--out", str(folder), "--json")
    assert ended.returncode == 10, ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["verdict"]["verdict"] == "NOT_COMPARABLE"
    log = (folder / "logs" / "run.log").read_text()
    assert "train" in log, "the run's own lines"
    assert all(line in ended.stderr for line in log.splitlines()), "what is kept is shown, too"
    # No store: the bundle is all that is needed.
    offline = dict(environment, FLAGBENCH_STORE="/nonexistent", PATH="/nonexistent")
    checked = flagbench(offline, "bundle", "verify", str(folder), "--json")
    assert checked.returncode == 0, checked.stderr
    found = json.loads(checked.stdout)
    assert (found["ok"], found["notes"], found["verdict"]) == (True, [], answer["verdict"])
    (raw,) = (folder / "raw").glob("*/*.tar.gz")
    content = bytearray(raw.read_bytes())
    content[len(content) // 2] ^= 1
    raw.write_bytes(content)
    assert flagbench(offline, "bundle", "verify", str(folder)).returncode == 3
