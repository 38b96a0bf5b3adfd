"""Two containers on a docker network stand for two pods: names, environment and failures as a Kubernetes Job has."""

import time

import jsonschema
import pytest

from running import ENDLESS, wait_until

pytest_plugins = ["containers"]
pytestmark = [pytest.mark.docker, pytest.mark.slow]

MASTER = "fb-0.fb"
SHORT = [*ENDLESS[:-1], "20"]
TIMEOUT = 20


@pytest.fixture
def pod(network, start):
    """`pod(index, *arguments)`: one pod of an Indexed Job of two, named as its headless Service names it.

    In this order: the containers go before the network that they are on.
    """

    def begin(index, *arguments):
        env = {
            "JOB_COMPLETION_INDEX": str(index),
            "FLAGBENCH_MASTER": MASTER + ":29500",
            "OMP_NUM_THREADS": "1",
            # Set by some platforms, and meant otherwise than a launcher would.
            "RANK": "7",
            "WORLD_SIZE": "99",
        }
        arguments = ["--nodes", "2", "--gpus", "1", *arguments]
        return start(*arguments, environment=env, network=network, aliases=["fb-%d.fb" % index])

    return begin


def check_job(first, second, schema):
    """Both end well, node 0 with the record of the whole job, node 1 without a word on stdout."""
    assert (first.wait(), second.wait()) == (0, 0), first.stderr + second.stderr
    record = first.record
    jsonschema.Draft202012Validator(schema).validate(record)
    assert second.lines == []
    assert record["status"]["state"] == "ok"
    assert [(rank["rank"], rank["node"]) for rank in record["ranks"]] == [(0, 0), (1, 1)]
    assert all(check["ok"] for check in record["quality"]["checks"])


def test_two_pods_make_one_record(pod, record_schema):
    second, first = pod(1, *SHORT), pod(0, *SHORT)
    check_job(first, second, record_schema)


def test_the_master_may_start_10_seconds_late(pod, record_schema):
    """Until its pod is there, the master's name does not even resolve."""
    second = pod(1, *SHORT)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began >= 10, 60)
    assert second.state["Running"], second.stderr
    check_job(pod(0, *SHORT), second, record_schema)


@pytest.fixture
def training(pod):
    """Two pods in the middle of a training without an end."""
    both = [pod(index, *ENDLESS, "--timeout", str(TIMEOUT)) for index in range(2)]
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


def test_a_killed_master_ends_the_other(training):
    first, second = training
    first.container.kill()
    began = time.monotonic()
    assert second.wait(40) == 4, second.stderr
    assert time.monotonic() - began < 10
    assert second.lines == []
    assert "fix:" in second.stderr


def test_a_paused_peer_is_found_within_the_timeout(training):
    first, second = training
    second.container.pause()
    # The hang is counted from the last step; the ranks are then ended and the record is made.
    assert "no progress" in ended_within(first, TIMEOUT + 6, 6)["reason"]


def test_a_lost_network_is_found_within_the_timeout(training, docker_client, network):
    first, second = training
    docker_client.api.disconnect_container_from_network(second.container.id, network)
    assert "no progress" in ended_within(first, TIMEOUT + 6, 6)["reason"]
    assert second.wait(TIMEOUT + 30) == 6, "the other finds it too"
