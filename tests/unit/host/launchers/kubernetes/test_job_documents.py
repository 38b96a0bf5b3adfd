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
from flagbench.launchers.kubernetes.documents import job_documents
from flagbench.launchers.kubernetes.request import JobRequest
from flagbench.launchers.kubernetes.template import Template, read_template, template_path

MANIFESTS = Path(__file__).parents[5] / "manifests"
DIGEST = "sha256:" + "a" * 64

Documents = list[dict[str, Any]]
JobOf = Callable[..., Documents]


def pod_of(documents: Documents) -> dict[str, Any]:
    return documents[1]["spec"]["template"]["spec"]


def container_of(documents: Documents) -> dict[str, Any]:
    return pod_of(documents)["containers"][0]


def test_nodes_find_each_other(job_of: JobOf) -> None:
    service, job = job_of(nodes=3, name="fb", port=30000, namespace="bench")
    assert [d["metadata"]["namespace"] for d in (service, job)] == ["bench", "bench"]
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"app.kubernetes.io/name": "flagbench"},
        "ports": [{"name": "rendezvous", "port": 29400, "protocol": "TCP"}],
    }
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (3, 3)
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"] == "flagbench"
    assert container_of([service, job])["env"][0] == {"name": "FLAGBENCH_MASTER", "value": "fb-0.flagbench:30000"}
    (rule,) = pod_of([service, job])["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == {"batch.kubernetes.io/job-name": "fb"}


def test_devices_memory_and_nodes_of_an_accelerator(job_of: JobOf) -> None:
    documents = job_of("distilbert:c500", nodes=2, gpus=8)
    resources = container_of(documents)["resources"]
    assert resources["limits"] == resources["requests"]
    assert resources["limits"] == {"cpu": "80", "memory": "576Gi", "metax-tech.com/gpu": "8"}
    pod = pod_of(documents)
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "metax-tech.com/gpu.product", "operator": "In", "values": ["MXC500"]}]
    assert "tolerations" not in pod
    assert pod_of(job_of("distilbert:a100"))["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def tied_by(documents: Documents) -> list[str]:
    """The labels of nodes by which the pods of a job stay together."""
    rules = pod_of(documents)["affinity"].get("podAffinity", {"requiredDuringSchedulingIgnoredDuringExecution": []})
    name = documents[1]["metadata"]["name"]
    for rule in rules["requiredDuringSchedulingIgnoredDuringExecution"]:
        assert rule["labelSelector"] == {"matchLabels": {"batch.kubernetes.io/job-name": name}}
    return [rule["topologyKey"] for rule in rules["requiredDuringSchedulingIgnoredDuringExecution"]]


def test_the_nodes_of_a_run_are_of_one_model(job_of: JobOf) -> None:
    assert tied_by(job_of("distilbert:h100", nodes=2, gpus=8)) == ["nvidia.com/gpu.product"]
    assert tied_by(job_of("distilbert:h100", nodes=2, node_label=("cloud/gpu=h100,h200",))) == ["cloud/gpu"]
    assert tied_by(job_of("distilbert:h100", nodes=2, node_label=("cloud/gpu=h200",))) == []
    assert tied_by(job_of("distilbert:h100", nodes=2, node_label=("kubernetes.io/hostname=a,b",))) == []
    assert tied_by(job_of("distilbert:h100", nodes=1, gpus=8)) == []
    assert tied_by(job_of("distilbert:c500", nodes=2, gpus=8)) == []


def test_a_processor_asks_for_no_device_and_any_node(job_of: JobOf) -> None:
    documents = job_of(gpus=2)
    assert set(container_of(documents)["resources"]["limits"]) == {"cpu", "memory"}
    assert "nodeAffinity" not in pod_of(documents)["affinity"]
    assert "tolerations" not in pod_of(documents)


def test_what_was_asked_for_beats_the_stack(job_of: JobOf) -> None:
    documents = job_of(
        "distilbert:h100", cpu="500m", memory="1Ti", shm="1Gi", node_label=("cloud/gpu=h100,h200",), group=(44, 104)
    )
    assert container_of(documents)["resources"]["limits"] == {"cpu": "500m", "memory": "1Ti", "nvidia.com/gpu": "1"}
    pod = pod_of(documents)
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == "1Gi"
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "cloud/gpu", "operator": "In", "values": ["h100", "h200"]}]
    assert pod["securityContext"]["supplementalGroups"] == [44, 104]


