"""A request as Kubernetes documents: the headless Service that jobs share, and an Indexed Job, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from flagbench._version import __version__
from flagbench.errors import FlagbenchError
from flagbench.launchers.kubernetes import options
from flagbench.launchers.kubernetes.check import check_documents
from flagbench.launchers.kubernetes.request import JobRequest
from flagbench.launchers.kubernetes.template import CONTAINER, Template, container_in, list_in, mapping_in

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
"""Set on every pod by the Job controller (Kubernetes 1.27 and later)."""
POD_LABELS = {"app.kubernetes.io/name": "flagbench"}
"""On the pods of every job; by these the Service selects them."""
RUN_ID_ANNOTATION = f"{options.OWN_DOMAIN}/run-id"

Documents = list[dict[str, Any]]


def job_documents(request: JobRequest, template: Template) -> Documents:
    """The Service and the Job, in the order in which they are to be made.

    Raises:
        FlagbenchError: (usage) the template's shape, or what our own check finds in the result.
    """
    service = _service(request, deepcopy(template.service))
    documents = [service, _job(request, deepcopy(template.job), service["metadata"]["name"])]
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


def _service(request: JobRequest, service: dict[str, Any]) -> dict[str, Any]:
    """The Service of the namespace. Nothing of the job is in it: the next job applies the same one again."""
    metadata = mapping_in(service, "metadata")
    metadata.setdefault("name", options.SERVICE)
    if request.job.namespace is not None:
        metadata["namespace"] = request.job.namespace
    mapping_in(metadata, "labels").update({**POD_LABELS, "app.kubernetes.io/managed-by": "flagbench"})
    mapping_in(service, "spec")["selector"] = dict(POD_LABELS)
    return _ordered(service, "apiVersion", "kind", "metadata")


def _job(request: JobRequest, job: dict[str, Any], service: str) -> dict[str, Any]:
    """The Job. `service` is the name of the Service, under which its pods are found."""
    metadata = mapping_in(job, "metadata")
    metadata["name"] = request.job_name
    if request.job.namespace is not None:
        metadata["namespace"] = request.job.namespace
    mapping_in(metadata, "labels").update(_labels(request))
    mapping_in(job, "metadata", "annotations")[RUN_ID_ANNOTATION] = request.run_id
    resource = request.stack.kubernetes.resource
    mapping_in(job, "metadata", "annotations")[options.RESOURCE_ANNOTATION] = resource or options.NO_RESOURCE
    spec = mapping_in(job, "spec")
    spec["completions"] = spec["parallelism"] = request.run.nodes
    spec["activeDeadlineSeconds"] = request.deadline
    if request.job.ttl is not None:
        spec["ttlSecondsAfterFinished"] = request.job.ttl
    if request.job.queue is not None:
        mapping_in(job, "metadata", "labels")[options.QUEUE_LABEL] = request.job.queue
        # Kueue starts it when it is admitted. The deadline is counted from then on.
        spec["suspend"] = True
    template = mapping_in(spec, "template")
    mapping_in(template, "metadata", "labels").update(_labels(request))
    annotations = mapping_in(template, "metadata", "annotations")
    annotations["kubectl.kubernetes.io/default-container"] = CONTAINER
    annotations.update(request.annotations)
    pod = mapping_in(template, "spec")
    _pod(request, pod, service)
    template["spec"] = _ordered(pod, "subdomain", "containers", "volumes")
    spec["template"] = _ordered(template, "metadata", "spec")
    job["spec"] = _ordered(spec, "suspend", "completionMode", "completions", "parallelism", "activeDeadlineSeconds")
    return _ordered(job, "apiVersion", "kind", "metadata", "spec")


def _ordered(mapping: dict[str, Any], *first: str) -> dict[str, Any]:
    """The same mapping with these keys first, as a person expects to read them."""
    return {key: mapping[key] for key in (*first, *mapping) if key in mapping}


def _labels(request: JobRequest) -> dict[str, str]:
    return {
        **POD_LABELS,
        "app.kubernetes.io/instance": request.job_name,
        "app.kubernetes.io/component": request.case.name,
        "app.kubernetes.io/version": __version__,
        "app.kubernetes.io/managed-by": "flagbench",
        f"{options.OWN_DOMAIN}/case": request.case.name,
        f"{options.OWN_DOMAIN}/stack": request.stack.name,
        **request.labels,
    }


def _pod(request: JobRequest, pod: dict[str, Any], service: str) -> None:
    pod["subdomain"] = service
    needs = request.stack.kubernetes
    # Without an effect: for every effect of the taint.
    list_in(pod, "tolerations").extend({"key": key, "operator": "Exists"} for key in needs.tolerations)
    _affinity(request, pod)
    if request.job.pull_secret:
        list_in(pod, "imagePullSecrets").extend({"name": name} for name in request.job.pull_secret)
    security = mapping_in(pod, "securityContext")
    if request.root:
        security.update(runAsNonRoot=False, runAsUser=0, runAsGroup=0)
    if request.job.group:
        list_in(security, "supplementalGroups").extend(request.job.group)
    container = container_in(pod)
    container["image"] = request.image
    container["imagePullPolicy"] = request.job.pull_policy or "IfNotPresent"
    container["args"] = [_escape(word) for word in _arguments(request)]
    list_in(container, "env").extend(
        {"name": name, "value": _escape(value)} for name, value in _environment(request, service).items()
    )
    if request.job.env_from_secret:
        list_in(container, "envFrom").extend({"secretRef": {"name": name}} for name in request.job.env_from_secret)
    if request.rdma:
        capabilities = mapping_in(container, "securityContext", "capabilities")
        capabilities.update(drop=["ALL"], add=["IPC_LOCK"])
    container["resources"] = _resources(request)
    _volumes(request, pod, container)
    containers = pod["containers"]
    containers[containers.index(container)] = _ordered(container, "name", "image", "imagePullPolicy", "args", "env")
    if not pod["tolerations"]:
        del pod["tolerations"]


def _affinity(request: JobRequest, pod: dict[str, Any]) -> None:
    """Nodes by their product's label, all of one product, and never two pods on one node."""
    affinity = mapping_in(pod, "affinity")
    if request.node_labels:
        required = mapping_in(affinity, "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        wanted = [
            {"key": key, "operator": "In", "values": list(values)} for key, values in request.node_labels.items()
        ]
        # Terms are alternatives, so what is wanted belongs into each that the template has.
        terms = list_in(required, "nodeSelectorTerms")
        if not terms:
            terms.append({})
        for term in terms:
            if not isinstance(term, dict):
                raise FlagbenchError(
                    "a term of the template's node affinity is not a mapping",
                    remedy="write a list of matchExpressions there",
                )
            list_in(term, "matchExpressions").extend(deepcopy(wanted))
    alike = [key for key, values in request.node_labels.items() if len(values) > 1 and key != options.HOST_LABEL]
    if request.run.nodes > 1 and alike:
        # Where the first pod goes the others follow: the scheduler lets a pod that fits its own rule begin.
        _keep_pods(request, affinity, "podAffinity", alike)
    _keep_pods(request, affinity, "podAntiAffinity", [options.HOST_LABEL])


