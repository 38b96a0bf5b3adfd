"""Where a user's own folders are."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from running import need

CODE = """
import os, tempfile
from flagbench.system.user_folders import cache_folder, data_folder
os.setuid(54321)
for folder in (data_folder(), cache_folder()):
    assert folder.is_relative_to(tempfile.gettempdir()), folder
"""


def test_a_user_without_a_name_and_a_home_has_folders() -> None:
    need(os.geteuid() == 0, "root, to become another user")
    mine = ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    env = {name: value for name, value in os.environ.items() if name not in mine}
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)  # the other user may enter it
        command, env["TMPDIR"] = [sys.executable, "-c", CODE], place
        subprocess.run(command, env=env, check=True)
        (made,) = Path(place).iterdir()
        os.chown(made, 0, 0)  # as if somebody else had made it first
        ended = subprocess.run(command, env=env, capture_output=True)
        assert b"FlagbenchError" in ended.stderr