def test_no_rights_at_all_without_rdma(job_of: JobOf) -> None:
    documents = job_of("distilbert:a100")
    assert pod_of(documents)["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container_of(documents)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod_of(documents)["automountServiceAccountToken"] is False
    assert pod_of(documents)["enableServiceLinks"] is False


def test_rdma_is_root_with_one_capability(job_of: JobOf) -> None:
    documents = job_of("distilbert:a100", nodes=2, gpus=8, rdma_resource=("rdma/hca=4",))
    security = pod_of(documents)["securityContext"]
    assert (security["runAsUser"], security["runAsNonRoot"]) == (0, False)
    assert container_of(documents)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }
    resources = container_of(documents)["resources"]
    assert (resources["limits"]["rdma/hca"], resources["requests"]["rdma/hca"]) == ("4", "4")


def test_it_ends_once_and_in_any_case(job_of: JobOf) -> None:
    spec = job_of(ttl=600, max_minutes=5)[1]["spec"]
    assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (5 * 60 + 1800, 600)
    assert "suspend" not in spec
    assert job_of(queue="fast")[1]["spec"]["suspend"] is True


def test_the_failure_policy_names_every_code_an_image_ends_with(job_of: JobOf) -> None:
    ignore, fail = job_of()[1]["spec"]["podFailurePolicy"]["rules"]
    assert ignore == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    # 8 to 11 are the host's: building and verdicts.
    hosts = {ExitCode.BUILD_FAILED, *range(ExitCode.BELOW, ExitCode.INVALID)}
    expected = sorted(set(ExitCode) - {ExitCode.OK, *hosts})
    assert fail["action"] == "FailJob"
    assert fail["onExitCodes"] == {"containerName": "flagbench", "operator": "In", "values": expected}


def test_volumes_are_read_only_but_where_the_record_goes(job_of: JobOf) -> None:
    documents = job_of(data_pvc="sets:sst2/v1", weights_pvc="models", out_pvc="results:runs")
    assert container_of(documents)["volumeMounts"][1:] == [
        {"name": "data", "mountPath": "/data", "subPath": "sst2/v1", "readOnly": True},
        {"name": "weights", "mountPath": "/weights", "readOnly": True},
        {"name": "out", "mountPath": "/out", "subPath": "runs"},
    ]
    assert pod_of(documents)["volumes"][1:] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": "sets", "readOnly": True}},
        {"name": "weights", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
        {"name": "out", "persistentVolumeClaim": {"claimName": "results"}},
    ]
    assert container_of(documents)["args"][-3:] == ["--data=/data", "--weights=/weights", "--out=/out"]


def test_one_claim_for_checkpoints_and_results_is_attached_for_both(job_of: JobOf) -> None:
    documents = job_of("llama2-7b-lora:a100", out_pvc="results", resume_pvc="results:checkpoints/first")
    assert [v["persistentVolumeClaim"] for v in pod_of(documents)["volumes"][1:]] == [{"claimName": "results"}] * 2
    mount = {"name": "resume", "mountPath": "/resume", "subPath": "checkpoints/first", "readOnly": True}
    assert mount in container_of(documents)["volumeMounts"]
    assert container_of(documents)["args"][-2:] == ["--resume=/resume", "--out=/out"]


def test_image_by_version_registry_or_digest(job_of: JobOf) -> None:
    assert container_of(job_of())["image"] == f"flagbench/distilbert:cpu-{__version__}"
    assert container_of(job_of(registry="r.io:5000/team"))["image"].startswith("r.io:5000/team/flagbench/distilbert:")
    pinned = container_of(job_of(image=f"r.io/x@{DIGEST}", pull_policy="Always", pull_secret=("regcred",)))
    assert (pinned["image"], pinned["imagePullPolicy"]) == (f"r.io/x@{DIGEST}", "Always")
    assert {"name": "FLAGBENCH_IMAGE_DIGEST", "value": DIGEST} in pinned["env"]
    assert "FLAGBENCH_IMAGE_DIGEST" not in [e["name"] for e in container_of(job_of())["env"]]


