"""The Service and the Job of a request: what a cluster is asked for, field by field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flagbench._version import __version__
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers.kubernetes.check import check_documents
from flagbench.launchers.kubernetes.documents import Template, job_documents, read_template, template_path
from flagbench.launchers.kubernetes.request import JobRequest

from .conftest import MANIFESTS, find

DIGEST = "sha256:" + "a" * 64

JobOf = Callable[..., list[dict[str, Any]]]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ANTI, SAME, TERMS = (
    f"pod affinity podAntiAffinity {REQUIRED}",
    f"pod affinity podAffinity {REQUIRED}",
    f"pod affinity nodeAffinity {REQUIRED} nodeSelectorTerms",
)
POD_LABELS = "job spec template metadata labels"
POD_NOTES = "job spec template metadata annotations"
NO_RIGHTS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def together(*keys: str) -> list[Any] | None:
    """Rules by which the pods of the job `fb` are on nodes with the same values of these labels."""
    own = {"matchLabels": {"batch.kubernetes.io/job-name": "fb"}}
    return [{"labelSelector": own, "topologyKey": key} for key in keys] or None


def mounted(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, "mountPath": f"/{name}", **options}


def nodes_with(key: str, *values: str) -> list[Any]:
    return [{"matchExpressions": [{"key": key, "operator": "In", "values": [*values]}]}]


USER = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 0}
UNPRIVILEGED = {**USER, "seccompProfile": {"type": "RuntimeDefault"}}
C500_LIMITS = {"cpu": "80", "memory": "576Gi", "metax-tech.com/gpu": "8"}
CHANGED = {"cpu": "500m", "memory": "1Ti", "shm": "1Gi", "node_label": ("gpu=h100,h200",), "group": (44, 104)}
VOLUMES = {"data_pvc": "sets:sst2/v1", "weights_pvc": "models", "out_pvc": "results:runs"}
TOLD = {"nodes": 2, "preset": "tiny", "precision": "bf16", "steps": 5, "seed": 3, "set_": ("batch_size=8",)}
WORDS = "nodes=2 gpus=1 run-id=run-1 preset=tiny precision=bf16 steps=5 seed=3 set=batch_size=8 max-minutes=210"
NOTED = {"label": ("team=a",), "annotation": ("k8s.v1.cni.cncf.io/networks=rdma",)}

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "three nodes": ("distilbert:cpu", {"nodes": 3, "port": 30000, "namespace": "bench"}),
    "a processor": ("distilbert:cpu", {"gpus": 2}),
    "an accelerator": ("distilbert:c500", {"nodes": 2, "gpus": 8}),
    "one device": ("distilbert:a100", {}),
    "what beats the stack": ("distilbert:h100", CHANGED),
    "nodes of one product": ("distilbert:h100", {"nodes": 2}),
    "nodes of one label": ("distilbert:h100", {"nodes": 2, "node_label": ("cloud/gpu=h100,h200",)}),
    "nodes of one value": ("distilbert:h100", {"nodes": 2, "node_label": ("cloud/gpu=h200",)}),
    "nodes by name": ("distilbert:h100", {"nodes": 2, "node_label": ("kubernetes.io/hostname=a,b",)}),
    # Its name says gpu, and it is not the accelerator.
    "RDMA": ("distilbert:a100", {"nodes": 2, "gpus": 8, "rdma_resource": ("example.com/gpu=4",)}),
    "an end": ("distilbert:cpu", {"ttl": 600}),
    "a queue": ("distilbert:cpu", {"queue": "fast"}),
    "volumes": ("distilbert:cpu", VOLUMES),
    "one volume": ("llama2-7b-lora:a100", {"out_pvc": "results", "resume_pvc": "results:first"}),
    "a registry": ("distilbert:cpu", {"registry": "r.io:5000/team"}),
    "a digest": ("distilbert:cpu", {"image": f"r.io/x@{DIGEST}", "pull_policy": "Always", "pull_secret": ("reg",)}),
    "labels": ("distilbert:cpu", NOTED),
    "arguments": ("distilbert:cpu", TOLD),
}


# Beside what job_documents holds against check_documents. None: nothing stands there.
@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("three nodes", "service metadata name", "flagbench"),
        ("three nodes", "job metadata namespace", "bench"),
        ("three nodes", "main env 0", {"name": "FLAGBENCH_MASTER", "value": "fb-0.flagbench:30000"}),
        ("three nodes", ANTI, together("kubernetes.io/hostname")),
        ("a processor", "main resources limits LAST-KEY", "memory"),
        ("a processor", "main image", f"flagbench/distilbert:cpu-{__version__}"),
        ("a processor", "main env LENGTH", 2),
        ("a processor", "pod affinity nodeAffinity", None),
        ("a processor", "pod tolerations", None),
        ("an accelerator", "main resources limits", C500_LIMITS),
        ("an accelerator", "main resources requests", C500_LIMITS),
        ("an accelerator", "pod volumes 0 emptyDir", {"medium": "Memory", "sizeLimit": "64Gi"}),
        ("an accelerator", TERMS, nodes_with("metax-tech.com/gpu.product", "MXC500")),
        ("an accelerator", SAME, None),
        ("one device", SAME, None),
        ("one device", "pod securityContext", UNPRIVILEGED),
        ("one device", "main securityContext", NO_RIGHTS),
        ("one device", "pod automountServiceAccountToken", False),
        ("one device", "pod enableServiceLinks", False),
        ("one device", "pod tolerations", [{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        ("what beats the stack", "main resources limits cpu", "500m"),
        ("what beats the stack", "main resources limits memory", "1Ti"),
        ("what beats the stack", "pod volumes 0 emptyDir sizeLimit", "1Gi"),
        ("what beats the stack", "pod securityContext supplementalGroups", [44, 104]),
        ("what beats the stack", TERMS, nodes_with("gpu", "h100", "h200")),
        ("what beats the stack", SAME, None),
        ("nodes of one product", SAME, together("nvidia.com/gpu.product")),
        ("nodes of one label", SAME, together("cloud/gpu")),
        ("nodes of one value", SAME, None),
        ("nodes by name", SAME, None),
        ("RDMA", "pod securityContext", {**UNPRIVILEGED, "runAsUser": 0, "runAsNonRoot": False}),
        ("RDMA", "main securityContext", {**NO_RIGHTS, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}),
        ("RDMA", "main resources limits example.com/gpu", "4"),
        ("RDMA", "main resources requests example.com/gpu", "4"),
        ("an end", "job spec ttlSecondsAfterFinished", 600),
        ("an end", "job spec suspend", None),
        ("a queue", "job spec suspend", True),
        ("volumes", "main volumeMounts 1", mounted("data", subPath="sst2/v1", readOnly=True)),
        ("volumes", "main volumeMounts 3", mounted("out", subPath="runs")),
        ("volumes", "pod volumes 1 persistentVolumeClaim", {"claimName": "sets", "readOnly": True}),
        ("volumes", "pod volumes 3 persistentVolumeClaim", {"claimName": "results"}),
        ("volumes", "main args -3", "--data=/data"),
        ("volumes", "main args -1", "--out=/out"),
        ("one volume", "main volumeMounts 1", mounted("resume", subPath="first", readOnly=True)),
        ("one volume", "pod volumes 1 persistentVolumeClaim", {"claimName": "results"}),
        ("one volume", "pod volumes 2 persistentVolumeClaim", {"claimName": "results"}),
        ("one volume", "main args -2", "--resume=/resume"),
        ("a registry", "main image", f"r.io:5000/team/flagbench/distilbert:cpu-{__version__}"),
        ("a digest", "main image", f"r.io/x@{DIGEST}"),
        ("a digest", "main imagePullPolicy", "Always"),
        ("a digest", "main env 2", {"name": "FLAGBENCH_IMAGE_DIGEST", "value": DIGEST}),
        ("labels", "job metadata labels team", "a"),
        ("labels", f"{POD_LABELS} team", "a"),
        ("labels", f"{POD_NOTES} k8s.v1.cni.cncf.io/networks", "rdma"),
        ("labels", f"{POD_NOTES} kubectl.kubernetes.io/default-container", "flagbench"),
        ("labels", "job metadata annotations flagbench.dev/run-id", "run-1"),
        ("arguments", "main args", [f"--{word}" for word in WORDS.split()]),
    ],
)
def test_what_stands_where(job_of: JobOf, name: str, place: str, value: Any) -> None:
    of, options = JOBS[name]
    assert find(job_of(of, name="fb", **options), place) == value


def test_the_failure_policy_names_every_code_an_image_ends_with(job_of: JobOf) -> None:
    ignore, fail = job_of()[1]["spec"]["podFailurePolicy"]["rules"]
    assert ignore == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    # 8 to 11 are the host's: building and verdicts.
    hosts = {ExitCode.BUILD_FAILED, *range(ExitCode.BELOW, ExitCode.INVALID)}
    expected = sorted(set(ExitCode) - {ExitCode.OK, *hosts})
    assert fail["action"] == "FailJob"
    assert fail["onExitCodes"] == {"containerName": "flagbench", "operator": "In", "values": expected}


def test_jobs_of_a_namespace_share_one_service(job_of: JobOf) -> None:
    first, _ = job_of(name="a", namespace="bench", label=("team=a",))
    second, _ = job_of("distilbert:a100", name="1b", namespace="bench", nodes=2, port=30000, queue="q")
    assert first == second


@pytest.mark.parametrize(
    ("options", "minutes", "seconds"),
    [
        ({}, "210", 14400),
        ({"deadline": 7200}, "90", 7200),
        ({"deadline": 600}, "5", 600),
        ({"deadline": 90}, "0.75", 90),
        ({"max_minutes": 3.5}, "3.5", 2010),
        ({"deadline": 700, "max_minutes": 10}, "10", 700),
    ],
)
def test_the_run_always_ends_before_the_cluster_deletes_its_log(
    job_of: JobOf, options: dict[str, Any], minutes: str, seconds: int
) -> None:
    documents = job_of(**options)
    assert [word for word in find(documents, "main args") if "minutes" in word] == [f"--max-minutes={minutes}"]
    assert find(documents, "job spec activeDeadlineSeconds") == seconds


def test_the_template_is_blamed_only_where_one_was_given(
    request_of: Callable[..., JobRequest], tmp_path: Path
) -> None:
    template = edited(tmp_path, lambda job: job["spec"].update(backoffLimit=3))
    for given in ("mine.yaml", None):
        with pytest.raises(FlagbenchError) as caught:
            job_documents(request_of(template=given), template)
        assert ("mine.yaml" in caught.value.message) == (given is not None)
        assert "spec.backoffLimit" in caught.value.message


def test_a_job_is_made_without_changing_the_template(
    request_of: Callable[..., JobRequest], template: Template
) -> None:
    before = yaml.safe_dump([template.service, template.job])
    assert job_documents(request_of(), template) == job_documents(request_of(), template)
    assert yaml.safe_dump([template.service, template.job]) == before


def edited(tmp_path: Path, edit: Callable[[dict[str, Any]], Any]) -> Template:
    """flagbench's own template with the Job changed by hand."""
    service, job = yaml.safe_load_all(template_path(MANIFESTS).read_text(encoding="utf-8"))
    edit(job)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all([service, job]), encoding="utf-8")
    return read_template(path)


