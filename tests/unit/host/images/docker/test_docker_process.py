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

from flagbench.images.docker_errors import EngineError
from flagbench.images.docker_process import find_docker, run_docker

from .conftest import FakeCommand

BUILDER = Path(__file__).parents[5] / "builder"


def test_the_docker_command_is_found(tmp_path, fake_command, monkeypatch):
    assert find_docker() == find_docker(builds=True) == str(fake_command.path)
    without = FakeCommand(tmp_path / "without", buildkit=False)
    monkeypatch.delenv("FLAGBENCH_DOCKER")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), str(without.folder), str(fake_command.folder)]))
    assert find_docker() == str(without.path)
    assert find_docker(builds=True) == str(fake_command.path)


@pytest.mark.parametrize("named", ["", "/nowhere/docker"])
def test_no_docker_command_that_builds(tmp_path, monkeypatch, named):
    monkeypatch.setenv("PATH", str(FakeCommand(tmp_path, buildkit=False).folder))
    monkeypatch.setenv("FLAGBENCH_DOCKER", named)
    with pytest.raises(EngineError):
        find_docker(builds=True)


def run(script, **options):
    """A shell script's status, its last lines, and what was shown."""
    shown = io.StringIO()
    status, lines = run_docker(["sh", "-c", script], **{"show": shown, **options})
    return status, lines, shown.getvalue()


def test_output_is_redacted_kept_and_shown():
    script = "echo a planted; echo TOKEN=x >&2; exit 3"
    assert run(script, secrets=["planted"]) == (3, ["a ***", "TOKEN=***"], "a ***\nTOKEN=***\n")
    assert run("seq 300", show=None)[1] == [str(each) for each in range(101, 301)]


def test_progress_is_shown_while_it_runs(tmp_path):
    class Seen(io.StringIO):
        def write(self, text):
            (tmp_path / "seen").touch()

    wait = f"for _ in $(seq 100); do [ ! -e {tmp_path}/seen ] || exit 0; sleep 0.1; done; exit 1"
    assert run(f"echo begun; {wait}", show=Seen())[0] == 0


def test_its_input_is_streamed():
    assert run("wc -c", content=(bytes(2**20) for _ in range(3)))[1] == [str(3 * 2**20)]
    assert run("echo no; exit 2", content=(bytes(2**20) for _ in range(3)))[:2] == (2, ["no"])


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

    assert run("echo a; echo b", show=Gone())[:2] == (0, ["a", "b"])


@pytest.mark.parametrize(("secrets", "drawn"), [([], True), (["planted"], False)])
def test_on_a_terminal_it_has_a_terminal_without_secrets(secrets, drawn):
    ours, theirs = pty.openpty()
    shown = []
    reader = threading.Thread(target=lambda: shown.append(os.read(ours, 1000)))
    reader.start()
    with open(theirs, "w") as terminal:
        status, lines, _ = run(r"printf '\033[1mx\033[0m\n'; test -t 2 && test -t 1", show=terminal, secrets=secrets)
        reader.join()
    os.close(ours)
    assert (status == 0, lines) == (drawn, ["x"])
    assert b"\x1b[1mx" in shown[0]


INTERRUPTED = """
import sys
from flagbench.images.docker_process import run_docker
script = "trap 'echo stopped; exit 1' INT; echo ready; while :; do sleep 0.1; done"
try:
    run_docker(["sh", "-c", script], show=sys.stdout)
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
