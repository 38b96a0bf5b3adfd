"""Two containers on a docker network stand for two pods: names, environment and failures as a Kubernetes Job has."""

import json
import time

import jsonschema
import pytest

from flagbench.manifests.load import load_catalog
from flagbench.manifests.lookup import resolve_image
from flagbench.runs.launchers.job_request import JobOptions
from flagbench.runs.launchers.kubernetes import KubernetesRequest
from flagbench.runs.request import RunOptions
from job_pods import job_documents, pod_arguments, pod_environment, pod_file_systems, pod_image, pod_name
from running import wait_until

pytest_plugins = ["containers"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]

SHORT = {"steps": 5}  # and five before them
QUICK = {"gpus": 2, "set_": ("measure_seconds=2",)}
TIMEOUT = 20
ENDLESS = {"steps": 1000000, "timeout": TIMEOUT}


def documents_of(case, image, arguments):
    """The documents of a Job of two nodes, as `flagbench job` prints them."""
    case, stack = resolve_image("%s:cpu" % case, load_catalog())
    request = KubernetesRequest(
        case,
        stack,
        RunOptions(nodes=2, run_id="two-pods", preset="tiny", data="synthetic", **arguments),
        JobOptions(name="fb", image=image, env=("OMP_NUM_THREADS=1",)),
    )
    return job_documents(request)


@pytest.fixture
def pod(network, start, image_of, tmp_path):
    """`pod(index, **arguments)`: one pod of a Job of two, with what its documents give it.

    In this order: the containers go before the network that they are on.
    """

    def begin(index, case="distilbert", **arguments):
        documents = documents_of(case, image_of(case), arguments)
        # RANK and WORLD_SIZE are set by some platforms, and meant otherwise than a launcher would.
        environment = {**pod_environment(documents, index), "RANK": "7", "WORLD_SIZE": "99"}
        # As a kubelet does it: a file that any uid may write.
        message = tmp_path / ("message-%d" % index)
        message.touch()
        message.chmod(0o666)
        run = start(
            *pod_arguments(documents, index),
            image=pod_image(documents),
            environment=environment,
            network=network,
            aliases=[pod_name(documents, index)],
            volumes={str(message): {"bind": environment["FLAGBENCH_TERMINATION_LOG"], "mode": "rw"}},
            **pod_file_systems(documents),
        )
        run.message = message
        return run

    return begin


def check_job(first, second, schema):
    """Both end well, node 0 with the record of the whole job, node 1 without a word on stdout."""
    assert (first.wait(), second.wait()) == (0, 0), first.stderr + second.stderr
    record = first.record
    jsonschema.Draft202012Validator(schema).validate(record)
    assert second.lines == []
    assert record["status"]["state"] == "ok"
    assert record["run_id"] == "two-pods"
    assert [json.loads(one.message.read_text())["state"] for one in (first, second)] == ["ok", "ok"]
    assert {(rank["node"], rank["host"]) for rank in record["ranks"]} == {(0, "node-0"), (1, "node-1")}
    assert all(check["ok"] for check in record["quality"]["checks"])


@pytest.mark.parametrize(
    ("case", "arguments"),
    [
        ("distilbert", SHORT),
        ("qwen2.5-7b-lora", SHORT),
        ("llama3-8b", {**SHORT, "set_": ("pp=2",)}),
        ("roofs", QUICK),
    ],
)
def test_two_pods_make_one_record(case, arguments, pod, record_schema):
    second, first = pod(1, case, **arguments), pod(0, case, **arguments)
    check_job(first, second, record_schema)


def test_the_master_may_start_10_seconds_late(pod, record_schema):
    """Until its pod is there, the master's name does not even resolve."""
    second = pod(1, **SHORT)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began >= 10, 60)
    assert second.state["Running"], second.stderr
    check_job(pod(0, **SHORT), second, record_schema)


@pytest.fixture
def training(pod):
    """Two pods in the middle of a training without an end."""
    both = [pod(index, **ENDLESS) for index in range(2)]
    for one in both:
        one.wait_for_training()
    return both


def ended_within(run, seconds, code):
    """Node 0's record, once its container has ended in time and with this code."""
    began = time.monotonic()
    assert run.wait(seconds + 30) == code, run.stderr
    assert time.monotonic() - began < seconds
    status = run.record["status"]
    assert (status["state"], status["exit_code"]) == ("failed", code)
    return status


def test_a_killed_peer_ends_the_other(training):
    first, second = training
    second.container.kill()
    assert "connection" in ended_within(first, 10, 4)["reason"]


def test_a_lost_network_is_found_within_the_timeout(training, docker_client, network):
    first, second = training
    docker_client.api.disconnect_container_from_network(second.container.id, network)
    assert "no progress" in ended_within(first, TIMEOUT + 6, 6)["reason"]
    assert second.wait(TIMEOUT + 30) == 6, "the other finds it too"
