"""A job for each node, as on Kubernetes: containers store their records in one bucket, where the nodes are judged."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.runs.launchers.job_request import EachNode
from job_pods import job_documents, pod_arguments, pod_environment, pod_file_systems, pod_image, request_of
from unit.host.conftest import Ended

pytest_plugins = ["containers"]
pytestmark = [pytest.mark.s3, pytest.mark.docker, pytest.mark.slow]

NODES = ("gpu-07.example.com", "gpu-08")
SHORT = {"gpus": 2, "preset": "tiny", "set_": ("measure_seconds=2",)}


@pytest.fixture
def store(bucket: str, image_of: Callable[[str], str], start: Callable[..., Any]) -> str:
    """The address of the records of both nodes."""
    address = f"s3://{bucket}/nodes"
    environment = (f"AWS_ENDPOINT_URL={os.environ['AWS_ENDPOINT_URL']}", "OMP_NUM_THREADS=1")
    options = {"image": image_of("roofs"), "store": address, "store_secret": "bucket", "env": environment, **SHORT}
    request = replace(request_of("roofs:cpu", **options), each_node=EachNode(NODES, "nodes.txt"))
    secret = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    runs = []
    service, *jobs = job_documents(request)
    for job in jobs:
        documents = [service, job]
        run = start(
            *pod_arguments(documents, 0),
            image=pod_image(documents),
            environment={**pod_environment(documents, 0), **secret},
            network_mode="host",
            **pod_file_systems(documents),
        )
        runs.append(run)
    for run in runs:
        assert run.wait() == 0, run.stderr
    return address


def test_nodes_are_judged_by_the_records_of_their_containers(
    store: str, typed: Callable[..., Ended], tmp_path: Path
) -> None:
    hosts = tmp_path / "nodes.txt"
    hosts.write_text("node/gpu-07.example.com\nnode/gpu-08\nnode/gpu-09\n")  # as kubectl prints them
    fleet = typed("fleet", "--store", store, "--hosts", str(hosts), "--json")
    actions = {node["host"]: node["action"] for node in json.loads(fleet.out)["nodes"]}
    assert (fleet.code, actions["gpu-09"]) == (11, "missing")
    assert {*actions} == {*NODES, "gpu-09"}

    certificate = tmp_path / "gpu-08.tar.gz"
    typed("accept", "--from", store, "--host", "gpu-08", "--out", str(certificate))
    with tarfile.open(certificate) as bundle:
        document = json.load(bundle.extractfile("certificate.json"))  # type: ignore[arg-type]
    assert document["facts"]["machine"]["host"] == "gpu-08"
