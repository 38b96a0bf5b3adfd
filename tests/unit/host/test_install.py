"""How `make demo` and `make test` find a Python and an index of packages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tools import install

from .conftest import ROOT

TOOLS = ROOT / "tools"


class Machine:
    """A PATH with nothing but what a test puts there, and the shell's own tools."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for tool in ("dirname", "ls", "sort", "tr", "env"):
            (self.bin / tool).symlink_to(Path("/usr/bin") / tool)

    def python(self, name: str, *, check: int = 0, folder: str = "bin") -> None:
        """An interpreter that ends with `check` when it is asked what it can do, and else says what it was given."""
        path = self.folder / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        asked = '[ "$1" = -c ] && echo 3.12 && exit 0'
        lines = ("#!/bin/sh", f'[ "$1" = -I ] && exit {check}', asked, 'echo "$0" "$@"')
        path.write_text("".join(f"{line}\n" for line in lines))
        path.chmod(0o755)

    def install(self, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(self.bin), "HOME": str(self.folder), **environment}
        command = ["/bin/sh", str(TOOLS / "install"), str(self.folder / "venv"), "cases"]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    def taken(self, **environment: str) -> str:
        """The interpreter that install.py was started with, by its path in the folder."""
        ended = self.install(**environment)
        assert ended.returncode == 0, ended.stderr
        python, *words = ended.stdout.split()
        assert words == [str(TOOLS / "install.py"), str(self.folder / "venv"), "cases"]
        return str(Path(python).relative_to(self.folder))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


PYENV = ".pyenv/versions/3.13.{}/bin"


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        (["python3.10", "python3.11", "python3.13", "python3"], "bin/python3.11"),
        (["python3.10", "python3.12", "python3.13", "python3"], "bin/python3.13"),
        (["python3.10", "python3"], "bin/python3.10"),
        (["python"], "bin/python"),
        # A shim of pyenv that does not start, and a version that is too old.
        ([("python3.11", 127), ("python3.12", 3), "python3"], "bin/python3"),
        # One without venv, and another that has it.
        ([("python3", 1), "python3.10"], "bin/python3.10"),
        # pyenv has versions that are not on PATH.
        (
            [("python3", 3), ("python3.13", 0, PYENV.format(9)), ("python3.13", 0, PYENV.format(10))],
            f"{PYENV.format(10)}/python3.13",
        ),
        # An environment that works is used.
        (["python3.11", ("python", 0, "venv/bin")], "venv/bin/python"),
        (["python3.11", ("python", 1, "venv/bin")], "bin/python3.11"),
    ],
)
def test_the_locks_python_is_taken_else_the_newest(
    machine: Machine, there: list[str | tuple[Any, ...]], taken: str
) -> None:
    for python in there:
        name, check, folder = (python, 0, "bin") if isinstance(python, str) else (*python, "bin")[:3]
        machine.python(name, check=check, folder=folder)
    assert machine.taken() == taken


def test_python_names_one(machine: Machine) -> None:
    machine.python("python3.11")
    machine.python("python3.12")
    assert machine.taken(PYTHON="python3.12") == "bin/python3.12"
    ended = machine.install(PYTHON="python3.9")
    assert (ended.returncode, ended.stdout, "python3.9" in ended.stderr) == (2, "", True)


def test_this_python_passes_the_check(machine: Machine) -> None:
    """The real interpreter, which the tests run on: it is found fit, and install.py refuses what it does not know."""
    (machine.bin / "python3").symlink_to(sys.executable)
    command = ["/bin/sh", str(TOOLS / "install"), str(machine.folder / "venv"), "nosuch"]
    ended = subprocess.run(command, env={"PATH": str(machine.bin)}, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "usage" in ended.stderr


def test_versions_are_the_locks_and_no_newer_on_another_python() -> None:
    lock = "# comment\nnumpy==2.4.6 \\\n    --hash=sha256:00\n# unresolved: torch==2.13.0+cpu\ntyper==0.29.2 \\\n"
    assert install.constraints(lock, (3, 11)) == ["numpy==2.4.6", "torch==2.13.0"]
    assert install.constraints(lock, (3, 10)) == ["numpy<=2.4.6", "torch<=2.13.0"]


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("direct")
def test_an_index_that_does_not_answer_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "has_torch", lambda python: False)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    monkeypatch.setenv("TORCH_INDEX", address)
    assert install.torch_index(Path(sys.executable)) == []
    assert address in capsys.readouterr().out


class ProxyOfTorch(BaseHTTPRequestHandler):
    """A proxy behind which each index has one version of torch."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b'<a href="torch-2.0-py3-none-any.whl">torch-2.0-py3-none-any.whl</a>')

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@pytest.mark.usefixtures("direct")
def test_an_index_is_reached_as_pip_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "has_torch", lambda python: False)
    monkeypatch.setenv("TORCH_INDEX", "http://torch.invalid/cpu/")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "torch.invalid")
    with ThreadingHTTPServer(("127.0.0.1", 0), ProxyOfTorch) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_PROXY", f"http://127.0.0.1:{proxy.server_port}")
        options = install.torch_index(Path(sys.executable))
        proxy.shutdown()
    assert options == ["--extra-index-url", "http://torch.invalid/cpu"]


def test_the_makefile_defines_every_variable_that_it_uses() -> None:
    targets = ("demo", "test", "lint", "format", "bench", "compile", "clean")
    command = ["make", "-n", "-B", "--warn-undefined-variables", *targets]
    printed = subprocess.run(command, cwd=TOOLS.parent, capture_output=True, text=True, check=True)
    assert "undefined variable" not in printed.stderr
