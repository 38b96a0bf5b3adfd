"""Two nodes: as two processes, and as two network namespaces with a wire between them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from faults import fault
from flagbench_cases.cases import distilbert
from running import ENDLESS, CaseRun, alive, free_port, need, need_megatron, wait_until

pytestmark = pytest.mark.image

SHORT = ["--preset", "tiny", "--data", "synthetic", "--steps", "20"]
GOLDEN = Path(__file__).parents[1] / "golden"


# From the next step on the loss of a rank is NaN, while its gradients are not.
NAN = """
import flagbench_cases.cases.distilbert.workload as w
w.DistilBertWorkload.step = lambda self, batch, real=w.DistilBertWorkload.step: real(self, batch) * float("nan")
"""


class Nodes:
    """Both nodes of a job, each with a folder of its own."""

    def __init__(self, folder, arguments, other=None, case="distilbert"):
        self.runs = []
        self.folder = folder
        self.case = case
        self.master = "127.0.0.1:%d" % free_port()
        self.arguments = [arguments, arguments if other is None else other]

    def start(self, rank, **options):
        place = self.folder / ("node-%d-%d" % (rank, len(self.runs)))
        place.mkdir()
        job = ["--nodes", "2", "--gpus", "1"]
        if "env" not in options:
            job += ["--node-rank", str(rank), "--master", self.master]
        run = CaseRun(place, job + self.arguments[rank], isolated=False, case=self.case, **options)
        self.runs.append(run)
        return run

    def both(self, steps=0):
        """Both are started, and have trained so many steps."""
        runs = self.start(0), self.start(1)
        for run in runs if steps else ():
            run.wait_for_steps(1, steps=steps)
        return runs


def check_job(first, second, steps=30, case="distilbert"):
    """The record of node 0, which speaks for the job; node 1 says nothing, and both end well."""
    ended, other = first.wait(), second.wait()
    assert (ended.code, other.code, other.lines) == (0, 0, []), (ended.stderr, other.stderr)
    record = ended.ok(case)
    assert record["system"]["nodes"] == record["conditions"]["nodes"] == 2
    assert [(rank["rank"], rank["node"], rank["steps"]) for rank in record["ranks"]] == [(0, 0, steps), (1, 1, steps)]
    return record


def golden(case):
    return json.loads((GOLDEN / ("%s_losses.json" % case.replace("-", "_"))).read_text())


def test_one_model_across_both_nodes(tmp_path):
    """Every layer is split over them; node 0 alone counts, and has the loss of the whole."""
    need_megatron()
    arguments = ["--preset", "tiny", "--precision", "fp32", "--set", "tp=2"]
    record = check_job(*Nodes(tmp_path, arguments, case="aquila-33b").both(), steps=64, case="aquila-33b")
    assert (record["conditions"]["layout"], record["work"]["samples_executed"]) == ("dp1 tp2 pp1", 64)
    found = {metric["name"]: metric["value"] for metric in record["metrics"]}
    assert found["loss"] == pytest.approx(golden("aquila-33b")["losses"][-1], abs=5e-5)


def test_stages_on_two_nodes_train_one_model(tmp_path):
    """The loss is that of node 1, the work that of node 0, the record node 0's."""
    need_megatron()
    arguments = ["--preset", "tiny", "--precision", "fp32", "--set", "pp=2", "--steps", "5"]
    record = check_job(*Nodes(tmp_path, arguments, case="llama2-70b").both(), steps=10, case="llama2-70b")
    assert (record["conditions"]["layout"], record["work"]["samples_executed"]) == ("dp1 tp1 pp2", 10 * 8)
    losses = [loss for _, loss in record["quality"]["loss_curve"]]
    assert losses == pytest.approx(golden("llama2-70b")["losses"], abs=5e-5)


@pytest.mark.old_torch
def test_worker_first_and_the_environment_of_kubernetes(tmp_path):
    """Node 1 starts first; rank and master come from an Indexed Job's environment, RANK would mislead."""
    nodes = Nodes(tmp_path, [*SHORT, "--run-id", "two"])
    env = {"FLAGBENCH_MASTER": nodes.master, "RANK": "7", "WORLD_SIZE": "99"}
    second = nodes.start(1, env=dict(env, JOB_COMPLETION_INDEX="1"))
    wait_until(lambda: any(name.startswith("flagbench-") for name in os.listdir(second.folder)), 30)
    record = check_job(nodes.start(0, env=dict(env, JOB_COMPLETION_INDEX="0")), second)
    assert record["run_id"] == "two"
    samples = 30 * 2 * record["config"]["train"]["batch_size"]
    assert record["work"]["samples_executed"] == samples, "both nodes' samples count"


def check_failed(first, second, code, phase, *words):
    """Both nodes end with that code, long before torch gives up, and the job's record has the cause."""
    ended, other = first.wait(), second.wait()
    assert (ended.code, other.code, other.lines) == (code, code, []), (ended.stderr, other.stderr)
    ended.failed(code, phase, *words)
    return other


def test_different_arguments_are_refused(tmp_path):
    other = check_failed(*Nodes(tmp_path, SHORT, [*SHORT, "--seed", "1"]).both(), 2, "launch", "seed")
    assert "seed" in other.stderr, "every node knows why"


