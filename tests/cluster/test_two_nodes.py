"""Two nodes: as two processes, and as two network namespaces with a wire between them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import jsonschema
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

    def __init__(self, folder, arguments, other=None):
        self.runs = []
        self.folder = folder
        self.master = "127.0.0.1:%d" % free_port()
        self.arguments = [arguments, arguments if other is None else other]

    def start(self, rank, **options):
        place = self.folder / ("node-%d-%d" % (rank, len(self.runs)))
        place.mkdir()
        job = ["--nodes", "2", "--gpus", "1"]
        if "env" not in options:
            job += ["--node-rank", str(rank), "--master", self.master]
        run = CaseRun(place, job + self.arguments[rank], isolated=False, **options)
        self.runs.append(run)
        return run


def check_job(first, second, schema):
    """Node 0 speaks for the job, node 1 says nothing; both end well."""
    record = first.record
    jsonschema.Draft202012Validator(schema).validate(record)
    assert (first.code, second.code) == (0, 0), (first.stderr, second.stderr)
    assert second.lines == [], "node 1 prints nothing on stdout"
    assert record["status"]["state"] == "ok"
    assert record["system"]["nodes"] == 2
    assert [(rank["rank"], rank["node"]) for rank in record["ranks"]] == [(0, 0), (1, 1)]
    assert {rank["steps"] for rank in record["ranks"]} == {30}
    assert record["work"]["samples_executed"] == 30 * 2 * record["config"]["train"]["batch_size"], (
        "both nodes' samples count"
    )
    assert all(check["ok"] for check in record["quality"]["checks"])
    return record


def test_two_processes(tmp_path, record_schema):
    nodes = Nodes(tmp_path, [*SHORT, "--run-id", "two"])
    first, second = nodes.start(0), nodes.start(1)
    record = check_job(first.wait(), second.wait(), record_schema)
    assert record["run_id"] == "two"


def test_one_model_across_both_nodes(tmp_path, record_schema):
    """Every layer is split over them; node 0 alone counts, and has the loss of the whole."""
    need_megatron()
    nodes = Nodes(tmp_path, ["--preset", "tiny", "--precision", "fp32", "--set", "tp=2"])
    command = [sys.executable, "-m", "flagbench_cases", "aquila-33b"]
    first, second = (nodes.start(rank, command=command) for rank in range(2))
    ended, other = first.wait(), second.wait()
    record = ended.record
    jsonschema.Draft202012Validator(record_schema).validate(record)
    assert (ended.code, other.code, other.lines) == (0, 0, []), (ended.stderr, other.stderr)
    assert (record["conditions"]["layout"], record["conditions"]["nodes"]) == ("dp1 tp2 pp1", 2)
    assert [(rank["rank"], rank["node"], rank["steps"]) for rank in record["ranks"]] == [(0, 0, 64), (1, 1, 64)]
    assert record["work"]["samples_executed"] == 64
    assert all(check["ok"] for check in record["quality"]["checks"])
    losses = json.loads((GOLDEN / "aquila_33b_losses.json").read_text())
    found = {metric["name"]: metric["value"] for metric in record["metrics"]}
    assert found["loss"] == pytest.approx(losses["mean"], abs=5e-5)


def test_a_killed_part_of_a_model_on_another_node_is_named(tmp_path):
    need_megatron()
    nodes = Nodes(tmp_path, [*ENDLESS, "--set", "tp=2"])
    command = [sys.executable, "-m", "flagbench_cases", "aquila-33b"]
    first, second = (nodes.start(rank, command=command) for rank in range(2))
    first.wait_for_steps(1)
    second.wait_for_steps(1)
    os.kill(second.pids()[0], signal.SIGKILL)
    killed = time.monotonic()
    ended, other = first.wait(60), second.wait(60)
    assert time.monotonic() - killed < 10
    assert (ended.code, other.code, ended.status["exit_code"]) == (4, 4, 4)
    assert all(words in ended.status["reason"] for words in ("node 1", "rank 1 (tp 1, pp 0, dp 0)", "SIGKILL"))


def test_stages_on_two_nodes_train_one_model(tmp_path, record_schema):
    """The loss is that of node 1, the work that of node 0, the record node 0's."""
    need_megatron()
    nodes = Nodes(tmp_path, ["--preset", "tiny", "--precision", "fp32", "--set", "pp=2", "--steps", "5"])
    command = [sys.executable, "-m", "flagbench_cases", "llama2-70b"]
    first, second = (nodes.start(rank, command=command) for rank in range(2))
    ended, other = first.wait(), second.wait()
    record = ended.record
    jsonschema.Draft202012Validator(record_schema).validate(record)
    assert (ended.code, other.code, other.lines) == (0, 0, []), (ended.stderr, other.stderr)
    assert (record["conditions"]["layout"], record["conditions"]["nodes"]) == ("dp1 tp1 pp2", 2)
    assert [(rank["rank"], rank["node"], rank["steps"]) for rank in record["ranks"]] == [(0, 0, 10), (1, 1, 10)]
    assert record["work"]["samples_executed"] == 10 * 8
    assert all(check["ok"] for check in record["quality"]["checks"])
    losses = json.loads((GOLDEN / "llama2_70b_losses.json").read_text())["losses"]
    assert [loss for _, loss in record["quality"]["loss_curve"]] == pytest.approx(losses, abs=5e-5)


