"""What `flagbench job --for slurm` prints, submitted to a real Slurm on this machine."""

import json
import textwrap

import pytest

from bench.accept import FLIP
from faults import fault

pytest_plugins = ["slurm_cluster"]
pytestmark = [pytest.mark.slurm, pytest.mark.slow]

TINY = ("distilbert:cpu", "--preset=tiny")
SHORT = (*TINY, "--steps=5")
ENDLESS = (*TINY, "--data=synthetic", "--steps=1000000")
NODES = ("slurm-0", "slurm-1")
EXIT_CODES = {"PASS": 0, "FAIL": 9, "INCONCLUSIVE": 11}


def test_a_run_over_two_nodes_makes_one_record(cluster):
    job = cluster.submit(cluster.script(*SHORT, "--nodes=2"))
    assert job.wait() == ("COMPLETED", 0, 0), job.log
    (record,) = cluster.records().values()
    assert record["run_id"] == "slurm-%s" % job.number
    assert [rank["host"] for rank in record["ranks"]] == job.nodes


@pytest.fixture
def hosts(cluster):
    """A list of nodes, as an operator keeps it: Slurm does not know the last one."""
    file = cluster.folder / "nodes.txt"
    file.write_text("slurm-0\nslurm-1\nslurm-64\n")
    return file


def test_each_node_runs_by_itself_and_fleet_names_the_one_that_did_not(cluster, hosts):
    first, second = cluster.submit_to_each_node(cluster.script(*SHORT, "--gpus=2", "--each-node=%s" % hosts))
    assert (first.wait(), second.wait()) == (("COMPLETED", 0, 0), ("COMPLETED", 0, 0)), first.log + second.log
    assert sorted(cluster.records()) == [*NODES]
    judged = cluster.run("flagbench", "fleet", "--store=%s" % cluster.store, "--hosts=%s" % hosts, "--json")
    assert judged.returncode == 11
    actions = {node["host"]: node["action"] for node in json.loads(judged.stdout)["nodes"]}
    assert actions == {"slurm-0": "nothing", "slurm-1": "nothing", "slurm-64": "missing"}


def test_each_node_is_accepted_and_the_one_with_a_wrong_bit_is_drained(cluster, hosts, monkeypatch):
    flip_on_one_node = "if os.uname().nodename == 'slurm-1':\n" + textwrap.indent(FLIP, "    ")
    for name, value in fault(cluster.folder, 0, "before measure", flip_on_one_node).items():
        monkeypatch.setenv(name, value)  # jobs get the environment from which they are submitted
    script = cluster.script("accept", "--gpus=1", "--minutes=0.8", "--each-node=%s" % hosts)
    jobs = cluster.submit_to_each_node(script)
    outcomes = {}
    for node, job in zip(NODES, jobs):
        end = job.wait()
        certificate = cluster.certificate(node, job)
        assert certificate["facts"]["machine"]["host"] == node
        outcomes[node] = certificate["outcome"]
        assert end.code == EXIT_CODES[outcomes[node]], job.log
    assert outcomes["slurm-1"] == "FAIL"

    printed = cluster.run("flagbench", "fleet", "--store=%s" % cluster.store, "--print=slurm")
    assert printed.returncode == 9
    cluster.drain("slurm-1", printed.stdout)
    assert "rank 0" in cluster.reason_of("slurm-1")


def test_before_its_time_limit_a_run_is_interrupted_and_keeps_its_record(cluster):
    job = cluster.submit(cluster.script(*ENDLESS))
    job.wait_for_training()
    job.set_time_limit(minutes=3)
    assert job.wait() == ("FAILED", 7, 0), job.log
    (record,) = cluster.records().values()
    assert record["status"]["state"] == "interrupted"


def test_a_cancelled_run_keeps_its_record(cluster):
    job = cluster.submit(cluster.script(*ENDLESS, "--nodes=2"))
    job.wait_for_training()
    job.cancel()
    assert job.wait().state == "CANCELLED"
    (record,) = cluster.records().values()
    assert (record["status"]["state"], record["status"]["exit_code"]) == ("interrupted", 7)


def test_a_lost_node_is_named_and_the_run_is_not_started_again(cluster):
    job = cluster.submit(cluster.script(*ENDLESS, "--nodes=2"))
    job.wait_for_training()
    lost = job.nodes[1]
    cluster.kill(lost)
    assert job.wait().state == "NODE_FAIL"
    cluster.restart_killed()
    end = job.wait()
    assert (end.state, end.restarts) == ("NODE_FAIL", 0), job.log
    (record,) = cluster.records().values()
    assert record["status"]["exit_code"] == 4
    assert "node 1 (%s)" % lost in record["status"]["reason"]
    assert record["status"]["reason"] in job.log


@pytest.mark.parametrize("gpus, code", [(8, 0), (9, 1)])
def test_the_devices_of_an_accelerator_are_asked_for(cluster, gpus, code):
    """Slurm has eight of each node, and takes every other option of the script."""
    script = cluster.script("distilbert:h100", "--nodes=2", "--gpus=%d" % gpus)
    assert cluster.run("sbatch", "--test-only", input=script).returncode == code
