"""The Service and the Job of a request: what a cluster is asked for, field by field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flagbench.runs.launchers.job_request import EachNode
from flagbench_core import __version__
from flagbench_core.exit_codes import ExitCode
from job_pods import DIGEST, JOBS, STORE, find, job_documents, job_of, request_of

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
APART = f"pod affinity podAntiAffinity {REQUIRED}"
ALIKE = f"pod affinity podAffinity {REQUIRED}"
TERMS = f"pod affinity nodeAffinity {REQUIRED} nodeSelectorTerms"


def together(*keys: str) -> list[Any]:
    """Rules for nodes with the same values of these labels; beside anti-affinity, with different ones."""
    own = {"matchLabels": {"batch.kubernetes.io/job-name": "fb"}}
    return [{"labelSelector": own, "topologyKey": key} for key in keys]


def mounted(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "mountPath": f"/{name}", **options}


def nodes_with(key: str, *values: str) -> list[Any]:
    return [{"matchExpressions": [{"key": key, "operator": "In", "values": [*values]}]}]


def from_secret(secret: str, key: str, **options: Any) -> dict[str, Any]:
    return {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, **options}}}


NO_RIGHTS = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
USER = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}
C500_AMOUNTS = {"cpu": "80", "memory": "576Gi", "metax-tech.com/gpu": "8"}
WORDS = "nodes=2 gpus=1 run-id=run-1 preset=tiny precision=bf16 steps=5 seed=3 set=batch_size=8 max-minutes=210"

EXPECTED: dict[str, dict[str, Any]] = {
    "three nodes": {
        "job spec completionMode": "Indexed",
        "job spec completions": 3,
        "job spec parallelism": 3,
        "job spec backoffLimit": 0,
        "job spec activeDeadlineSeconds": 14400,
        "pod restartPolicy": "Never",
        "pod subdomain": "flagbench",
        "service metadata name": "flagbench",
        "service spec clusterIP": "None",
        "service spec publishNotReadyAddresses": True,
        "service spec selector": {"app.kubernetes.io/name": "flagbench"},
        "job spec template metadata labels app.kubernetes.io/name": "flagbench",
        "service metadata namespace": "bench",
        "job metadata namespace": "bench",
        "job metadata annotations flagbench.dev/run-id": "run-1",
        "main env 0": {"name": "FLAGBENCH_MASTER", "value": "fb-0.flagbench:29400"},
        "main env 2": {"name": "FLAGBENCH_HOST", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        APART: together("kubernetes.io/hostname"),
    },
    "a processor": {
        "main resources limits LAST-KEY": "memory",
        "main image": f"flagbench/distilbert:cpu-{__version__}",
        "pod affinity nodeAffinity": None,
        "pod tolerations": None,
        "job spec suspend": None,
    },
    "an accelerator": {
        "main resources limits": C500_AMOUNTS,
        "main resources requests": C500_AMOUNTS,
        "pod volumes 0 emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"},
        TERMS: nodes_with("metax-tech.com/gpu.product", "MXC500"),
        ALIKE: None,
    },
    "one device": {
        ALIKE: None,
        "pod securityContext": USER,
        "main securityContext": NO_RIGHTS,
        "main volumeMounts -1": mounted("tmp"),
        "pod volumes -1": {"name": "tmp", "emptyDir": {}},
        "pod tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    },
    "nodes of one product": {
        ALIKE: together("nvidia.com/gpu.product"),
        TERMS: nodes_with("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"),
    },
    "nodes of one device": {
        ALIKE: None,
        TERMS: nodes_with("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
    },
    "nodes of one label": {
        ALIKE: together("cloud/gpu"),
        TERMS: nodes_with("cloud/gpu", "h100", "h200"),
    },
    "nodes by name": {
        ALIKE: None,
    },
    "RDMA": {
        "pod securityContext": {**USER, "runAsUser": 0, "runAsNonRoot": False},
        "main securityContext capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
        "main resources limits nvidia.com/gpu": "8",
        "main resources limits example.com/gpu": "4",
    },
    "a queue": {
        "job spec suspend": True,
    },
    "volumes": {
        "main volumeMounts 1": mounted("data", subPath="sst2/v1", readOnly=True),
        "main volumeMounts 3": mounted("out", subPath="runs", readOnly=False),
        "pod volumes 1 persistentVolumeClaim": {"claimName": "sets", "readOnly": True},
        "pod volumes 3 persistentVolumeClaim": {"claimName": "results", "readOnly": False},
        "main args -3": "--data=/data",
        "main args -1": "--out=/out",
    },
    "one volume": {
        "main volumeMounts 1": mounted("resume", subPath="first", readOnly=True),
        "pod volumes 1 persistentVolumeClaim": {"claimName": "results", "readOnly": False},
        "main args -2": "--resume=/resume",
    },
    "a store": {
        "main args -1": "--store=s3://bench/lab?profile=ceph",
        "main env 3": from_secret("bucket", "AWS_ACCESS_KEY_ID", optional=False),
        "main env 4": from_secret("bucket", "AWS_SECRET_ACCESS_KEY", optional=False),
        "main env 5": from_secret("bucket", "AWS_SESSION_TOKEN", optional=True),
    },
    "a registry": {
        "main image": f"r.io:5000/team/flagbench/distilbert:cpu-{__version__}",
        "main args -2": "--preset=reference",
    },
    "a digest": {
        "main image": f"r.io/x@{DIGEST}",
        "main env 3": {"name": "FLAGBENCH_IMAGE_DIGEST", "value": DIGEST},
    },
    "arguments": {
        "main args": [f"--{word}" for word in WORDS.split()],
    },
    "an end": {
        "main args -1": "--max-minutes=3.51",
        "job spec activeDeadlineSeconds": 2011,
    },
}
"""What stands at a place of a job of JOBS; None: nothing."""


@pytest.mark.parametrize("name", EXPECTED)
def test_what_stands_where(name: str) -> None:
    of, options = JOBS[name]
    documents = job_of(of, name="fb", **options)
    assert {place: find(documents, place) for place in EXPECTED[name]} == EXPECTED[name]


def test_the_failure_policy_names_every_code_of_an_image() -> None:
    ignore, fail = job_of()[1]["spec"]["podFailurePolicy"]["rules"]
    assert ignore == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    # 8 to 11 are the host's: building and verdicts.
    hosts = {ExitCode.BUILD_FAILED, *range(ExitCode.BELOW, ExitCode.INVALID)}
    expected = sorted(set(ExitCode) - {ExitCode.OK, *hosts})
    assert fail["action"] == "FailJob"
    assert fail["onExitCodes"] == {"containerName": "flagbench", "operator": "In", "values": expected}


def test_jobs_of_a_namespace_share_one_service() -> None:
    first, _ = job_of(name="a", namespace="bench")
    second, _ = job_of("distilbert:a100", name="1b", namespace="bench", nodes=2, queue="q")
    assert first == second


def test_jobs_are_valid() -> None:
    """By Kubernetes' own schemas, strictly: a field that they do not know is an error."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    documents = [document for of, options in JOBS.values() for document in job_of(of, **options)]
    for version in ("1.35", "1.36", "1.37"):
        for document in documents:
            kubernetes_validate.validate(document, version, strict=True)