def test_worker_first_and_the_environment_of_kubernetes(tmp_path, record_schema):
    """Node 1 starts first; rank and master come from an Indexed Job's environment, RANK would mislead."""
    nodes = Nodes(tmp_path, SHORT)
    env = {"FLAGBENCH_MASTER": nodes.master, "RANK": "7", "WORLD_SIZE": "99"}
    second = nodes.start(1, env=dict(env, JOB_COMPLETION_INDEX="1"))
    wait_until(lambda: any(name.startswith("flagbench-") for name in os.listdir(second.folder)), 30)
    first = nodes.start(0, env=dict(env, JOB_COMPLETION_INDEX="0"))
    check_job(first.wait(), second.wait(), record_schema)


def test_different_arguments_are_refused(tmp_path):
    nodes = Nodes(tmp_path, SHORT, [*SHORT, "--seed", "1"])
    first, second = nodes.start(0), nodes.start(1)
    ended, other = first.wait(), second.wait()
    assert (ended.code, other.code) == (2, 2), "every node knows why"
    assert "seed" in ended.status["reason"]
    assert ended.status["phase"] == "launch"
    assert "seed" in other.stderr


def test_a_node_that_fails_before_it_joins_gives_the_record_its_cause(tmp_path):
    """No data folder on node 1; its own arguments are wrong; node 0 alone has none: all end, and nobody waits."""
    synthetic, nowhere = ["--preset", "tiny", "--data", "synthetic"], ["--preset", "tiny", "--data", "/nowhere"]
    wrong = [*synthetic, "--no-such-option"]
    cases = (((synthetic, nowhere), 1, 3), ((synthetic, wrong), 1, 2), ((nowhere, synthetic), 0, 3))
    for number, (arguments, failing, code) in enumerate(cases):
        place = tmp_path / str(number)
        place.mkdir()
        nodes = Nodes(place, *arguments)
        first, second = nodes.start(0), nodes.start(1)
        ended, other = first.wait(60), second.wait(60)
        assert (ended.code, other.code, ended.status["exit_code"]) == (code, code, code)
        assert "/nowhere" in ended.status["reason"] or "--no-such-option" in ended.status["reason"]
        assert ("node 1" in ended.status["reason"]) is (failing == 1)
        assert other.lines == []


def test_node_0_ends_before_another_node_that_failed_first(tmp_path):
    """A cluster deletes node 0's pod, and the record in its log, once another pod has failed while it still runs."""
    nodes = Nodes(tmp_path, ENDLESS, [*ENDLESS, "--max-minutes", "0.05"])
    first, second = nodes.start(0), nodes.start(1)
    assert second.process.wait(120) == 6
    assert first.process.poll() == 6
    assert "node 1" in first.wait().status["reason"]


