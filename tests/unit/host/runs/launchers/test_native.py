"""What a launcher hands to the entrypoint, and what it does where the entrypoint leaves nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import resolve_image
from flagbench.records.read import read_record
from flagbench.runs.launchers import LaunchResult
from flagbench.runs.launchers.describe import describe
from flagbench.runs.launchers.frozen import FrozenWatch
from flagbench.runs.launchers.native import NEEDED, NativeLauncher
from flagbench.runs.request import LocalOptions, RunRequest
from flagbench.system import queries
from flagbench.system.clock import elapsed
from flagbench.system.signals import Forwarding
from flagbench_core.exit_codes import ExitCode

ENTRYPOINTS = Path(__file__).parents[5] / "entrypoints"

Run = Callable[..., LaunchResult]


@pytest.fixture(scope="module")
def request_for_cpu() -> RunRequest:
    """One run of distilbert on the cpu stack."""
    return RunRequest(*resolve_image("distilbert:cpu", load_catalog()), LocalOptions(gpus=2))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_for_cpu: RunRequest) -> Run:
    """Runs lines of Python in place of `python -m flagbench_cases`; the real entrypoint is run in tests/engine."""
    for name in NEEDED:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def launch(code: str, request: RunRequest = request_for_cpu) -> LaunchResult:
        (tmp_path / "flagbench_cases" / "__main__.py").write_text(f"import json, os, signal, sys\n{code}")
        return NativeLauncher().launch(request)

    return launch


def test_arguments_are_handed_on_and_the_record_is_read(run: Run, request_for_cpu: RunRequest) -> None:
    given = LocalOptions(gpus=2, data="--full", set_=("batch_size=8",), weights="-w")
    result = run(
        "words = [os.environ['FLAGBENCH_STACK'], os.environ['FLAGBENCH_LAUNCHER'], *sys.argv[1:]]\n"
        "print('a banner')\n"
        "own = os.getsid(0) == os.getpid()  # a terminal's Ctrl-C reaches it only through this tool\n"
        "print(json.dumps({'schema': 'record/v1', 'argv': words, 'own': own, 'status': {'exit_code': 5}}))\n"
        "sys.exit(5)",
        replace(request_for_cpu, options=given),
    )
    shape = ["--nodes=1", "--gpus=2", "--preset=reference"]
    words = ["cpu", "native", "distilbert", *shape, "--data=--full", "--set=batch_size=8", "--weights=-w"]
    assert (json.loads(result.record)["argv"], json.loads(result.record)["own"]) == (words, True)
    assert result.exit_code == 5


@pytest.mark.parametrize("name", ["case", "stack"])
def test_a_changed_manifest_is_compiled_first(
    request_for_cpu: RunRequest, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("flagbench.runs.launchers.native.find_spec", lambda name: object())  # torch is installed
    entry = getattr(request_for_cpu, name)
    changed = replace(request_for_cpu, **{name: replace(entry, raw={**entry.raw, "default_seed": 7})})
    describe(changed, container=True)  # an image may have been built of them
    with pytest.raises(FlagbenchError) as caught:
        NativeLauncher().command(changed)
    assert (caught.value.code, "manifests compile" in str(caught.value.remedy)) == (ExitCode.USAGE, True)


def test_variables_are_handed_on(run: Run, request_for_cpu: RunRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    request = replace(request_for_cpu, options=LocalOptions(env=("NCCL_DEBUG=WARN",)))
    record = run("print(json.dumps({'schema': 'record/v1', 'env': os.environ['NCCL_DEBUG']}))", request).record
    assert json.loads(record)["env"] == "WARN"
    assert "NCCL_DEBUG=WARN" in NativeLauncher().command(request).split()


@pytest.mark.parametrize(
    ("ends", "state", "said", "code"),
    [
        ("sys.exit(0)", "ok", 0, 0),
        ("sys.exit(0)", "failed", 12, 12),
        ("sys.stdout.flush(); os.kill(os.getpid(), 9)", "ok", 0, 4),
    ],
)
def test_the_code_is_the_runs_and_no_failure_becomes_a_success(
    run: Run, ends: str, state: str, said: int, code: int
) -> None:
    record = {"schema": "record/v1", "status": {"state": state, "exit_code": said}}
    result = run(f"print({json.dumps(json.dumps(record))})\n{ends}")
    assert (json.loads(result.record), result.exit_code) == (record, code)


@pytest.mark.parametrize(
    ("end", "code", "named"),
    [("os.kill(os.getpid(), signal.SIGKILL)", 4, "SIGKILL"), ("sys.exit(14)", 14, "14"), ("sys.exit(0)", 4, "0")],
)
def test_a_run_that_printed_nothing_gets_a_record(run: Run, end: str, code: int, named: str) -> None:
    result = run(end)
    status = read_record(result.record).status
    assert (status.state, status.exit_code, result.exit_code) == ("failed", code, code)
    assert named in (status.reason or "")


@pytest.mark.parametrize("code", [0, 4])
def test_another_node_says_nothing(run: Run, request_for_cpu: RunRequest, code: int) -> None:
    """Which node it is may stand in the platform's environment alone, so the flag does not decide."""
    result = run(f"sys.exit({code})", replace(request_for_cpu, options=LocalOptions(nodes=2)))
    assert (result.record, result.exit_code) == (b"", code)


