"""Any user: a number without a name or a home, in a folder that cannot be written, and one that can write nowhere."""

import json
import os
import shutil
import sys

import pytest

from running import ENTRYPOINTS, need, run_case

pytestmark = pytest.mark.image

NUMBER = "12345"
MODULE = [sys.executable, "-m", "flagbench_cases", "distilbert"]
SHORT = ["--preset", "tiny", "--data", "synthetic", "--steps", "1"]


@pytest.fixture
def stranger(tmp_path):
    """Runs a case as a user that has no entry anywhere: (folder it may write, the command that becomes it)."""
    need(os.geteuid() == 0 and shutil.which("setpriv") is not None, "root and setpriv, to become another user")
    place = tmp_path / "spool"
    place.mkdir()
    os.chown(str(place), int(NUMBER), 0)
    # The interpreter may lie below root's own folder: reading is allowed everywhere, writing is not.
    grant = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    become = ["setpriv", "--reuid", NUMBER, "--regid", NUMBER, "--clear-groups", *grant]
    return place, [*become, "env", "-u", "HOME", "-u", "USER", "-u", "LOGNAME"]


# What a framework asks of its user, in every process of a run; the answers go where the test reads them.
SITE = """
import getpass, json, os
if "flagbench_cases.rank.worker" in open("/proc/self/cmdline").read():
    home = os.path.expanduser("~")
    open(os.path.join(home, "mark-%d" % os.getpid()), "w").close()
    answer = {"user": getpass.getuser(), "home": home, "uid": os.getuid()}
    answer["caches"] = {k: v for k, v in os.environ.items() if k.endswith(("_CACHE_DIR", "CACHE_HOME", "CONFIGDIR"))}
    with open(os.path.join(os.environ["TMPDIR"], "answer-%d" % os.getpid()), "w") as file:
        json.dump(answer, file)
"""


def test_a_user_without_name_home_and_a_folder_to_stand_in(tmp_path, stranger):
    place, become = stranger
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    path = {"PYTHONPATH": os.pathsep.join([str(site), ENTRYPOINTS])}
    ended = run_case(place, *SHORT, isolated=True, command=[*become, *MODULE], cwd=str(locked), env=path)
    assert (ended.code, ended.status["state"]) == (0, "ok"), ended.stderr
    (answer,) = (json.loads(path.read_text()) for path in place.glob("answer-*"))
    assert (answer["uid"], answer["user"]) == (int(NUMBER), "flagbench")
    assert len(answer["caches"]) == 4
    assert all(cache.startswith(answer["home"] + "/") for cache in answer["caches"].values())
    assert os.listdir(str(locked)) == []
    assert not list(place.glob("flagbench-*")), "the home goes with the spool"


def test_nowhere_to_write_leaves_a_record(tmp_path, stranger):
    _, become = stranger
    locked = tmp_path / "locked"
    locked.mkdir()
    # A view in which no file system can be written, as `docker run --read-only` without a tmpfs.
    mounts = 'mount --make-rprivate / && mount -o remount,ro,bind / && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mounts, "sh", *become, *MODULE]
    ended = run_case(locked, *SHORT, isolated=True, command=command, cwd="/proc", env={"TMPDIR": "/proc/nowhere"})
    assert (ended.code, ended.status["phase"]) == (4, "launch"), ended.stderr
    assert "TMPDIR" in ended.status["remedy"]
    assert "--tmpfs /tmp:exec" in ended.status["remedy"]
