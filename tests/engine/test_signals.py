"""Signals as containers and clusters send them: to all processes of a run at once, or to the first one alone."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time

import pytest

from flagbench_cases.shared import processes
from running import ENDLESS, CaseRun, alive, free_port, handles, need, wait_until

pytestmark = [pytest.mark.image, pytest.mark.old_torch]

COMMAND = [sys.executable, "-m", "flagbench_cases", "distilbert"]
# How long `docker stop` waits before it kills.
STOP_SECONDS = 10.0


# A start of the case that gets SIGTERM at its first import of anything but what notes signals, with its packages.
STOPPED_AT_ONCE = """
import os, runpy, signal, sys, types, typing

class Stop:
    def find_spec(self, name, path=None, target=None):
        first = ("flagbench_cases", "flagbench_cases.__main__", "flagbench_cases.shared")
        if name not in (*first, "flagbench_cases.shared.interruption"):
            sys.meta_path.remove(self)
            sys.stderr.write("stopped at the import of %s\\n" % name)
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Stop())
runpy.run_module("flagbench_cases", run_name="__main__", alter_sys=True)
"""


def everyone(run):
    """Every process of a run: the parent, its sampler, the ranks, the host of their store."""
    return processes.descendants(run.process.pid) | {run.process.pid}


def send(pid, number):
    """A signal for a process of a run, unless it has ended since, as the others have."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def stopped(run, phase="train"):
    """The record of a run that has got SIGTERM, and ends in time."""
    sent = time.monotonic()
    ended = run.wait(30)
    assert time.monotonic() - sent < STOP_SECONDS
    return ended.failed(7, phase, "interrupted by SIGTERM")


def test_sigterm_to_every_process_at_once(tmp_path):
    """The parent gets it last, when the others end already."""
    run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS])
    run.wait_for_steps(2, steps=30)
    pids = everyone(run)
    assert len(pids) >= 4, "parent, sampler, ranks"
    for pid in sorted(pids, key=lambda pid: pid == run.process.pid):
        send(pid, signal.SIGTERM)
    record = stopped(run)
    assert record["window"]["steps"] >= 1, "what was measured is kept"
    assert record["telemetry"] is not None
    assert not any(alive(pid) for pid in pids)


def test_sigterm_to_the_parent_alone(tmp_path):
    """`docker stop`, with tini or without: sampler and ranks are in sessions of their own."""
    log = tmp_path / "termination-log"
    run = CaseRun(tmp_path, ENDLESS, isolated=False, env={"FLAGBENCH_TERMINATION_LOG": str(log)})
    run.wait_for_steps(1, steps=30)
    run.process.terminate()
    record, message = stopped(run), json.loads(log.read_text())
    assert (message["state"], message["exit_code"]) == ("interrupted", 7)
    assert (message["reason"], message["record_id"]) == ("interrupted by SIGTERM", record["record_id"])
    p_core = next(metric["value"] for metric in record["metrics"] if metric["name"] == "p_core")
    assert (message["gate"]["name"], message["gate"]["value"]) == ("p_core", p_core)


def test_sigterm_before_the_ranks_have_begun(tmp_path):
    run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS])
    wait_until(lambda: len(everyone(run)) >= 4, 30)  # the sampler and the ranks, which import torch
    for pid in everyone(run):
        send(pid, signal.SIGTERM)
    stopped(run, "launch")


def test_sigterm_while_the_package_is_being_imported(tmp_path):
    """The earliest `docker stop`: nothing is there yet but the interpreter and what notes signals."""
    run = CaseRun(tmp_path, ENDLESS, command=[sys.executable, "-c", STOPPED_AT_ONCE, "distilbert"])
    ended = run.wait(30)
    ended.failed(7, "launch", "interrupted by SIGTERM")
    assert ended.stderr.startswith("stopped at the import of flagbench_cases."), "before any other import of ours"


def test_sigterm_as_the_first_process_of_its_namespace(tmp_path):
    """Without tini: the kernel gives process 1 no signal that it has no handler for."""
    need(os.geteuid() == 0, "root, for a namespace of processes")
    run = CaseRun(tmp_path, ENDLESS, command=["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *COMMAND])
    run.wait_for_steps(1, steps=30)
    with open("/proc/%d/task/%d/children" % (run.process.pid, run.process.pid)) as file:
        (first,) = file.read().split()
    os.kill(int(first), signal.SIGTERM)
    sent = time.monotonic()
    ended = run.wait(30)
    assert time.monotonic() - sent < STOP_SECONDS
    assert (ended.code, ended.status["reason"]) == (7, "interrupted by SIGTERM")


def test_sigterm_through_tini(tmp_path):
    """`tini -g` gives the signal to the group of its child, which is the parent of the ranks alone."""
    tini = shutil.which("tini")
    need(tini is not None, "tini")
    command = [tini, "-s", "-g", "--", *COMMAND]
    run = CaseRun(tmp_path, ["--gpus", "2", *ENDLESS], isolated=False, command=command)
    run.wait_for_steps(2, steps=30)
    run.process.terminate()
    stopped(run)


def test_another_node_leaves_a_termination_message_too(tmp_path):
    log = tmp_path / "termination-log"
    job = ["--preset", "tiny", "--nodes", "2", "--master", "no-such-node.invalid:29400"]
    run = CaseRun(tmp_path, job, env={"FLAGBENCH_TERMINATION_LOG": str(log), "JOB_COMPLETION_INDEX": "1"})
    wait_until(lambda: handles(run.process.pid, signal.SIGTERM), 30)
    run.process.terminate()
    ended = run.wait(30)
    assert (ended.code, ended.lines) == (7, [])
    message = json.loads(log.read_text())
    assert (message["state"], message["exit_code"], message["record_id"]) == ("interrupted", 7, None)


ASKING = [
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGXCPU,
    signal.SIGABRT,
]


@pytest.mark.parametrize("number", [*ASKING, signal.SIGRTMIN + 3])
def test_every_signal_that_would_end_the_process_leaves_a_record(tmp_path, number):
    """While node 0 waits for its own name, which costs no start of torch."""
    nowhere = "no-such-node.invalid:%d" % free_port()  # its own: node 0 listens, and other tests run beside
    job = ["--preset", "tiny", "--nodes", "2", "--node-rank", "0", "--master", nowhere]
    run = CaseRun(tmp_path, job)
    wait_until(lambda: os.listdir(str(tmp_path)) or run.process.poll() is not None, 60)
    run.process.send_signal(number)
    run.wait(30).failed(7, "launch")
    assert os.listdir(str(tmp_path)) == []


def test_a_second_signal_ends_everything_and_keeps_the_record(tmp_path):
    """Even where no process of the run follows the first one."""
    run = CaseRun(tmp_path, ENDLESS)
    run.wait_for_steps(1, steps=30)
    pids = everyone(run)
    for pid in pids - {run.process.pid}:
        send(pid, signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    # The first one has been noted once the ranks are told to end.
    wait_until(lambda: all(pending(pid, signal.SIGTERM) for pid in pids - {run.process.pid}), 10)
    sent = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    record = run.wait(30).failed(7, "train")
    assert record["window"]["steps"] >= 1, "what was measured is kept"
    assert time.monotonic() - sent < STOP_SECONDS
    assert not any(alive(pid) for pid in pids)


def pending(pid, number):
    """Whether a signal waits for a process, which is stopped; also where that has been killed since."""
    try:
        with open("/proc/%d/status" % pid) as file:
            mask = next(line.split()[1] for line in file if line.startswith("ShdPnd"))
    except OSError:
        return True
    return bool(int(mask, 16) >> (number - 1) & 1) or not alive(pid)
