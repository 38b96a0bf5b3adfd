"""What a launcher hands to the entrypoint, and what it does where the entrypoint leaves nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.lookup import resolve_image
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.fallback import record_of_killed
from flagbench.launchers.native import NEEDED, NativeLauncher
from flagbench.record.read import read_record
from flagbench.request import LocalOptions, RunRequest

ENTRYPOINTS = Path(__file__).parents[3] / "entrypoints"


@pytest.fixture(scope="module")
def request_for_cpu() -> RunRequest:
    """One run of distilbert on the cpu stack."""
    return RunRequest(*resolve_image("distilbert:cpu", load_catalog()), LocalOptions(gpus=2))


def with_options(request: RunRequest, **options: object) -> RunRequest:
    return RunRequest(request.case, request.stack, LocalOptions(**options))  # type: ignore[arg-type]


def test_only_what_was_asked_for_is_handed_on(request_for_cpu: RunRequest) -> None:
    assert request_for_cpu.arguments() == ["distilbert", "--nodes=1", "--gpus=2"]


def test_a_value_that_looks_like_an_option_stays_a_value() -> None:
    words = LocalOptions(data="--full", set_=("batch_size=-1", "--describe"), out="-x").words()
    assert "--data=--full" in words
    assert "--out=-x" in words
    assert {"--set=batch_size=-1", "--set=--describe"} <= set(words)
    assert "--full" not in words


def test_the_record_of_a_killed_run_is_valid(request_for_cpu: RunRequest) -> None:
    killed = FlagbenchError("it was killed", remedy="look at the log", code=ExitCode.OUT_OF_MEMORY)
    record = read_record(record_of_killed(request_for_cpu, killed))
    assert (record.status.state, record.status.exit_code) == ("failed", 5)
    assert record.metrics == ()


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Makes `python -m flagbench_cases` run a line of one's own; the real entrypoint is run in tests/engine."""

    def write(code: str) -> None:
        for name in NEEDED:
            package = tmp_path / name
            package.mkdir(exist_ok=True)
            (package / "__init__.py").write_text("")
        (tmp_path / "flagbench_cases" / "__main__.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return write


def test_what_was_printed_is_the_record(stand_in, request_for_cpu: RunRequest) -> None:  # type: ignore[no-untyped-def]
    stand_in(
        "import json, os, sys\n"
        "words = [os.environ['FLAGBENCH_STACK'], *sys.argv[1:]]\n"
        "print('a banner')\n"
        "print(json.dumps({'schema': 'record/v1', 'argv': words, 'status': {'exit_code': 5}}))\n"
        "sys.exit(5)"
    )
    result = NativeLauncher().launch(request_for_cpu)
    assert json.loads(result.record)["argv"] == ["cpu", "distilbert", "--nodes=1", "--gpus=2"]
    assert result.exit_code == 5


@pytest.mark.parametrize(
    ("ends", "state", "said", "code"),
    [
        ("sys.exit(0)", "ok", 0, 0),
        ("sys.exit(12)", "failed", 12, 12),
        ("sys.exit(14)", "ok", 0, 14),
        ("sys.exit(0)", "failed", 12, 12),
        ("sys.exit(0)", "failed", 0, 4),
        ("sys.exit(120)", "failed", 3, 3),
        ("sys.exit(120)", "ok", 0, 4),
        ("sys.stdout.flush(); os.kill(os.getpid(), 9)", "ok", 0, 4),
        ("sys.stdout.flush(); os.kill(os.getpid(), 9)", "interrupted", 7, 7),
    ],
)
def test_the_code_is_the_runs_and_no_failure_becomes_a_success(
    stand_in,  # type: ignore[no-untyped-def]
    request_for_cpu: RunRequest,
    ends: str,
    state: str,
    said: int,
    code: int,
) -> None:
    record = {"schema": "record/v1", "status": {"state": state, "exit_code": said}}
    stand_in(f"import os, sys\nprint({json.dumps(json.dumps(record))})\n{ends}")
    result = NativeLauncher().launch(request_for_cpu)
    assert (json.loads(result.record), result.exit_code) == (record, code)


def test_a_run_that_died_without_a_word_gets_a_record(stand_in, request_for_cpu: RunRequest) -> None:  # type: ignore[no-untyped-def]
    stand_in("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    result = NativeLauncher().launch(request_for_cpu)
    record = read_record(result.record)
    assert (record.status.exit_code, result.exit_code) == (4, 4)
    assert "SIGKILL" in (record.status.reason or "")


@pytest.mark.parametrize("code", [0, 2, 4])
def test_another_node_says_nothing(stand_in, request_for_cpu: RunRequest, code: int) -> None:  # type: ignore[no-untyped-def]
    """Which node it is may stand in the platform's environment alone, so the flag does not decide."""
    stand_in(f"import sys; sys.exit({code})")
    second = with_options(request_for_cpu, nodes=2, gpus=1)
    result = NativeLauncher().launch(second)
    assert (result.record, result.exit_code) == (b"", code)


def test_a_code_that_says_more_than_that_a_rank_failed_is_kept(stand_in, request_for_cpu: RunRequest) -> None:  # type: ignore[no-untyped-def]
    stand_in("import sys; sys.exit(14)")
    result = NativeLauncher().launch(request_for_cpu)
    assert result.exit_code == read_record(result.record).status.exit_code == 14


def test_a_signal_before_the_run_has_started_is_kept_for_it(
    stand_in,  # type: ignore[no-untyped-def]
    request_for_cpu: RunRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in(
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *a: sys.exit(7)); signal.sigwait([signal.SIGUSR1])"
    )
    real = subprocess.Popen.__init__

    def interrupted_start(self: object, *args: object, **kwargs: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(subprocess.Popen, "__init__", interrupted_start)
    monkeypatch.setattr("flagbench.launchers.native.commit", lambda: None)
    result = NativeLauncher().launch(request_for_cpu)
    assert result.exit_code != 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# Hands over once it can be signalled; each wait is for what this tool has handed on.
STOPPED = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); os.kill(os.getpid(), signal.SIGSTOP)"
DEAF = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
for _ in range(2):
    os.kill(os.getppid(), signal.SIGINT)
    signal.sigwait([signal.SIGINT])
signal.pause()
"""


def test_a_stopped_run_is_killed_after_the_grace(stand_in, request_for_cpu: RunRequest) -> None:  # type: ignore[no-untyped-def]
    stand_in(STOPPED)
    result = NativeLauncher(grace=0.2).launch(request_for_cpu)
    status = read_record(result.record).status
    assert (result.exit_code, status.exit_code, status.state) == (7, 7, "interrupted")


def test_a_second_signal_ends_a_run_that_does_not_follow_the_first(
    stand_in,  # type: ignore[no-untyped-def]
    request_for_cpu: RunRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flagbench.launchers.signals.AT_ONCE_SECONDS", 0.2)
    stand_in(DEAF)
    began = time.monotonic()
    result = NativeLauncher(grace=600.0).launch(request_for_cpu)
    assert time.monotonic() - began < 60
    assert (result.exit_code, read_record(result.record).status.state) == (7, "interrupted")


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGUSR1, signal.SIGHUP, signal.SIGXCPU])
def test_whatever_asks_this_tool_to_end_is_handed_on(
    stand_in,  # type: ignore[no-untyped-def]
    request_for_cpu: RunRequest,
    number: signal.Signals,
) -> None:
    stand_in(
        "import os, signal\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])\n"
        f"os.kill(os.getppid(), {int(number)})\n"
        f"number = int(signal.sigwait([{int(number)}]))\n"
        'print(\'{"schema": "record/v1", "number": %d}\' % number)\n'
    )
    assert json.loads(NativeLauncher().launch(request_for_cpu).record)["number"] == number


def test_what_a_native_run_needs_is_named(monkeypatch: pytest.MonkeyPatch, request_for_cpu: RunRequest) -> None:
    monkeypatch.setattr("flagbench.launchers.native.find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(FlagbenchError) as caught:
        NativeLauncher().launch(request_for_cpu)
    assert "torch" in caught.value.message
    assert "flagbench[cases]" in caught.value.remedy


def test_what_one_case_imports_another_does_not_need(
    monkeypatch: pytest.MonkeyPatch,
    stand_in,  # type: ignore[no-untyped-def]
    request_for_cpu: RunRequest,
) -> None:
    stand_in('print(\'{"schema": "record/v1"}\')')
    real = importlib.util.find_spec
    lora = RunRequest(*resolve_image("llama2-7b-lora:cpu", load_catalog()))
    absent = lora.case.raw["imports"]
    monkeypatch.setattr("flagbench.launchers.native.find_spec", lambda name: None if name in absent else real(name))
    assert NativeLauncher().launch(request_for_cpu).record == b'{"schema": "record/v1"}\n'
    with pytest.raises(FlagbenchError) as caught:
        NativeLauncher().launch(lora)
    assert all(name in caught.value.message for name in absent)


def test_both_packages_number_their_exit_codes_alike() -> None:
    """They never import each other, so the numbers stand in both; only a test may look at both."""
    namespace: dict[str, object] = {}
    source = (ENTRYPOINTS / "flagbench_cases" / "shared" / "errors.py").read_text(encoding="utf-8")
    exec(compile(source, "errors.py", "exec"), namespace)
    image_side = namespace["ExitCode"]
    host_side = {code.name: int(code) for code in ExitCode}
    assert all(host_side[code.name] == int(code) for code in image_side)  # type: ignore[attr-defined]
