"""Which docker command builds images, and how it is run."""

import io
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flagbench.engines.base import EngineError
from flagbench.engines.client import find_client, run_client

from .conftest import NEW, OLD

BUILDER = Path(__file__).parents[4] / "builder"


@pytest.mark.parametrize(
    ("commands", "taken"), [(((NEW,), (OLD,), (NEW, True)), 1), (((NEW, True), (OLD,)), 0)], ids=["old", "buildx"]
)
def test_the_first_client_on_path_that_can_build(on_path, monkeypatch, commands, taken):
    paths = on_path(*commands)
    assert find_client().path == paths[taken]
    monkeypatch.setenv("FLAGBENCH_DOCKER", paths[-1])
    assert find_client().path == paths[-1]


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (NEW, "buildx"),
        ("Docker version 19.03.15, build 3", "20.10"),
        ("podman version 4.9.3", "Podman"),
        ("hello", "not a Docker client"),
    ],
)
def test_each_client_that_cannot_build_is_named(on_path, tmp_path, version, reason):
    on_path((version,))
    (tmp_path / "none").symlink_to(tmp_path / "0")
    with pytest.raises(EngineError) as caught:
        find_client()
    assert caught.value.message.count("/docker ") == 1
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("named", "said"), [("", "none is on PATH"), ("/nowhere/docker", "/nowhere/docker cannot be run")]
)
def test_without_a_client_the_error_says_what_to_install(on_path, monkeypatch, named, said):
    on_path()
    monkeypatch.setenv("FLAGBENCH_DOCKER", named)
    with pytest.raises(EngineError) as caught:
        find_client()
    assert said in caught.value.message
    assert "buildx" in caught.value.remedy
    assert "FLAGBENCH_DOCKER" in caught.value.remedy


def run(script, **options):
    """A shell script's status, what was read of it, and what was shown."""
    lines, shown = [], io.StringIO()
    given = {"read": lines.append, "show": shown, **options}
    status = run_client(["sh", "-c", script], os.environ, **given)
    return status, "".join(lines), shown.getvalue()


def test_what_it_prints_is_redacted_read_and_shown():
    script = "echo a planted; echo TOKEN=x >&2; exit 3"
    assert run(script, secrets=["planted"]) == (3, "a ***\nTOKEN=***\n", "a ***\nTOKEN=***\n")
    assert run("echo a", show=None)[1] == "a\n"


def test_its_input_is_streamed():
    assert run("wc -c", content=(bytes(2**20) for _ in range(3)))[1].strip() == str(3 * 2**20)


def test_a_command_that_ends_before_its_input():
    assert run("echo no; exit 2", content=(bytes(2**20) for _ in range(3)))[:2] == (2, "no\n")


def test_input_that_cannot_be_made_stops_it():
    def broken():
        yield b"x"
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError):  # noqa: PT011
        run("exec tail -f /dev/null", content=broken())


def test_a_stream_that_nobody_reads_stops_nothing():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    assert run("echo a; echo b", show=Gone())[:2] == (0, "a\nb\n")


def test_on_a_terminal_it_has_a_terminal():
    ours, theirs = pty.openpty()
    shown = []
    reader = threading.Thread(target=lambda: shown.append(os.read(ours, 1000)))
    reader.start()
    with open(theirs, "w") as terminal:
        assert run("test -t 2 && test -t 1 && echo drawn", show=terminal)[:2] == (0, "drawn\r\n")
        reader.join()
    os.close(ours)
    assert shown == [b"drawn\r\r\n"]


INTERRUPTED = """
import os
from flagbench.engines.client import run_client
script = "trap 'echo stopped; exit 1' INT; echo ready; while :; do sleep 0.1; done"
try:
    run_client(["sh", "-c", script], os.environ, read=lambda line: print(line, end="", flush=True))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_passed_on_and_waited_for(number):
    path = os.pathsep.join([str(BUILDER), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        said, _ = process.communicate(timeout=30)
    assert said == "stopped\ninterrupted\n"
