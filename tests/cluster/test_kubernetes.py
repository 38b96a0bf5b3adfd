"""Jobs on a real cluster, opt-in: FLAGBENCH_TEST_KUBECONFIG names a kubeconfig, FLAGBENCH_TEST_IMAGE an image.

    export FLAGBENCH_TEST_KUBECONFIG=~/.kube/config
    export FLAGBENCH_TEST_IMAGE=registry.example.com/flagbench/distilbert:cpu-VERSION
    python -m pytest tests/cluster/test_kubernetes.py

Needs kubectl 1.27 or later on PATH, a cluster of two schedulable nodes or more with a DNS, and an image of
distilbert:cpu that its nodes can pull or have. FLAGBENCH_TEST_SPLIT_IMAGE names one of aquila-33b:cpu; the test of a
model across nodes is skipped without it. The kubeconfig's user creates a namespace, with Pod Security `restricted`,
in which everything happens and which is deleted at the end.
"""

import json
import os
import subprocess
import uuid

import jsonschema
import pytest

pytest.importorskip("flagbench", reason="the host side")

from job_pods import JOBS, job_of
from running import wait_until

KUBECONFIG = os.environ.get("FLAGBENCH_TEST_KUBECONFIG")
if not KUBECONFIG:
    pytest.skip("opt-in: FLAGBENCH_TEST_KUBECONFIG names no cluster", allow_module_level=True)
pytestmark = [pytest.mark.slow, pytest.mark.alone]

SECONDS = 600
"""How long any one thing may take: pulling the image is part of the first."""
RDMA = {"of": "distilbert:a100", "nodes": 2, "gpus": 8, "rdma_resource": ("rdma/hca_shared_devices_a=1",)}


class Cluster:
    """kubectl in one namespace."""

    def __init__(self, namespace):
        self.namespace = namespace

    def run(self, *words, document=None, check=True):
        """The finished process; with `check` a failure ends the test with kubectl's own words."""
        command = ["kubectl", "--kubeconfig", KUBECONFIG, "--namespace", self.namespace, *words]
        text = None if document is None else json.dumps(document)
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS)
        if check and done.returncode != 0:
            pytest.fail("%s: %s" % (" ".join(words), done.stderr))
        return done

    def get(self, *words):
        return json.loads(self.run("get", *words, "-o", "json").stdout)

    def conditions(self, name):
        """The Job's conditions that are true, each with its reason."""
        found = self.get("job", name)["status"].get("conditions", [])
        return {entry["type"]: entry.get("reason") for entry in found if entry["status"] == "True"}

    def pod(self, name, index):
        """The newest pod of an index; None where there is none."""
        label = "batch.kubernetes.io/job-name=%s,batch.kubernetes.io/job-completion-index=%d" % (name, index)
        found = self.get("pods", "-l", label)["items"]
        return max(found, key=lambda pod: pod["metadata"]["creationTimestamp"], default=None)

    def message(self, name, index):
        """The termination message of a pod's container; None before it has ended."""
        pod = self.pod(name, index)
        (state,) = [status["state"] for status in pod["status"].get("containerStatuses", [])] if pod else [{}]
        text = state.get("terminated", {}).get("message")
        return json.loads(text) if text else None

    def record(self, name):
        """The record in node 0's log."""
        (line,) = [line for line in self.log(name, 0).splitlines() if line.startswith("{")]
        return json.loads(line)

    def log(self, name, index):
        return self.run("logs", self.pod(name, index)["metadata"]["name"]).stdout


@pytest.fixture(scope="module")
def cluster():
    made = Cluster("flagbench-test-%s" % uuid.uuid4().hex[:8])
    made.run("create", "namespace", made.namespace)
    try:
        made.run("label", "namespace", made.namespace, "pod-security.kubernetes.io/enforce=restricted")
        yield made
    finally:
        made.run("delete", "namespace", made.namespace, "--wait=false", check=False)


def documents_of(of="distilbert:cpu", nodes=1, gpus=1, run=None, **options):
    run_id = "run-%s" % uuid.uuid4().hex[:8]
    asked = {"nodes": nodes, "gpus": gpus, "run_id": run_id, "preset": "tiny", **(run or {}), **options}
    return job_of(of, **asked)


def listed(documents):
    """The documents as one, for kubectl's input."""
    return {"apiVersion": "v1", "kind": "List", "items": documents}