def test_jobs_of_a_namespace_share_one_service(job_of: JobOf) -> None:
    first, job = job_of(name="a", namespace="bench", label=("team=a",))
    second, _ = job_of("distilbert:a100", name="1b", namespace="bench", nodes=2, port=30000, queue="q")
    assert first == second
    assert first["metadata"]["name"] == "flagbench"
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert first["spec"]["selector"].items() <= labels.items()


def test_labels_and_annotations_are_the_jobs_and_its_pods(job_of: JobOf) -> None:
    _, job = job_of(label=("team=a",), annotation=("k8s.v1.cni.cncf.io/networks=rdma",))
    places = [job["metadata"], job["spec"]["template"]["metadata"]]
    assert [place["labels"]["team"] for place in places] == ["a", "a"]
    assert [place["labels"]["app.kubernetes.io/name"] for place in places] == ["flagbench"] * 2
    assert places[1]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "rdma"
    assert places[1]["annotations"]["kubectl.kubernetes.io/default-container"] == "flagbench"
    assert places[0]["annotations"] == {"flagbench.dev/run-id": "run-1", "flagbench.dev/device-resource": "none"}


def test_every_node_is_told_the_same(job_of: JobOf) -> None:
    options = {"preset": "tiny", "precision": "bf16", "steps": 5, "seed": 3, "set_": ("batch_size=8",)}
    assert container_of(job_of(nodes=2, gpus=2, **options))["args"] == [
        "--nodes=2",
        "--gpus=2",
        "--run-id=run-1",
        "--preset=tiny",
        "--precision=bf16",
        "--steps=5",
        "--seed=3",
        "--set=batch_size=8",
        "--max-minutes=210",
    ]


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
    assert [word for word in container_of(documents)["args"] if "minutes" in word] == [f"--max-minutes={minutes}"]
    assert documents[1]["spec"]["activeDeadlineSeconds"] == seconds


def test_a_network_device_called_gpu_is_not_taken_for_the_accelerator(job_of: JobOf) -> None:
    limits = container_of(job_of("distilbert:a100", gpus=4, rdma_resource=("example.com/gpu=1",)))["resources"][
        "limits"
    ]
    assert (limits["example.com/gpu"], limits["nvidia.com/gpu"]) == ("1", "4")


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
    def edit(job: dict[str, Any]) -> None:
        pod = job["spec"]["template"]["spec"]
        pod["priorityClassName"] = "batch"
        pod["tolerations"] = [{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}]
        pod["volumes"] = [{"name": "scratch", "emptyDir": {}}]
        main = pod["containers"][0]
        main["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
        main.update(args=["--other"], resources={"limits": {"example.com/x": "1"}})
        main["securityContext"]["capabilities"] = {"add": ["SYS_ADMIN"]}
        zone = {"key": "zone", "operator": "In", "values": ["a"]}
        pod["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [zone]}]
                }
            }
        }

    request = request_of("distilbert:a100", rdma_resource=("rdma/hca=1",))
    documents = job_documents(request, edited(tmp_path, edit))
    main = container_of(documents)
    assert "--other" not in main["args"]
    assert set(main["resources"]["limits"]) == {"cpu", "memory", "nvidia.com/gpu", "rdma/hca"}
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert [mount["name"] for mount in main["volumeMounts"]] == ["scratch", "shm"]
    pod = pod_of(documents)
    assert pod["priorityClassName"] == "batch"
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["team", "nvidia.com/gpu"]
    assert [volume["name"] for volume in pod["volumes"]] == ["scratch", "shm"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [e["key"] for e in term["matchExpressions"]] == ["zone", "nvidia.com/gpu.product"]
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