SYNTHETIC, NOWHERE = (["--preset", "tiny", "--data", data] for data in ("synthetic", "/nowhere"))


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        ([*SYNTHETIC, "--no-such-option"], 2, ["node 1", "--no-such-option"]),
        (NOWHERE, 3, ["node 1", "/nowhere"]),
    ],
)
def test_a_node_that_fails_before_it_joins_is_the_cause(tmp_path, arguments, code, words):
    """All end, and nobody waits."""
    check_failed(*Nodes(tmp_path, SYNTHETIC, arguments).both(), code, None, *words)


def test_node_0_ends_before_another_node_that_failed_first(tmp_path):
    """A cluster deletes node 0's pod, and the record in its log, once another pod has failed while it still runs."""
    first, second = Nodes(tmp_path, ENDLESS, [*ENDLESS, "--max-minutes", "0.05"]).both()
    assert second.process.wait(120) == 6
    assert first.process.poll() == 6
    first.wait().failed(6, None, "node 1")


def test_missing_files_on_node_1_are_the_jobs_exit_code(tmp_path):
    """The folder is there; what is missing in it a rank finds out, while the rank of node 0 waits for it."""
    files, empty = os.path.join(os.path.dirname(distilbert.__file__), "tiny"), tmp_path / "empty"
    empty.mkdir()
    nodes = Nodes(tmp_path, *(["--preset", "tiny", "--data", str(folder)] for folder in (files, empty)))
    check_failed(*nodes.both(), 3, "data", "node 1", str(empty))


@pytest.mark.old_torch
def test_a_killed_rank_of_another_node_is_named(tmp_path):
    first, second = Nodes(tmp_path, ENDLESS).both(steps=3)
    os.kill(second.pids()[0], signal.SIGKILL)
    check_failed(first, second, 4, None, "node 1", "rank 1", "SIGKILL")


def test_a_killed_node_is_named_though_sigterm_comes_first(tmp_path):
    """As a cluster's controller does it: it ends node 0 before node 0 has noticed that node 1 is gone."""
    first, second = Nodes(tmp_path, ENDLESS).both()
    first.wait_for_steps(1)
    os.kill(first.process.pid, signal.SIGSTOP)
    second.process.kill()
    second.process.communicate()
    first.process.terminate()
    os.kill(first.process.pid, signal.SIGCONT)
    ended = first.wait(60)
    ended.failed(4, None, "node 1")


@pytest.mark.parametrize(
    ("at", "action", "code", "words"),
    [
        ("start", "os._exit(0)", 4, "rank 1 ended with exit 0 on node 1"),
        (30, NAN, 12, "rank 1: the loss of step 30 is nan"),
    ],
)
def test_a_rank_of_another_node_that_ends_early_ends_both(tmp_path, at, action, code, words):
    """Whatever its exit code, and before the ranks have met as well; the job's record names it."""
    nodes = Nodes(tmp_path, ENDLESS)
    env = {"FLAGBENCH_MASTER": nodes.master, "FLAGBENCH_NODE_RANK": "1"}
    second = nodes.start(1, env=dict(env, **fault(tmp_path, 1, at, action)))
    first = nodes.start(0)
    check_failed(first, second, code, None, words)


@pytest.mark.old_torch
def test_paused_node_is_found_within_the_timeout(tmp_path):
    first, second = Nodes(tmp_path, ["--timeout", "5", *ENDLESS]).both(steps=3)
    pids = second.pids()
    for pid in [second.process.pid, *pids]:
        os.kill(pid, signal.SIGSTOP)
    ended = first.wait(60)
    assert (ended.code, ended.status["exit_code"]) == (6, 6)
    second.process.kill()
    second.process.communicate()
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)


@pytest.fixture
def namespaces():
    """Two network namespaces with a wire between them: their names and addresses."""
    need(os.geteuid() == 0 and shutil.which("ip") is not None, "root and iproute2, for network namespaces")
    tag = uuid.uuid4().hex[:6]
    names, wires = ["fb-%s-%d" % (tag, i) for i in range(2)], ["fb%s%d" % (tag, i) for i in range(2)]
    addresses = ["10.199.7.%d" % (i + 1) for i in range(2)]

    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", wires[0], "type", "veth", "peer", "name", wires[1])
        for name, wire, address in zip(names, wires, addresses):
            ip("link", "set", wire, "netns", name)
            ip("-n", name, "addr", "add", address + "/24", "dev", wire)
            ip("-n", name, "link", "set", wire, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield list(zip(names, addresses))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


@pytest.mark.long
def test_two_namespaces(tmp_path, namespaces):
    """The host's own name leads nowhere here: the ranks must find each other by the route to node 0."""
    port = free_port()
    runs = []
    for rank, (name, _) in enumerate(namespaces):
        place = tmp_path / name
        place.mkdir()
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "flagbench_cases", "distilbert"]
        job = ["--nodes", "2", "--gpus", "1", "--node-rank", str(rank)]
        job += ["--master", "%s:%d" % (namespaces[0][1], port)]
        runs.append(CaseRun(place, job + SHORT, command=command))
    check_job(*runs)