@pytest.fixture
def job(cluster):
    """`job(**options)`: the name of a job on two nodes that was applied; deleted after the test."""
    names = []

    def apply(steps=20, image=None, settings=(), deadline=None, **options):
        documents = documents_of(
            image=image or os.environ["FLAGBENCH_TEST_IMAGE"],
            name="fb-%s" % uuid.uuid4().hex[:8],
            nodes=2,
            run={"data": "synthetic", "steps": steps, "timeout": 60, "set_": settings},
            **options,
        )
        spec = documents[1]["spec"]
        spec["activeDeadlineSeconds"] = deadline or spec["activeDeadlineSeconds"]
        # Less than the stack's values: the nodes may be small.
        amounts = {"cpu": "500m", "memory": "2Gi"}
        spec["template"]["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
        spec["template"]["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] = "256Mi"
        cluster.run("apply", "--validate=strict", "-f", "-", document=listed(documents))
        names.append(documents[1]["metadata"]["name"])
        return names[-1]

    yield apply
    for name in names:
        cluster.run("delete", "job", name, "--wait=false", check=False)


@pytest.fixture
def training(cluster, job):
    """A job in the middle of a training without an end."""
    name = job(steps=1_000_000)
    wait_until(lambda: all(cluster.pod(name, i)["status"]["phase"] == "Running" for i in range(2)), SECONDS)
    wait_until(lambda: "loss" in cluster.log(name, 0), SECONDS)
    return name


def failed(cluster, name):
    """Why the Job failed. FailureTarget comes first (Kubernetes 1.31); Failed waits until every pod is gone."""
    wait_until(lambda: {"FailureTarget", "Failed"} & set(cluster.conditions(name)), SECONDS)
    found = cluster.conditions(name)
    return found.get("FailureTarget", found.get("Failed"))


# Those that take RDMA are refused: see below.
@pytest.mark.parametrize("kind", [kind for kind in JOBS if kind != "RDMA"])
def test_the_server_takes_every_job_strictly(cluster, kind):
    of, options = JOBS[kind]
    document = listed(job_of(of, **{**options, "namespace": None}))
    cluster.run("apply", "--dry-run=server", "--validate=strict", "-f", "-", document=document)


def test_pods_that_take_rdma_would_be_refused_by_restricted(cluster):
    done = cluster.run(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", document=listed(documents_of(**RDMA))
    )
    assert "violate PodSecurity" in done.stderr


def test_two_nodes_make_one_record_and_jobs_share_the_service(cluster, job, record_schema):
    names = [job(), job()]
    for name in names:
        wait_until(lambda name=name: cluster.conditions(name), SECONDS)
        assert "Complete" in cluster.conditions(name)
        record = cluster.record(name)
        jsonschema.Draft202012Validator(record_schema).validate(record)
        assert (record["status"]["state"], record["system"]["nodes"]) == ("ok", 2)
        assert [line for line in cluster.log(name, 1).splitlines() if line.startswith("{")] == []
        assert [cluster.message(name, index)["exit_code"] for index in range(2)] == [0, 0]
    assert [service["metadata"]["name"] for service in cluster.get("services")["items"]] == ["flagbench"]


def test_the_pods_of_a_job_share_one_model(cluster, job, record_schema):
    image = os.environ.get("FLAGBENCH_TEST_SPLIT_IMAGE")
    if not image:
        pytest.skip("opt-in: FLAGBENCH_TEST_SPLIT_IMAGE names no image of aquila-33b:cpu")
    name = job(of="aquila-33b:cpu", image=image, settings=("tp=2",))
    wait_until(lambda: cluster.conditions(name), SECONDS)
    assert "Complete" in cluster.conditions(name)
    record = cluster.record(name)
    jsonschema.Draft202012Validator(record_schema).validate(record)
    assert (record["conditions"]["layout"], record["conditions"]["nodes"]) == ("dp1 tp2 pp1", 2)
    assert [(rank["rank"], rank["node"]) for rank in record["ranks"]] == [(0, 0), (1, 1)]
    assert record["work"]["samples_executed"] == record["work"]["steps"] == 25
    assert [cluster.message(name, index)["exit_code"] for index in range(2)] == [0, 0]


def test_a_killed_rank_fails_the_job_by_its_exit_code(cluster, training):
    # The container's first process cannot be killed from within.
    kill = (
        "import os,signal;"
        "p=max(int(p) for p in os.listdir('/proc') if p.isdigit() and b'flagbench_cases.rank.worker' in "
        "open('/proc/%s/cmdline'%p,'rb').read());os.kill(p,signal.SIGKILL)"
    )
    cluster.run("exec", cluster.pod(training, 1)["metadata"]["name"], "--", "python3", "-c", kill)
    assert failed(cluster, training) == "PodFailurePolicy"
    codes = {cluster.message(training, index)["exit_code"] for index in range(2) if cluster.message(training, index)}
    assert codes <= {4}


def test_a_deleted_peer_is_the_cause_that_node_0_names(cluster, training):
    pod = cluster.pod(training, 1)["metadata"]["name"]
    cluster.run("delete", "pod", pod, "--wait=false")
    failed(cluster, training)
    wait_until(lambda: cluster.message(training, 0), SECONDS)
    message = cluster.message(training, 0)
    assert (message["state"], message["exit_code"]) == ("failed", 4)
    assert "node 1" in message["reason"]


def test_an_evicted_peer_is_not_counted_but_the_rest_fails(cluster, training):
    pod = cluster.pod(training, 1)["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    path = "/api/v1/namespaces/%s/pods/%s/eviction" % (cluster.namespace, pod)
    cluster.run("create", "--raw", path, "-f", "-", document=eviction)
    assert failed(cluster, training) == "PodFailurePolicy"


def test_a_deadline_ends_the_job(cluster, job):
    name = job(steps=1_000_000, deadline=60)
    assert failed(cluster, name) == "DeadlineExceeded"
