"""Containers that end as they should not, and an engine that refuses, dies or does not know the image."""

import json
import os
import signal
import socket
import threading
from dataclasses import replace

import pytest

from running import ENDLESS, need

pytest_plugins = ["containers"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]

SHORT = [*ENDLESS[:-1], "20"]
WAITING = "echo here >&2; sleep 1000"


@pytest.fixture
def request_for_cpu(tool):
    """The run that the tool would be asked for, for a launcher of one's own."""
    from flagbench.manifests.load import load_catalog
    from flagbench.manifests.lookup import resolve_image
    from flagbench.runs.request import LocalOptions, RunRequest

    return RunRequest(*resolve_image("distilbert:cpu", load_catalog()), LocalOptions(run_id=tool.run_id))


def test_a_container_killed_for_memory_leaves_the_host_s_record(tool, scripted):
    ended = tool.run("--memory", "64m", image=scripted("tail /dev/zero"))
    assert ended.returncode == 5, ended.err
    record = tool.stored()
    assert record["status"]["exit_code"] == 5
    assert "OOMKilled true" in record["status"]["reason"]
    assert record["system"]["image"]["digest"].startswith("sha256:")
    assert record["run_id"] == tool.run_id


def test_a_container_that_somebody_kills(tool, scripted):
    process, container = tool.start_run(said="here", image=scripted(WAITING))
    container.kill()
    process.communicate(timeout=30)
    assert process.returncode == 4
    assert "exit code 137, OOMKilled false" in tool.stored()["status"]["reason"]


def test_a_container_that_somebody_removes(tool, scripted):
    process, container = tool.start_run(said="here", image=scripted(WAITING))
    container.remove(force=True)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 4, err
    assert tool.stored()["status"]["state"] == "failed"


def test_a_container_that_ignores_signals_is_killed(tool, scripted):
    process, _ = tool.start_run(said="here", image=scripted("trap '' TERM; echo here >&2; while :; do sleep 1; done"))
    process.terminate()
    process.communicate(timeout=40)
    assert process.returncode == 7
    assert "10 s" in tool.stored()["status"]["reason"]
    assert tool.containers() == []


def test_a_paused_container_is_ended_too(tool, scripted):
    process, container = tool.start_run(said="here", image=scripted(WAITING))
    container.pause()
    process.terminate()
    process.communicate(timeout=40)
    assert process.returncode == 7
    assert tool.containers() == []


def test_a_signal_before_the_container_is_made_starts_nothing(tool, scripted, request_for_cpu, monkeypatch):
    from flagbench.runs.launchers import engine_container
    from flagbench.runs.launchers.docker import DockerLauncher
    from flagbench.runs.launchers.docker_command import DockerOptions

    connect = engine_container.open_client

    def interrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        return connect()

    monkeypatch.setattr(engine_container, "open_client", interrupted)
    result = DockerLauncher(DockerOptions(image=scripted("exit 0"))).launch(request_for_cpu)
    assert (result.exit_code, result.signalled) == (7, True)
    assert json.loads(result.record)["status"]["state"] == "interrupted"
    assert tool.containers() == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_else_is_printed_hides_no_record(tool, scripted):
    """A vendor's banner on stdout must not cost a run."""
    case = "exec /opt/flagbench/venv/bin/python3 -m flagbench_cases distilbert"
    ended = tool.run(*SHORT, image=scripted('echo a banner; %s "$@"' % case))
    assert ended.returncode == 0, ended.err
    record = tool.stored()
    assert (record["run_id"], record["status"]["state"]) == (tool.run_id, "ok")


def test_a_container_that_is_kept(tool, scripted):
    ended = tool.run("--keep-container", image=scripted("echo no record; exit 3"))
    assert ended.returncode == 3
    assert "exit code 3" in tool.stored()["status"]["reason"]
    (container,) = tool.containers()
    assert "docker rm %s" % container.name in ended.err


@pytest.mark.parametrize("ask", ["check", "launch"])
def test_an_image_that_is_not_there_says_what_to_type(ask, docker_client, request_for_cpu):
    from flagbench.errors import FlagbenchError
    from flagbench.runs.launchers.docker import DockerLauncher
    from flagbench_core.exit_codes import ExitCode

    unbuilt = replace(request_for_cpu, stack=replace(request_for_cpu.stack, name="nobody-built-this"))
    with pytest.raises(FlagbenchError) as caught:
        getattr(DockerLauncher(), ask)(unbuilt)
    assert caught.value.code is ExitCode.USAGE
    assert "flagbench/distilbert:nobody-built-this" in caught.value.message
    assert "flagbench build distilbert:nobody-built-this" in caught.value.remedy
    assert "--via native" in caught.value.remedy


def test_another_image_that_is_not_there_is_not_pulled(tool):
    ended = tool.run(image="flagbench-test/none:1")
    assert ended.returncode == 2
    assert "flagbench-test/none:1" in ended.err


def test_an_image_of_another_stack_is_refused(tool, cpu_image):
    ended = tool.run(image=cpu_image, stack="a100")
    assert ended.returncode == 2
    assert "a100-cuda11.6" in ended.err


def test_a_preparation_in_a_container(tool, docker_client, scripted, tmp_path):
    image = scripted('mkdir /out/data && echo kept >&2 && echo "$1" && exit 3')
    ended = tool.do("prepare", "distilbert:cpu", "--image", image, "-o", str(tmp_path / "out"))
    assert (ended.returncode, ended.out, "kept" in ended.err) == (3, "prepare\n", True)
    assert (tmp_path / "out" / "data").stat().st_uid == os.geteuid()
    assert docker_client.containers.list(all=True, filters={"ancestor": image}) == []


@pytest.mark.parametrize(
    "stack, device, named",
    [("a100-cuda11.6", "/dev/nvidiactl", "NVIDIA container toolkit"), ("c500-maca3", "/dev/mxcd", "/dev/mxcd")],
)
def test_devices_that_the_machine_lacks(tool, scripted, stack, device, named):
    if os.path.exists(device):
        return  # the container may then start, which is another test's to look at
    ended = tool.run(image=scripted("exit 0", stack=stack), stack=stack)
    assert ended.returncode == 13, ended.err
    assert named in ended.err
    assert tool.containers() == [], "what was made is removed"


class Relay:
    """A socket that leads to the engine's until it is cut: an engine that dies, for its clients alone."""

    def __init__(self, path, engine):
        self.path, self._engine, self._open = path, engine, []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Close everything."""
        os.unlink(self.path)
        for end in [self._server, *self._open]:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(self._engine)
            self._open += [client, engine]
            for source, target in ((client, engine), (engine, client)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    @staticmethod
    def _copy(source, target):
        try:
            while chunk := source.recv(65536):
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_an_engine_that_dies_in_the_middle_leaves_a_record(tool, docker_client, scripted, tmp_path):
    need(docker_client.api.base_url == "http+docker://localhost", "an engine with a socket of this machine")
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    relay = Relay(str(tmp_path / "engine.sock"), host.replace("unix://", ""))
    process, container = tool.start_run(said="here", image=scripted(WAITING), DOCKER_HOST="unix://%s" % relay.path)
    relay.cut()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 15, err
    assert "engine" in tool.stored()["status"]["reason"]
    assert "docker rm -f %s" % container.name in err, "the container that may be left is named"
