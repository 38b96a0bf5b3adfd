"""A request as Kubernetes documents: the headless Service that jobs share, and an Indexed Job, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from flagbench._version import __version__
from flagbench.errors import FlagbenchError
from flagbench.launchers.kubernetes import options
from flagbench.launchers.kubernetes.check import check_documents
from flagbench.launchers.kubernetes.options import CONTAINER
from flagbench.launchers.kubernetes.read import read_documents
from flagbench.launchers.kubernetes.request import JobRequest
from flagbench.launchers.kubernetes.storage import credentials
from flagbench.schema import shipped_manifests

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
"""Set on every pod by the Job controller (Kubernetes 1.27 and later)."""
POD_LABELS = {"app.kubernetes.io/name": "flagbench"}
"""On the pods of every job; by these the Service selects them."""
RUN_ID_ANNOTATION = f"{options.OWN_DOMAIN}/run-id"
_REPLACED = ("selector", "args", "resources", "capabilities")
"""Fields of which nothing of the template's is kept."""

T = TypeVar("T")
Documents = list[dict[str, Any]]


@dataclass(frozen=True)
class Template:
    """The policy that every job starts from: a Service and a Job without what depends on the run."""

    service: dict[str, Any]
    job: dict[str, Any]


def template_path(manifests: Path) -> Path:
    """The template in a folder of manifests, else flagbench's own."""
    path = manifests / "kubernetes" / "job.yaml"
    return path if path.is_file() else shipped_manifests() / "kubernetes" / "job.yaml"


def read_template(path: Path) -> Template:
    """The template in a file.

    Raises:
        FlagbenchError: (usage) the file cannot be read, or does not hold one Service and one Job with the container.
    """
    documents = read_documents(path)
    by_kind = {f"{document.get('apiVersion')} {document.get('kind')}": document for document in documents}
    if len(documents) != 2 or set(by_kind) != {"batch/v1 Job", "v1 Service"}:
        raise FlagbenchError(
            f"the template {path} holds {', '.join(by_kind) or 'nothing'}, not one v1 Service and one batch/v1 Job",
            remedy="start from flagbench's own manifests/kubernetes/job.yaml",
        )
    return Template(by_kind["v1 Service"], by_kind["batch/v1 Job"])


def job_documents(request: JobRequest, template: Template) -> Documents:
    """The Service and the Job, in the order in which they are to be made.

    Raises:
        FlagbenchError: (usage) the template's shape, or what our own check finds in the result.
    """
    # Nothing of the job is in the Service: the next job of the namespace applies the same one again.
    shared = {
        "metadata": {
            "namespace": request.job.namespace,
            "labels": {**POD_LABELS, "app.kubernetes.io/managed-by": "flagbench"},
        },
        "spec": {"selector": POD_LABELS},
    }
    service = _merge({"metadata": {"name": options.SERVICE}}, template.service, "Service")
    service = _merge(service, shared, "Service")
    job = _merge(template.job, _job(request, service["metadata"]["name"]), "Job")
    documents = deepcopy([service, job])
    problems = check_documents(documents)
    if problems:
        given = request.job.template
        source = "these options make" if given is None else f"the template {given} makes"
        raise FlagbenchError(
            f"{source} a job that would not work: {problems[0].document}: {problems[0].what}",
            remedy=problems[0].remedy,
        )
    return documents