def test_an_operators_own_fields_are_kept(request_of: Callable[..., JobRequest], tmp_path: Path) -> None:
    scratch, mounted = {"name": "scratch", "emptyDir": {}}, {"name": "scratch", "mountPath": "/scratch"}
    toleration = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
    zone = {"key": "zone", "operator": "In", "values": ["a"]}

    def edit(job: dict[str, Any]) -> None:
        pod = job["spec"]["template"]["spec"]
        terms = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
        pod.update(priorityClassName="batch", tolerations=[toleration], volumes=[scratch])
        pod["affinity"] = {"nodeAffinity": {REQUIRED: terms}}
        main = pod["containers"][0]
        main.update(volumeMounts=[mounted], args=["--other"], resources={"limits": {"example.com/x": "1"}})
        main["securityContext"]["capabilities"] = {"add": ["SYS_ADMIN"]}

    request = request_of("distilbert:a100", rdma_resource=("rdma/hca=1",))
    documents = job_documents(request, edited(tmp_path, edit))
    assert "--other" not in find(documents, "main args")
    assert set(find(documents, "main resources limits")) == {"cpu", "memory", "nvidia.com/gpu", "rdma/hca"}
    expected = {
        "main securityContext capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
        "main volumeMounts 0": mounted,
        "main volumeMounts 1 name": "shm",
        "pod priorityClassName": "batch",
        "pod tolerations": [toleration, {"key": "nvidia.com/gpu", "operator": "Exists"}],
        "pod volumes 0": scratch,
        "pod volumes 1 name": "shm",
        f"{TERMS} 0 matchExpressions 0": zone,
        f"{TERMS} 0 matchExpressions 1 key": "nvidia.com/gpu.product",
    }
    assert {place: find(documents, place) for place in expected} == expected
    assert check_documents(documents) == []


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda job: job["spec"]["template"]["spec"]["containers"][0].update(name="main"), "flagbench"),
        (lambda job: job["spec"]["template"].update(spec="x"), "field spec"),
        (lambda job: job["spec"]["template"]["spec"].update(volumes={}), "field volumes"),
        (lambda job: job.update(kind="Pod"), "Pod"),
        (lambda job: job.update(apiVersion="batch/v2"), "batch/v1"),
    ],
)
def test_a_template_that_makes_no_good_job_is_refused(
    request_of: Callable[..., JobRequest], tmp_path: Path, edit: Callable[[dict[str, Any]], Any], named: str
) -> None:
    with pytest.raises(FlagbenchError) as caught:
        job_documents(request_of(), edited(tmp_path, edit))
    assert named in caught.value.message


def test_manifests_without_a_template_use_flagbenchs_own(manifests: Path) -> None:
    assert template_path(manifests) == manifests / "kubernetes" / "job.yaml"
    (manifests / "kubernetes" / "job.yaml").unlink()
    assert template_path(manifests) == MANIFESTS / "kubernetes" / "job.yaml"
