"""What an image checks of itself and says of itself, here in a process that is told it is one."""

import json
import platform

import pytest
import torch

from flagbench_cases.engines import preflight
from flagbench_cases.shared import manifests
from running import run_case

pytestmark = pytest.mark.image

SHORT = ["--preset", "tiny", "--data", "synthetic", "--steps", "2"]
BAKED = {
    "FLAGBENCH_CONTEXT_DIGEST": "sha256:" + "c" * 64,
    "FLAGBENCH_LOCK_DIGEST": "sha256:" + "d" * 64,
    "FLAGBENCH_IMAGE_DIGEST": "r.example/a@sha256:" + "e" * 64,
    "FLAGBENCH_IMAGE_ID": "sha256:" + "a" * 64,
    "FLAGBENCH_COMMIT": "f" * 40,
}


def as_expected(name):
    """Whether this very Python and torch are what a stack expects."""
    stack = manifests.load_stack(name)
    wanted = [(platform.python_version(), stack["python"]), (str(torch.__version__), stack["expects"]["torch"])]
    return all(preflight.matches(found, expected) for found, expected in wanted)


def test_an_image_of_other_software_says_so_and_runs_nothing(tmp_path):
    other = next(name for name in ("a100-cuda11.8", "cpu") if not as_expected(name))
    ended = run_case(tmp_path, *SHORT, env=dict(BAKED, FLAGBENCH_STACK=other))
    expected = manifests.load_stack(other)["expects"]["torch"]
    record = ended.failed(13, "preflight", "torch %s (expected %s)" % (torch.__version__, expected))
    assert "flagbench build distilbert:%s" % other in record["status"]["remedy"]
    assert record["ranks"] == []
    assert record["software"]["lock_digest"] == BAKED["FLAGBENCH_LOCK_DIGEST"], "also where no rank came up"


def test_what_is_baked_in_reaches_the_record(tmp_path):
    """The digest of the context makes it an image, so it stays out where this software is no image's."""
    baked = dict(BAKED) if as_expected("cpu") else {k: v for k, v in BAKED.items() if "CONTEXT" not in k}
    record = run_case(tmp_path, *SHORT, env=baked).ok("distilbert")
    assert record["software"]["lock_digest"] == BAKED["FLAGBENCH_LOCK_DIGEST"]
    assert record["flagbench"]["commit"] == BAKED["FLAGBENCH_COMMIT"]
    assert record["system"]["image"] == {
        "context_digest": baked.get("FLAGBENCH_CONTEXT_DIGEST"),
        "digest": BAKED["FLAGBENCH_IMAGE_DIGEST"],
        "id": BAKED["FLAGBENCH_IMAGE_ID"],
        "reason": None,
    }


def test_a_native_run_says_why_it_has_no_digests(tmp_path):
    record = run_case(tmp_path, *SHORT, env=dict.fromkeys(BAKED, "")).record
    assert record["software"]["lock_digest_reason"] == "not running in an image"
    assert record["flagbench"]["commit_reason"] == "not running in an image"
    assert record["system"]["image"]["reason"] == "not running in an image"
    assert record["system"]["driver"] is None


@pytest.mark.parametrize(
    ("arguments", "state", "code"),
    [(SHORT, "ok", 0), ([*SHORT, "--out", "/proc/nowhere"], "failed", 2)],
)
def test_the_termination_message_tells_the_end(tmp_path, arguments, state, code):
    log = tmp_path / "termination-log"
    ended = run_case(tmp_path, *arguments, env={"FLAGBENCH_TERMINATION_LOG": str(log)})
    message = json.loads(log.read_text())
    assert (ended.code, message["state"], message["exit_code"]) == (code, state, code)
    assert message["record_id"] == ended.record["record_id"]
    assert (message["gate"] is not None) is (state == "ok")
