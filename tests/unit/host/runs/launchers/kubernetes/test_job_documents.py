"""The Service and the Job of a request: what a cluster is asked for, field by field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flagbench_core import __version__
from flagbench_core.exit_codes import ExitCode

from .conftest import Documents, find

DIGEST = "sha256:" + "a" * 64
JobOf = Callable[..., Documents]

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


NO_RIGHTS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
USER = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}
C500_AMOUNTS = {"cpu": "80", "memory": "576Gi", "metax-tech.com/gpu": "8"}
VOLUMES = {"data_pvc": "sets:sst2/v1", "weights_pvc": "models", "out_pvc": "results:runs"}
TOLD = {"nodes": 2, "preset": "tiny", "precision": "bf16", "steps": 5, "seed": 3, "set_": ("batch_size=8",)}
WORDS = "nodes=2 gpus=1 run-id=run-1 preset=tiny precision=bf16 steps=5 seed=3 set=batch_size=8 max-minutes=210"
STORE = {"store": "s3://bench/lab?profile=ceph", "store_secret": "bucket"}

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "three nodes": ("distilbert:cpu", {"nodes": 3, "port": 30000, "namespace": "bench"}),
    "a processor": ("distilbert:cpu", {"gpus": 2}),
    "an accelerator": ("distilbert:c500", {"nodes": 2, "gpus": 8}),
    "one device": ("distilbert:a100", {}),
    "nodes of one product": ("distilbert:h100", {"nodes": 2}),
    "nodes of one label": ("distilbert:h100", {"nodes": 2, "node_label": ("cloud/gpu=h100,h200",)}),
    "nodes by name": ("distilbert:h100", {"nodes": 2, "node_label": ("kubernetes.io/hostname=a,b",)}),
    # Its name says gpu, and it is not the accelerator.
    "RDMA": ("distilbert:a100", {"nodes": 2, "gpus": 8, "rdma_resource": ("example.com/gpu=4",)}),
    "a queue": ("distilbert:cpu", {"queue": "fast"}),
    "volumes": ("distilbert:cpu", VOLUMES),
    "one volume": ("llama2-7b-lora:a100", {"out_pvc": "results", "resume_pvc": "results:first"}),
    "a store": ("distilbert:cpu", STORE),
    "data in a bucket": ("distilbert:cpu", {"data": "s3://bench/sst2", "store_secret": "bucket"}),
    "a ticket": ("distilbert:cpu", {"ticket_secret": "ticket"}),
    "a registry": ("distilbert:cpu", {"registry": "r.io:5000/team"}),
    "a digest": ("distilbert:cpu", {"image": f"r.io/x@{DIGEST}", "pull_secret": ("reg",)}),
    "arguments": ("distilbert:cpu", TOLD),
    "an end": ("distilbert:cpu", {"max_minutes": 3.51}),
}


# None: nothing stands there.
@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("three nodes", "job spec completionMode", "Indexed"),
        ("three nodes", "job spec completions", 3),
        ("three nodes", "job spec parallelism", 3),
        ("three nodes", "job spec backoffLimit", 0),
        ("three nodes", "job spec activeDeadlineSeconds", 14400),
        ("three nodes", "pod restartPolicy", "Never"),
        ("three nodes", "pod subdomain", "flagbench"),
        ("three nodes", "service metadata name", "flagbench"),
        ("three nodes", "service spec clusterIP", "None"),
        ("three nodes", "service spec publishNotReadyAddresses", True),
        ("three nodes", "service spec selector", {"app.kubernetes.io/name": "flagbench"}),
        ("three nodes", "job spec template metadata labels app.kubernetes.io/name", "flagbench"),
        ("three nodes", "service metadata namespace", "bench"),
        ("three nodes", "job metadata namespace", "bench"),
        ("three nodes", "job metadata annotations flagbench.dev/run-id", "run-1"),
        ("three nodes", "main env 0", {"name": "FLAGBENCH_MASTER", "value": "fb-0.flagbench:30000"}),
        ("three nodes", APART, together("kubernetes.io/hostname")),
        ("a processor", "main resources limits LAST-KEY", "memory"),
        ("a processor", "main image", f"flagbench/distilbert:cpu-{__version__}"),
        ("a processor", "pod affinity nodeAffinity", None),
        ("a processor", "pod tolerations", None),
        ("a processor", "job spec suspend", None),
        ("an accelerator", "main resources limits", C500_AMOUNTS),
        ("an accelerator", "main resources requests", C500_AMOUNTS),
        ("an accelerator", "pod volumes 0 emptyDir", {"medium": "Memory", "sizeLimit": "64Gi"}),
        ("an accelerator", TERMS, nodes_with("metax-tech.com/gpu.product", "MXC500")),
        ("an accelerator", ALIKE, None),
        ("one device", ALIKE, None),
        ("one device", "pod securityContext", USER),
        ("one device", "main securityContext", NO_RIGHTS),
        ("one device", "pod tolerations", [{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        ("nodes of one product", ALIKE, together("nvidia.com/gpu.product")),
        ("nodes of one label", ALIKE, together("cloud/gpu")),
        ("nodes of one label", TERMS, nodes_with("cloud/gpu", "h100", "h200")),
        ("nodes by name", ALIKE, None),
        ("RDMA", "pod securityContext", {**USER, "runAsUser": 0, "runAsNonRoot": False}),
        ("RDMA", "main securityContext capabilities", {"drop": ["ALL"], "add": ["IPC_LOCK"]}),
        ("RDMA", "main resources limits nvidia.com/gpu", "8"),
        ("RDMA", "main resources limits example.com/gpu", "4"),
        ("a queue", "job spec suspend", True),
        ("volumes", "main volumeMounts 1", mounted("data", subPath="sst2/v1", readOnly=True)),
        ("volumes", "main volumeMounts 3", mounted("out", subPath="runs", readOnly=False)),
        ("volumes", "pod volumes 1 persistentVolumeClaim", {"claimName": "sets", "readOnly": True}),
        ("volumes", "pod volumes 3 persistentVolumeClaim", {"claimName": "results", "readOnly": False}),
        ("volumes", "main args -3", "--data=/data"),
        ("volumes", "main args -1", "--out=/out"),
        ("one volume", "main volumeMounts 1", mounted("resume", subPath="first", readOnly=True)),
        ("one volume", "pod volumes 1 persistentVolumeClaim", {"claimName": "results", "readOnly": False}),
        ("one volume", "main args -2", "--resume=/resume"),
        ("a store", "main args -1", "--store=s3://bench/lab?profile=ceph"),
        ("a store", "main env 3", from_secret("bucket", "AWS_SECRET_ACCESS_KEY", optional=False)),
        ("a store", "main env 4", from_secret("bucket", "AWS_SESSION_TOKEN", optional=True)),
        ("data in a bucket", "main env 2", from_secret("bucket", "AWS_ACCESS_KEY_ID", optional=False)),
        ("a ticket", "main env 2", from_secret("ticket", "FLAGBENCH_TICKET")),
        ("a registry", "main image", f"r.io:5000/team/flagbench/distilbert:cpu-{__version__}"),
        ("a digest", "main image", f"r.io/x@{DIGEST}"),
        ("a digest", "main env 2", {"name": "FLAGBENCH_IMAGE_DIGEST", "value": DIGEST}),
        ("arguments", "main args", [f"--{word}" for word in WORDS.split()]),
        ("an end", "main args -1", "--max-minutes=3.51"),
        ("an end", "job spec activeDeadlineSeconds", 2011),
    ],
)
def test_what_stands_where(job_of: JobOf, name: str, place: str, value: Any) -> None:
    of, options = JOBS[name]
    assert find(job_of(of, name="fb", **options), place) == value


def test_the_failure_policy_names_every_code_of_an_image(job_of: JobOf) -> None:
    ignore, fail = job_of()[1]["spec"]["podFailurePolicy"]["rules"]
    assert ignore == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    # 8 to 11 are the host's: building and verdicts.
    hosts = {ExitCode.BUILD_FAILED, *range(ExitCode.BELOW, ExitCode.INVALID)}
    expected = sorted(set(ExitCode) - {ExitCode.OK, *hosts})
    assert fail["action"] == "FailJob"
    assert fail["onExitCodes"] == {"containerName": "flagbench", "operator": "In", "values": expected}


def test_jobs_of_a_namespace_share_one_service(job_of: JobOf) -> None:
    first, _ = job_of(name="a", namespace="bench")
    second, _ = job_of("distilbert:a100", name="1b", namespace="bench", nodes=2, port=30000, queue="q")
    assert first == second
