"""The entry point: one record on stdout for any arguments, and no secrets in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flagbench_cases.node import cli, main, request, supervisor
from flagbench_cases.record import evidence
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.interruption import Interruption
from flagbench_cases.shared.redaction import redact
from flagbench_core import config
from flagbench_core.exit_codes import ExitCode
from running import free_port

pytestmark = pytest.mark.image


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("s3://key:secret@bucket/path", "s3://bucket/path"),
        ("--store=s3://key:secret@bucket", "--store=s3://bucket"),
        ("https://token@host/x", "https://host/x"),
        ("s3://key:p@ss@bucket", "s3://bucket"),
        ("https://host/x?X-Amz-Signature=abc&sig=d", "https://host/x"),
        ("file:///a/user@host/b", "file:///a/user@host/b"),
        ("--set=learning_rate=hf_abcdefghijklmnopqrstuvwxyz", "--set=learning_rate=***"),
        ("--master=u:hunter2@node-0:29400", "--master=***@node-0:29400"),
        ("HF_TOKEN=x", "HF_TOKEN=***"),
    ],
)
def test_credentials_of_an_url_are_not_recorded(argument: str, shown: str) -> None:
    assert redact(argument) == shown


def run(*arguments: str | bytes, **variables: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "flagbench_cases", *arguments]
    env = {key: value for key, value in os.environ.items() if not key.startswith("FLAGBENCH_")}
    env.update(variables)
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("distilbert", "--nodes", "0"),
        ("distilbert", "--preset=tiny", "--nodes", "2"),
        ("distilbert", "--preset=tiny", "--set", "momentum=1"),
        ("distilbert", "--preset=tiny", "--store", "ftp://host/x"),
        ("distilbert", "--preset=tiny", "--data", "s3://bucket/sst2"),
        ("roofs", "--preset=tiny", "--set", "laps=3", "--full"),
        ("distilbert", "--preset=tiny", "--resume", "/tmp"),
        (b"\xff\xfe", "--no-such"),
        ("distilbert", "--preset=tiny", "--nodes=2", "--node-rank", "9" * 5000),
        ("distilbert", "--preset=tiny", "--gpus", str(4 * len(os.sched_getaffinity(0)) + 1)),
    ],
)
def test_a_usage_error_leaves_one_record_and_no_traceback(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == ExitCode.USAGE
    (line,) = done.stdout.decode("utf-8").splitlines()
    made = json.loads(line)
    assert made["status"]["state"] == "failed"
    assert made["status"]["phase"] == "usage"
    assert made["status"]["exit_code"] == 2
    assert b"Traceback" not in done.stderr
    assert done.stderr.startswith(b"error: ")
    assert b"\nfix: " in done.stderr


def test_the_layout_of_another_node_can_be_described() -> None:
    done = run("llama3-8b", "--preset=tiny", "--gpus", "64", "--set", "tp=4", "--describe")
    assert (done.returncode, json.loads(done.stdout)["config"]["gpus"]) == (ExitCode.OK, 64)


@pytest.mark.parametrize("wrong", ["--no-such-option", "--set=momentum=1"])
def test_the_first_node_alone_prints_a_usage_error(wrong: str, tmp_path: Path) -> None:
    master = "127.0.0.1:%d" % free_port()

    def node(index: int) -> int:
        message = tmp_path / ("message-%d" % index)
        variables = {"JOB_COMPLETION_INDEX": str(index), "FLAGBENCH_TERMINATION_LOG": str(message)}
        done = run("distilbert", "--preset=tiny", "--nodes=2", wrong, FLAGBENCH_MASTER=master, **variables)
        assert done.returncode == json.loads(message.read_text())["exit_code"] == ExitCode.USAGE
        assert b"error: " in done.stderr
        return len(done.stdout.splitlines())

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(node, range(2))) == [1, 0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("distilbert", "--stroe", "s3://AKIA:HIDDEN@bucket", "--token=SECRET"),
        ("distilbert", "--preset=tiny", "--data", "s3://AKIA:HIDDEN@bucket/sst2"),
    ],
)
def test_a_misplaced_secret_is_not_shown(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == ExitCode.USAGE
    assert b"HIDDEN" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ((), ExitCode.DATA, "/nonexistent has no checkpoint"),
        (("--set", "engine=deepspeed"), ExitCode.USAGE, "--resume: the deepspeed engine"),
    ],
)
def test_a_checkpoint_that_cannot_be_used(settings: tuple[str, ...], code: ExitCode, words: str) -> None:
    done = run("llama2-7b-lora", "--preset", "tiny", "--resume", "/nonexistent", *settings)
    assert done.returncode == code
    status = json.loads(done.stdout)["status"]
    assert status["phase"] == "usage"
    assert words in status["reason"]


@pytest.mark.parametrize(
    ("words", "stack", "preset"),
    [
        (["distilbert"], "cpu", None),
        (["distilbert", "--steps=5"], "cpu", None),
        (["distilbert", "--preset=reference"], "cpu", "reference"),
        (["distilbert", "--describe"], "cpu", "reference"),
        (["roofs"], "cpu", "reference"),
        (["distilbert"], "a100-cuda11.6", "reference"),
    ],
)
def test_the_published_size_is_asked_for_on_a_processor(
    words: list[str], stack: str, preset: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAGBENCH_STACK", stack)
    if preset is None:
        with pytest.raises(UsageError) as caught:
            request.resolve(cli.parse(words), request.unresolved([], None))
        assert "--preset tiny" in caught.value.remedy
    else:
        found = request.resolve(cli.parse(words), request.unresolved([], None)).request
        assert found.config is not None
        assert found.config["preset"] == found.preset == preset


@pytest.mark.parametrize(("limit", "records"), [(6, 0), (10, 1), (12, 1)])
def test_without_a_free_descriptor_the_limit_is_named(limit: int, records: int, tmp_path: Path) -> None:
    """From a limit that not even the request can be read with, to one that the ranks could not start with."""
    command = [sys.executable, "-m", "flagbench_cases", "distilbert", "--preset", "tiny", "--steps", "1"]
    env = dict(os.environ, TMPDIR=str(tmp_path))
    script = 'ulimit -n "$1"; shift; exec "$@"'
    arguments = ["sh", "-c", script, "sh", str(limit), *command]
    done = subprocess.run(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == ExitCode.RANK_FAILED
    assert "ulimit -n is %d" % limit in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
    assert len(done.stdout.splitlines()) == records
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("word", "code"), [("--help", ExitCode.OK), ("--nosuch", ExitCode.USAGE)])
def test_pythoninspect_changes_no_exit_code(word: str, code: ExitCode) -> None:
    done = run("distilbert", word, PYTHONINSPECT="1")
    assert done.returncode == code
    assert "Traceback" not in done.stderr.decode()


def test_a_missing_module_is_no_bug(tmp_path: Path) -> None:
    (tmp_path / "psutil.py").write_text("raise ModuleNotFoundError('no psutil', name='psutil')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run("distilbert", "--preset", "tiny", "--steps", "1", PYTHONPATH=path)
    assert done.returncode == ExitCode.USAGE
    assert json.loads(done.stdout)["status"]["reason"].startswith("psutil is not installed in this Python")
    assert "Traceback" not in done.stderr.decode()


def test_help_beside_a_mistake_is_a_usage_error_too() -> None:
    done = run("distilbert", "--nodes", "0", "--help")
    assert done.returncode == ExitCode.USAGE
    assert b"Traceback" not in done.stderr
    assert done.stderr.startswith(b"error: ")
    assert run("--help").returncode == 0


def test_describe_runs_nothing() -> None:
    done = run("distilbert", "--preset", "tiny", "--describe")
    assert done.returncode == 0
    described = json.loads(done.stdout)
    assert described["stack"] == "cpu"
    assert described["config"]["preset"] == "tiny"
    assert described["config_digest"] == config.digest(described["config"])


def test_a_second_signal_keeps_what_was_gathered() -> None:
    argv = ["distilbert", "--preset", "tiny", "--data", "synthetic", "--steps", "1"]
    attempt = main.Attempt(argv, 1, False, Interruption())
    attempt.request, place = request.resolve(cli.parse(argv), attempt.request)[:2]
    config = attempt.request.config
    limits = supervisor.Limits(1.0, None)
    attempt.running = supervisor.Run(config, attempt.request.stack, place, limits, Interruption())
    gathered = attempt.evidence = evidence.NOTHING._replace(steps={0: []})
    attempt.running.remove_spool()
    assert attempt.abort().exit_code == ExitCode.INTERRUPTED
    assert attempt.evidence is gathered


def test_roofs_take_a_sixth_of_their_case() -> None:
    words = ["--preset", "tiny", "--roofs"]
    found = request.resolve(cli.parse(["distilbert", *words]), request.unresolved([], None)).request.roofs
    assert found is not None
    assert found["measure"]["seconds"] == 2
    assert (found["case"], found["precision"]) == ("roofs", "fp32")
    with pytest.raises(UsageError):
        request.resolve(cli.parse(["roofs", *words]), request.unresolved([], None))
