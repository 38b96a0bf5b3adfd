"""What uv is asked and what its answers mean, without uv."""

import subprocess
import sys
from pathlib import Path

import msgspec.toml
import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks import uv
from flagbench.locks.metadata import read_tables
from flagbench.locks.uv import Found, IndexUnreachable, NoSolution, Request

A, B, C = (digit * 64 for digit in "abc")
SDIST = "flash_attn-2.7.3.tar.gz"
REQUEST = Request(
    requirements=("numpy==2.2.6", "flash-attn==2.7.3"),
    python="3.10",
    platform="x86_64-manylinux_2_35",
    compiled=frozenset({"flash-attn"}),
    absent=frozenset({"torch"}),
    tables={("flash-attn", "2.7.3"): ("torch", 'x ; extra == "y\\1"')},
    kept={"einops": "0.8.1"},
)
PYLOCK = f"""\
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "numpy"
version = "2.2.6"
wheels = [
    {{ url = "https://h/n1.whl", hashes = {{ sha256 = "{B}" }} }},
    {{ path = "wheels/n2.whl", hashes = {{ sha256 = "{A}" }} }},
]
[[packages]]
name = "Flash_Attn"
version = "2.7.3"
sdist = {{ url = "https://h/{SDIST}", hashes = {{ sha256 = "{C}" }} }}
[[packages]]
name = "bare"
version = "1"
wheels = [{{ url = "https://h/bare%2Bcpu.whl", hashes = {{}} }}]
"""


@pytest.fixture
def fake_uv(monkeypatch):
    """uv that writes an answer, or fails with some words; what it was asked is kept."""
    asked = {}

    def install(answer=PYLOCK, code=0, stderr=""):
        def run(command, *, cwd, env, **_):
            asked.update(command=command[1:], env=env)
            asked["files"] = {path.name: path.read_text() for path in Path(cwd).iterdir()}
            if code == 0:
                Path(cwd, "pylock.toml").write_text(answer)
            return subprocess.CompletedProcess(command, code, "", stderr)

        monkeypatch.setattr(uv, "find_uv", lambda: "uv")
        monkeypatch.setattr(uv.subprocess, "run", run)
        return asked

    return install


def test_the_answer(fake_uv):
    fake_uv()
    assert uv.resolve(REQUEST, {}) == [
        Found("bare", "1", (), ("bare+cpu.whl",)),
        Found("flash-attn", "2.7.3", (f"sha256:{C}",), (SDIST,), f"https://h/{SDIST}"),
        Found("numpy", "2.2.6", (f"sha256:{A}", f"sha256:{B}"), ("n2.whl", "n1.whl")),
    ]


def test_the_question(fake_uv):
    asked = fake_uv()
    uv.resolve(REQUEST, {"UV_INDEX": "https://secret@index.example"})
    assert asked["files"]["requirements.in"] == "numpy==2.2.6\nflash-attn==2.7.3\n"
    assert asked["files"]["overrides.txt"] == "torch ; python_version < '0'\n"
    assert asked["files"]["constraints.txt"] == "einops==0.8.1\n"
    requires = list(REQUEST.tables["flash-attn", "2.7.3"])
    tables = [{"name": "flash-attn", "version": "2.7.3", "requires-dist": requires}]
    assert msgspec.toml.decode(asked["files"]["uv.toml"]) == {"dependency-metadata": tables}
    command = " ".join(asked["command"])
    assert "--python-version 3.10 --python-platform x86_64-manylinux_2_35" in command
    assert "--only-binary :all: --no-binary flash-attn" in command
    # An address with a password is in the environment, never among the arguments.
    assert "secret" not in command
    assert asked["env"]["UV_INDEX"] == "https://secret@index.example"


