"""A docker command that prints what a test says, and an HTTP server on a Unix socket in the place of an engine."""

import json
import os
import re
import shlex
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

import pytest

SCRIPT = """#!/bin/sh
PATH=/usr/bin:/bin
cd {folder}
[ "$1 $2" != "build --help" ] || exit {without_buildkit}
env >environment
cat >stdin
printf '%s\\0' "$@" >arguments
cat says
exit {status}
"""


class FakeCommand:
    """A docker command: a script that prints what it is told to and notes what it was given."""

    def __init__(self, folder, buildkit=True):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path, self._buildkit = folder, folder / "docker", buildkit
        self.prints("")

    def prints(self, text, status=0):
        """From now on it prints this."""
        (self.folder / "says").write_text(text, encoding="utf-8")
        words = {"folder": self.folder, "without_buildkit": int(not self._buildkit), "status": status}
        self.path.write_text(SCRIPT.format(**{name: shlex.quote(str(word)) for name, word in words.items()}))
        self.path.chmod(0o755)

    @property
    def arguments(self):
        """Of the last call; None where there was none."""
        path = self.folder / "arguments"
        return path.read_bytes().decode().split("\0")[:-1] if path.exists() else None

    def options(self, name):
        """The values of an option of the last call."""
        return [word.partition("=")[2] for word in self.arguments if word.startswith(f"--{name}=")]

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


class _Handler(BaseHTTPRequestHandler):
    """Answers by the server's `answers`: path, without version, to status and JSON."""

    def do_GET(self):
        path = re.sub(r"^/v1\.\d+", "", unquote(urlsplit(self.path).path))
        status, answer = self.server.answers.get(path, (404, {"message": f"no such image: {path}"}))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *arguments):
        """Nothing: what is asked is not printed."""


class FakeEngine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers with `answers` at `path`."""

    daemon_threads = True


@pytest.fixture
def fake_engine(tmp_path, monkeypatch):
    """A running FakeEngine that docker's settings name; no other setting of this machine counts."""
    for name in os.environ:
        if name.startswith("DOCKER_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    path = str(tmp_path / "engine")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with FakeEngine(path, _Handler) as engine:
        engine.path = path
        version = {"Version": "20.10.24", "ApiVersion": "1.41", "Os": "linux", "Arch": "amd64"}
        engine.answers = {"/version": (200, version)}
        thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield engine
        engine.shutdown()
        thread.join()