def job_list(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The documents as one, for JSON."""
    return {"apiVersion": "v1", "kind": "List", "items": list(documents)}


def _job(request: JobRequest, service: str) -> dict[str, Any]:
    """The Job. `service` is the name of the Service, under which its pods are found."""
    labels = {
        **POD_LABELS,
        "app.kubernetes.io/instance": request.job_name,
        "app.kubernetes.io/component": request.case.name,
        "app.kubernetes.io/version": __version__,
        "app.kubernetes.io/managed-by": "flagbench",
        f"{options.OWN_DOMAIN}/case": request.case.name,
        f"{options.OWN_DOMAIN}/stack": request.stack.name,
        **request.labels,
    }
    annotations = {
        RUN_ID_ANNOTATION: request.run_id,
        options.RESOURCE_ANNOTATION: request.stack.kubernetes.resource or options.NO_RESOURCE,
    }
    return {
        "metadata": {
            "name": request.job_name,
            "namespace": request.job.namespace,
            "labels": {**labels, options.QUEUE_LABEL: request.job.queue},
            "annotations": annotations,
        },
        "spec": {
            # Kueue starts it when it is admitted. The deadline is counted from then on.
            "suspend": None if request.job.queue is None else True,
            "completions": request.run.nodes,
            "parallelism": request.run.nodes,
            "activeDeadlineSeconds": request.deadline,
            "ttlSecondsAfterFinished": request.job.ttl,
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {"kubectl.kubernetes.io/default-container": CONTAINER, **request.annotations},
                },
                "spec": _pod(request, service),
            },
        },
    }


def _pod(request: JobRequest, service: str) -> dict[str, Any]:
    volumes, mounts = _volumes(request)
    root = {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0} if request.root else {}
    return {
        "subdomain": service,
        # Without an effect: for every effect of the taint.
        "tolerations": [{"key": key, "operator": "Exists"} for key in request.stack.kubernetes.tolerations],
        "affinity": _affinity(request),
        "imagePullSecrets": [{"name": name} for name in request.job.pull_secret],
        "securityContext": {**root, "supplementalGroups": list(request.job.group)},
        "containers": [_container(request, service, mounts)],
        "volumes": volumes,
    }


def _container(request: JobRequest, service: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    run = replace(request.run, run_id=request.run_id, max_minutes=request.max_minutes)
    # /data is named though it is the default: the tiny preset would take the set that it carries.
    arguments = [*run.words(), *(f"--{name}=/{name}" for name in request.volumes)]
    if request.job.store is not None:
        arguments.append(f"--store={request.job.store}")
    return {
        "name": CONTAINER,
        "image": request.image,
        "imagePullPolicy": request.job.pull_policy or "IfNotPresent",
        "args": [_escape(word) for word in arguments],
        "env": [
            *({"name": name, "value": _escape(value)} for name, value in _environment(request, service).items()),
            *credentials(request.job),
        ],
        "envFrom": [{"secretRef": {"name": name}} for name in request.job.env_from_secret],
        "securityContext": {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]} if request.rdma else None},
        "resources": _resources(request),
        "volumeMounts": mounts,
    }


def _affinity(request: JobRequest) -> dict[str, Any]:
    """Nodes by their product's label, all of one product, and never two pods on one node."""
    labels = request.node_labels
    wanted = [{"key": key, "operator": "In", "values": list(values)} for key, values in labels.items()]
    alike = [key for key, values in labels.items() if len(values) > 1 and key != options.HOST_LABEL]
    own = {"matchLabels": {JOB_NAME_LABEL: request.job_name}}

    def by(keys: list[str]) -> list[dict[str, Any]]:
        return [{"labelSelector": own, "topologyKey": key} for key in keys]

    required = {
        "nodeAffinity": {"nodeSelectorTerms": [{"matchExpressions": wanted}] if wanted else []},
        # Where the first pod goes the others follow: the scheduler lets a pod that fits its own rule begin.
        "podAffinity": by(alike) if request.run.nodes > 1 else [],
        "podAntiAffinity": by([options.HOST_LABEL]),
    }
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": rules} for kind, rules in required.items()}


def _escape(text: str) -> str:
    """`text` written so that the container gets `text`: Kubernetes replaces `$(NAME)`, and `$$` by `$`."""
    return text.replace("$", "$$")


def _environment(request: JobRequest, service: str) -> dict[str, str]:
    """Variables of every pod; which node it is, JOB_COMPLETION_INDEX says, set by Kubernetes."""
    found = {
        options.MASTER_VARIABLE: f"{request.job_name}-0.{service}:{request.job.port}",
        options.TERMINATION_VARIABLE: "/dev/termination-log",
    }
    if request.reference.digest is not None:
        found[options.DIGEST_VARIABLE] = request.reference.digest
    return {**found, **request.environment}


def _resources(request: JobRequest) -> dict[str, Any]:
    """Limits equal to requests, so that nothing is shared and the pod is the last to be evicted."""
    amounts = {"cpu": request.cpu, "memory": request.memory}
    if request.stack.kubernetes.resource is not None:
        amounts[request.stack.kubernetes.resource] = str(request.run.gpus)
    amounts.update(request.rdma)
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _volumes(request: JobRequest) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes of the pod, and where its container sees them."""
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": request.shm}}]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    written = request.volumes["out"].name if "out" in request.volumes else None
    for name, volume in request.volumes.items():
        # A claim that is also written to cannot be attached for reading alone.
        claim_read_only = {} if volume.name == written else {"readOnly": True}
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": volume.name, **claim_read_only}})
        subpath = {} if volume.subpath is None else {"subPath": volume.subpath}
        read_only = {} if name == "out" else {"readOnly": True}
        mounts.append({"name": name, "mountPath": f"/{name}", **subpath, **read_only})
    return volumes, mounts


def _merge(base: Any, over: Any, field: str) -> Any:
    """`over` on top of a template's `base`: fields are set, lists are added to. None and empty values change nothing.

    Raises:
        FlagbenchError: (usage) the template has something else where a mapping or a list belongs.
    """
    if isinstance(over, dict) and field not in _REPLACED:
        mapping = _typed(dict, base, field)
        # The fields that only the template has come first, after a name.
        keys = sorted([*(key for key in mapping if key not in over), *over], key=lambda key: key != "name")
        merged = {key: _merge(mapping.get(key), over.get(key), key) for key in keys}
        return {key: value for key, value in merged.items() if value is not None} or None
    if isinstance(over, list) and field not in _REPLACED:
        return _merge_lists(_typed(list, base, field), over, field) or None
    return base if over is None else over


def _merge_lists(base: list[Any], over: list[Any], field: str) -> list[Any]:
    if field == "containers":
        ours = [isinstance(item, dict) and item.get("name") == CONTAINER for item in base]
        return [_merge(item, over[0], CONTAINER) if own else item for own, item in zip(ours, base, strict=True)]
    if field == "nodeSelectorTerms" and over:
        # Terms are alternatives, so what is wanted belongs into each that the template has.
        return [_merge(term, over[0], field) for term in base or [{}]]
    return [*base, *over]


def _typed(kind: type[T], value: Any, field: str) -> T:
    """A field of the template as a mapping or a list; empty if the template lacks it."""
    if value is not None and not isinstance(value, kind):
        what = "mapping" if kind is dict else "list"
        raise FlagbenchError(
            f"the template's field {field} is not a {what}", remedy=f"write a {what}, or leave it out"
        )
    return value or kind()