@pytest.mark.parametrize("own", [None, "native-tls = true\n"])
def test_settings_that_would_hide_the_tables(fake_uv, tmp_path, own):
    """UV_NO_CONFIG and UV_CONFIG_FILE make uv look past the uv.toml of its working directory."""
    asked = fake_uv()
    (tmp_path / "mine.toml").write_text(own or "")
    uv.resolve(REQUEST, {"UV_CONFIG_FILE": str(tmp_path / "mine.toml")} if own else {"UV_NO_CONFIG": "1"})
    settings = msgspec.toml.decode(asked["files"]["uv.toml"])
    assert [table["name"] for table in settings["dependency-metadata"]] == ["flash-attn"]
    assert settings.get("native-tls", False) == bool(own)
    assert Path(asked["env"]["UV_CONFIG_FILE"]).name == "uv.toml"
    assert "UV_NO_CONFIG" not in asked["env"]


def test_a_settings_file_that_is_not_there(fake_uv, tmp_path):
    fake_uv()
    with pytest.raises(FlagbenchError, match="UV_CONFIG_FILE"):
        uv.resolve(REQUEST, {"UV_CONFIG_FILE": str(tmp_path / "none.toml")})


WHERE = "https://index.example/whl/numpy/"
NO_SOLUTION = "error: No solution found when resolving dependencies\n  cause: Because {}, we can"


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (
            "error: Request failed after 3 retries in 5.4s\n"
            f"  cause: Failed to fetch: {WHERE}\n"
            "  cause: client error (Connect)\n"
            "  cause: failed to lookup address information: Name or service not known\n",
            IndexUnreachable(WHERE, "failed to lookup address information: Name or service not known"),
        ),
        # As older releases say it.
        (f"error: Failed to fetch: `{WHERE}`\n  Caused by: dns error\n", IndexUnreachable(WHERE, "dns error")),
        (
            NO_SOLUTION.format("there is no version of torch==2.6.0+cu118 and you\n  require torch==2.6.0+cu118"),
            NoSolution("...", frozenset({"torch==2.6.0+cu118"})),
        ),
        (
            NO_SOLUTION.format("maca-torch was not found in the package registry and you\n  require maca-torch==1"),
            NoSolution("...", frozenset({"maca-torch"})),
        ),
        (
            "error: unexpected argument '-x'\n",
            FlagbenchError("uv failed: error: unexpected argument '-x'", remedy="", code=ExitCode.ENGINE),
        ),
    ],
)
def test_failures_are_told_apart(fake_uv, stderr, expected):
    fake_uv(code=2, stderr=stderr)
    with pytest.raises(type(expected)) as caught:
        uv.resolve(REQUEST, {})
    for field in ("url", "cause", "missing", "message", "code"):
        assert getattr(caught.value, field, None) == getattr(expected, field, None)


@pytest.mark.parametrize(
    ("says", "named"), [(None, "not installed"), ("uv 0.9.30", "0.13"), ("uv 0.13.8 (x)", None), ("uv 1.0.0", None)]
)
def test_uv_on_the_path(says, named, monkeypatch, tmp_path):
    program = tmp_path / "uv"
    if says:
        program.write_text(f"#!/bin/sh\necho '{says}'\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "uv", None)  # not installed beside flagbench
    if named is None:
        assert uv.find_uv() == str(program)
        return
    with pytest.raises(FlagbenchError, match=named) as caught:
        uv.find_uv()
    assert "flagbench[lock]" in caught.value.remedy


TABLE = "[[dependency-metadata]]\nname = 'a'\nversion = '1'\nrequires-dist = [\"{}\"]\n"


@pytest.mark.parametrize(
    "text",
    [
        "[[dependency-metadata]]\nname = 'a'\n",
        "x = 1\n",
        "[[",
        "dependency-metadata = [1]\n",
        # Options of uv and a file of another place instead of requirements.
        TABLE.format("-r other.txt"),
        TABLE.format(" --index-url=https://evil.example"),
        TABLE.format("a==1\\nb==2"),
        TABLE.format("a @ https://evil.example/a.whl"),
    ],
)
def test_a_file_that_holds_no_tables(tmp_path, text):
    assert read_tables(tmp_path) == {}, "no file is no tables"
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "metadata.toml").write_text(text)
    with pytest.raises(FlagbenchError, match=r"metadata\.toml"):
        read_tables(tmp_path)