def test_missing_files_on_node_1_are_the_jobs_exit_code(tmp_path):
    """The folder is there; what is missing in it a rank finds out, while the rank of node 0 waits for it."""
    files = os.path.join(os.path.dirname(distilbert.__file__), "tiny")
    (tmp_path / "empty").mkdir()
    nodes = Nodes(tmp_path, *(["--preset", "tiny", "--data", folder] for folder in (files, str(tmp_path / "empty"))))
    first, second = nodes.start(0), nodes.start(1)
    ended, other = first.wait(), second.wait()
    assert (ended.code, other.code, ended.status["exit_code"]) == (3, 3, 3)
    assert all(words in ended.status["reason"] for words in ("node 1", str(tmp_path / "empty")))


def test_a_killed_rank_of_another_node_is_named(tmp_path):
    nodes = Nodes(tmp_path, ENDLESS)
    first, second = nodes.start(0), nodes.start(1)
    first.wait_for_steps(1)
    second.wait_for_steps(1)
    os.kill(second.pids()[0], signal.SIGKILL)
    killed = time.monotonic()
    ended, other = first.wait(60), second.wait(60)
    assert time.monotonic() - killed < 10
    status = ended.status
    assert (ended.code, other.code, status["exit_code"], status["state"]) == (4, 4, 4, "failed")
    assert all(words in status["reason"] for words in ("node 1", "rank 1", "SIGKILL")), status
    assert "gloo" not in status["reason"].lower()


def test_a_killed_node_is_named_though_sigterm_comes_first(tmp_path):
    """As a cluster's controller does it: it ends node 0 before node 0 has noticed that node 1 is gone."""
    nodes = Nodes(tmp_path, ENDLESS)
    first, second = nodes.start(0), nodes.start(1)
    first.wait_for_steps(1)
    os.kill(first.process.pid, signal.SIGSTOP)
    second.process.kill()
    second.process.communicate()
    first.process.terminate()
    os.kill(first.process.pid, signal.SIGCONT)
    killed = time.monotonic()
    ended = first.wait(60)
    assert time.monotonic() - killed < 10
    assert (ended.code, ended.status["exit_code"], ended.status["state"]) == (4, 4, "failed")
    assert "node 1" in ended.status["reason"]


@pytest.mark.parametrize(
    ("at", "action", "code", "words"),
    [
        ("start", "os._exit(0)", 4, "rank 1 ended with exit 0 on node 1"),
        (30, "os._exit(0)", 4, "rank 1 ended with exit 0 on node 1, in phase train after 30 steps"),
        (30, NAN, 12, "rank 1: the loss of step 30 is nan"),
    ],
)
def test_a_rank_of_another_node_that_ends_early_ends_both(tmp_path, record_schema, at, action, code, words):
    """Whatever its exit code, and before the ranks have met as well; the job's record names it."""
    nodes = Nodes(tmp_path, ENDLESS)
    env = {"FLAGBENCH_MASTER": nodes.master, "FLAGBENCH_NODE_RANK": "1"}
    second = nodes.start(1, env=dict(env, **fault(tmp_path, 1, at, action)))
    first = nodes.start(0)
    other = second.wait(120)
    left = time.monotonic()
    ended = first.wait(60)
    assert time.monotonic() - left < 15
    assert (ended.code, other.code) == (code, code)
    jsonschema.Draft202012Validator(record_schema).validate(ended.record)
    assert ended.status["state"] == "failed"
    assert words in ended.status["reason"], ended.status


def test_paused_node_is_found_within_the_timeout(tmp_path):
    nodes = Nodes(tmp_path, ["--timeout", "5", *ENDLESS])
    first, second = nodes.start(0), nodes.start(1)
    first.wait_for_steps(1)
    second.wait_for_steps(1)
    pids = second.pids()
    for pid in [second.process.pid, *pids]:
        os.kill(pid, signal.SIGSTOP)
    paused = time.monotonic()
    ended = first.wait(60)
    assert (ended.code, ended.status["exit_code"]) == (6, 6)
    assert time.monotonic() - paused < 5 + 6
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
def test_two_namespaces(tmp_path, record_schema, namespaces):
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
    check_job(runs[0].wait(), runs[1].wait(), record_schema)