def test_a_signal_before_the_run_has_started_is_kept_for_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen.__init__

    def interrupted_start(self: object, *args: object, **kwargs: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(subprocess.Popen, "__init__", interrupted_start)
    monkeypatch.setattr("flagbench.runs.launchers.native.commit", lambda: None)
    result = run("signal.signal(signal.SIGTERM, lambda *a: sys.exit(7)); signal.sigwait([signal.SIGUSR1])")
    assert result.exit_code != 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_time_of_a_run_includes_sleep_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the times of day beside it do; the monotonic clock stands still then."""
    clocks = {time.CLOCK_MONOTONIC: 10.0, time.CLOCK_BOOTTIME: 7210.0}
    monkeypatch.setattr("flagbench.system.clock.time.clock_gettime", clocks.__getitem__)
    assert elapsed() == 7210.0


# Hands over once it can be signalled; each wait is for what this tool has handed on.
STOPPED = "os.kill(os.getppid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGSTOP)"
DEAF = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
for _ in range(2):
    os.kill(os.getppid(), signal.SIGINT)
    signal.sigwait([signal.SIGINT])
signal.pause()
"""


@pytest.mark.parametrize(("code", "grace"), [(STOPPED, 0.2), (DEAF, 600.0)], ids=["stopped", "deaf"])
def test_a_run_that_ignores_signals_is_killed(
    run: Run, monkeypatch: pytest.MonkeyPatch, code: str, grace: float
) -> None:
    monkeypatch.setattr("flagbench.system.signals.GRACE_SECONDS", grace)
    monkeypatch.setattr("flagbench.system.signals.AT_ONCE_SECONDS", 0.2)
    began = time.monotonic()
    result = run(code)
    assert time.monotonic() - began < 60
    status = read_record(result.record).status
    assert (result.exit_code, status.exit_code, status.state) == (7, 7, "interrupted")
    assert result.signalled


def test_a_frozen_run_is_killed_after_its_timeout(run: Run, request_for_cpu: RunRequest) -> None:
    result = run("os.kill(os.getpid(), signal.SIGSTOP)", replace(request_for_cpu, options=LocalOptions(timeout=1)))
    status = read_record(result.record).status
    assert (result.exit_code, status.exit_code, status.state) == (6, 6, "failed")
    assert not result.signalled


def test_a_run_that_continues_was_not_frozen() -> None:
    frozen = iter([True, False, True, True])
    killed: list[bool] = []
    watch = FrozenWatch(lambda: next(frozen), lambda: killed.append(True), timeout=0.0, interval=0.0)
    for _ in range(3):
        watch.look()
    assert (killed, watch.killed_after) == ([], None)
    watch.look()
    assert killed == [True]
    assert watch.killed_after is not None


def test_the_time_in_which_this_process_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z stops both processes, and `fg` an hour later continues this one first."""
    times = iter([0.0, 1.0, 3600.0, 3601.0])
    monkeypatch.setattr("flagbench.runs.launchers.frozen.time.monotonic", lambda: next(times))
    frozen = iter([False, True, True, False])
    watch = FrozenWatch(lambda: next(frozen), lambda: pytest.fail("killed"), timeout=600.0)
    for _ in range(4):
        watch.look()


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGXCPU])
def test_whatever_asks_this_tool_to_end_is_handed_on(run: Run, number: signal.Signals) -> None:
    result = run(
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])\n"
        f"os.kill(os.getppid(), {int(number)})\n"
        f"number = int(signal.sigwait([{int(number)}]))\n"
        "print(json.dumps({'schema': 'record/v1', 'number': number}))"
    )
    assert json.loads(result.record)["number"] == number


def test_a_signal_that_another_thread_receives_is_handed_on() -> None:
    """The kernel gives it to any thread; only the main one can act on it, and it may be asleep."""

    def receive() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with Forwarding() as forwarder, subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        threading.Timer(0.3, receive).start()  # the main thread is asleep by then
        signalled, overdue = forwarder.follow(child, {child.stdout: bytes}, child.send_signal, child.kill)
    assert (child.returncode, signalled, overdue) == (-signal.SIGTERM, signal.SIGTERM, None)
    assert signal.set_wakeup_fd(-1) == -1


def test_more_descriptors_than_select_takes(run: Run) -> None:
    """As a scheduler with many connections leaves them open in what it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        while not opened or opened[-1] < 1100:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        assert run("print(json.dumps({'schema': 'record/v1'}))").record == b'{"schema": "record/v1"}\n'
        assert queries.ask(["echo", "yes"]).text == "yes\n"
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_signal_that_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Forwarding():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.signal(signal.SIGHUP, before)


def test_missing_imports_of_a_case_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    lora = RunRequest(*resolve_image("llama2-7b-lora:cpu", load_catalog()))
    absent = lora.case.imports
    monkeypatch.setattr(
        "flagbench.runs.launchers.native.find_spec", lambda name: None if name in absent else real(name)
    )
    assert run("print(json.dumps({'schema': 'record/v1'}))").record == b'{"schema": "record/v1"}\n'
    with pytest.raises(FlagbenchError) as caught:
        NativeLauncher().launch(lora)
    assert all(name in caught.value.message for name in absent)
    assert ".[cases]" in caught.value.remedy