def _keep_pods(request: JobRequest, affinity: dict[str, Any], kind: str, keys: list[str]) -> None:
    """Keep the job's own pods together, or apart, by these labels of nodes."""
    list_in(mapping_in(affinity, kind), "requiredDuringSchedulingIgnoredDuringExecution").extend(
        {"labelSelector": {"matchLabels": {JOB_NAME_LABEL: request.job_name}}, "topologyKey": key} for key in keys
    )


def _arguments(request: JobRequest) -> list[str]:
    run = replace(request.run, run_id=request.run_id, max_minutes=request.max_minutes)
    # /data is named though it is the default: the tiny preset would take the set that it carries.
    return [*run.words(), *(f"--{name}=/{name}" for name in request.volumes)]


def _escape(text: str) -> str:
    """`text` written so that the container gets `text`: Kubernetes replaces `$(NAME)`, and `$$` by `$`."""
    return text.replace("$", "$$")


def _environment(request: JobRequest, service: str) -> dict[str, str]:
    """Variables of every pod; which node it is, JOB_COMPLETION_INDEX says, set by Kubernetes."""
    found = {
        options.MASTER_VARIABLE: f"{request.job_name}-0.{service}:{request.job.port}",
        options.TERMINATION_VARIABLE: "/dev/termination-log",
    }
    if request.image_digest is not None:
        found[options.DIGEST_VARIABLE] = request.image_digest
    return {**found, **request.environment}


def _resources(request: JobRequest) -> dict[str, Any]:
    """Limits equal to requests, so that nothing is shared and the pod is the last to be evicted."""
    amounts = {"cpu": request.cpu, "memory": request.memory}
    if request.stack.kubernetes.resource is not None:
        amounts[request.stack.kubernetes.resource] = str(request.run.gpus)
    amounts.update({name: str(count) for name, count in request.rdma.items()})
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _volumes(request: JobRequest, pod: dict[str, Any], container: dict[str, Any]) -> None:
    volumes, mounts = list_in(pod, "volumes"), list_in(container, "volumeMounts")
    volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": request.shm}})
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    written = request.volumes["out"].name if "out" in request.volumes else None
    for name, volume in request.volumes.items():
        claim: dict[str, Any] = {"claimName": volume.name}
        mount: dict[str, Any] = {"name": name, "mountPath": f"/{name}"}
        if volume.subpath is not None:
            mount["subPath"] = volume.subpath
        if name != "out":
            mount["readOnly"] = True
        if volume.name != written:  # a claim that is also written to cannot be attached for reading alone
            claim["readOnly"] = True
        volumes.append({"name": name, "persistentVolumeClaim": claim})
        mounts.append(mount)
