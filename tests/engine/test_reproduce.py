"""`flagbench reproduce` for real: a row is run on a processor, and every byte of its bundle is bound."""

import json
import tarfile

import pytest

pytestmark = pytest.mark.image

CLAIM = "distilbert/a100-1x1-fp32-bs96"


@pytest.mark.slow
def test_a_row_on_a_processor_and_its_bundle(environment, flagbench, tmp_path):
    path = tmp_path / "bundle.tar.gz"
    arguments = ["reproduce", CLAIM, "--on", "cpu", "--preset", "tiny", "--steps", "20", "--runs", "1"]
    ended = flagbench(*arguments, "--out", str(path), "--json")
    assert ended.returncode == 10, ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["verdict"]["verdict"] == "NOT_COMPARABLE"
    with tarfile.open(path) as bundle:
        log = bundle.extractfile("logs/run.log").read().decode()
    assert "train" in log, "the run's own lines"
    assert all(line in ended.stderr for line in log.splitlines()), "what is kept is shown, too"
    # No store: the bundle is all that is needed.
    offline = dict(environment, FLAGBENCH_STORE="/nonexistent", PATH="/nonexistent")
    checked = flagbench("bundle", "verify", str(path), "--json", env=offline)
    assert checked.returncode == 0, checked.stderr
    found = json.loads(checked.stdout)
    assert (found["ok"], found["notes"], found["verdict"]) == (True, [], answer["verdict"])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert flagbench("bundle", "verify", str(path), env=offline).returncode == 3