def test_a_job_for_each_node() -> None:
    options = {**STORE, "gpus": 8, "run_id": "nightly", "tolerate": ("new-node",), "registry": "r.io"}
    request = request_of("distilbert:h100", **options)
    request = replace(request, each_node=EachNode(("gpu-07.example.com", "gpu-08"), "nodes.txt"))
    assert request.warnings() == []
    _, *jobs = job_documents(request)
    assert [job["kind"] for job in jobs] == ["Job", "Job"]
    names = [job["metadata"]["name"] for job in jobs]
    assert [name[:-9] for name in names] == ["flagbench-distilbert-gpu-07-example-com", "flagbench-distilbert-gpu-08"]
    labels = {job["metadata"]["labels"]["flagbench.dev/each-node"] for job in jobs}
    assert labels == {request.job_name}
    for job, node in zip(jobs, ("gpu-07.example.com", "gpu-08")):
        bound = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
        expected = {
            TERMS: bound,
            "job spec completions": 1,
            "pod tolerations 1": {"key": "new-node", "operator": "Exists"},
            "main args 2": f"--run-id=nightly-{node}",
            "main env 2 name": "FLAGBENCH_HOST",
        }
        assert {place: find([None, job], place) for place in expected} == expected
    again = request_of("distilbert:h100", **{**options, "run_id": "next"})
    again = replace(again, each_node=request.each_node)
    assert not {*names} & {job.name for job in again.jobs()}


@pytest.mark.parametrize("version", ["1.35", "1.36", "1.37"])
def test_jobs_for_each_node_are_valid(version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    request = request_of("llama3.1-8b-lora:cpu", name="a" * 61)
    _, *jobs = job_documents(replace(request, each_node=EachNode(("A" * 100, "b"), "-")))
    assert [len(job["metadata"]["name"]) for job in jobs] == [61, 61]
    for job in jobs:
        kubernetes_validate.validate(job, version, strict=True)
