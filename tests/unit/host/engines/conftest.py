"""An engine that is not there, an HTTP server on a Unix socket, and a docker command that prints what a test says."""

import json
import os
import re
import shlex
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

RECORDED = Path(__file__).parent / "recorded"
VERSION = {"Version": "20.10.24", "ApiVersion": "1.41", "Os": "linux", "Arch": "amd64"}
SCRIPT = """#!/bin/sh
PATH=/usr/bin:/bin
case "$1 $2" in
"--version ") cat {version}; exit ;;
"buildx version") exit {buildx} ;;
esac
for word; do case $word in --iidfile=*) id=${{word#--iidfile=}} ;; esac; done
env >{folder}/environment
cat >{folder}/stdin
printf '%s\\0' "$@" >{folder}/arguments
cat {folder}/says
[ ! -e {folder}/image ] || [ -z "${{id:-}}" ] || cat {folder}/image >"$id"
exit $(cat {folder}/status)
"""


@pytest.fixture(scope="session")
def recorded():
    """What the docker command 20.10.24 printed for a build, by the name of what was built."""
    return lambda name: (RECORDED / f"{name}.txt").read_text(encoding="utf-8")


class FakeCommand:
    """A docker command, a script that prints what it is told to and notes what it was given."""

    def __init__(self, folder, version="Docker version 20.10.24+dfsg1, build 297e128", buildx=False):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / "docker"
        (folder / "version").write_text(version + "\n")
        quoted = shlex.quote(str(folder))
        text = SCRIPT.format(folder=quoted, version=f"{quoted}/version", buildx=0 if buildx else 1)
        self.path.write_text(text)
        self.path.chmod(0o755)
        self.prints("", image="sha256:abc")

    def prints(self, text, *, status=0, image=None):
        """From now on it prints this; `image` is the id that it writes."""
        (self.folder / "says").write_text(text, encoding="utf-8")
        (self.folder / "status").write_text(str(status))
        (self.folder / "image").unlink(missing_ok=True)
        if image:
            (self.folder / "image").write_text(image)

    @property
    def arguments(self):
        """Of the last call; None where there was none."""
        path = self.folder / "arguments"
        return path.read_bytes().decode().split("\0")[:-1] if path.exists() else None

    @property
    def stdin(self):
        """Of the last call, bytes."""
        return (self.folder / "stdin").read_bytes()

    @property
    def environment(self):
        """Of the last call."""
        lines = (self.folder / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.fixture
def fake_command(tmp_path, monkeypatch):
    """A docker command that FLAGBENCH_DOCKER names."""
    command = FakeCommand(tmp_path / "client")
    monkeypatch.setenv("FLAGBENCH_DOCKER", str(command.path))
    return command


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Puts docker commands on PATH, one folder each, in the order given; there is no other."""
    monkeypatch.delenv("FLAGBENCH_DOCKER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))

    def put(**commands):
        made = {name: FakeCommand(tmp_path / name, *how) for name, how in commands.items()}
        monkeypatch.setenv("PATH", os.pathsep.join(str(one.folder) for one in made.values()))
        return made

    return put


class FakeEngine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers by `answers`, path (without version) to status and JSON."""

    daemon_threads = True

    def __init__(self, path):
        super().__init__(str(path), _Handler)
        self.path = str(path)
        self.answers = {"/version": (200, VERSION)}
        self.silent = False
        self.over = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        """Nothing: what is asked is not printed."""

    def do_GET(self):
        if self.server.silent:
            self.server.over.wait()
            return
        path = re.sub(r"^/v1\.\d+", "", unquote(urlsplit(self.path).path))
        status, answer = self.server.answers.get(path, (404, {"message": f"no such image: {path}"}))
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()


@pytest.fixture
def fake_engine(tmp_path, monkeypatch):
    """A running FakeEngine that docker's settings name; no other setting of this machine counts."""
    for name in os.environ:
        if name.startswith("DOCKER_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    engine = FakeEngine(tmp_path / "engine")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.path}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield engine
    engine.over.set()
    engine.shutdown()
    thread.join()
    engine.server_close()


@pytest.fixture
def unused_port():
    """A TCP port that nobody listens on; bound for the test's duration, so that nobody else can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
