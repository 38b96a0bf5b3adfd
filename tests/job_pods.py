"""Jobs of every kind, and what a pod of one gets to see: for running the same containers without a cluster."""

import re
from copy import deepcopy
from dataclasses import fields
from functools import cache
from pathlib import Path

import yaml

from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import resolve_image
from flagbench.runs.launchers.job_request import JobOptions
from flagbench.runs.launchers.kubernetes import KubernetesOptions, KubernetesRequest
from flagbench.runs.request import RunOptions

PAGES = Path(__file__).parents[1] / "docs"
DOCS = (PAGES / "kubernetes.md").read_text(encoding="utf-8")
DIGEST = "sha256:" + "a" * 64
VOLUMES = {"data_pvc": "sets:sst2/v1", "weights_pvc": "models", "out_pvc": "results:runs"}
TOLD = {"nodes": 2, "preset": "tiny", "precision": "bf16", "steps": 5, "seed": 3, "set_": ("batch_size=8",)}
STORE = {"store": "s3://bench/lab?profile=ceph", "store_secret": "bucket"}

JOBS = {
    "three nodes": ("distilbert:cpu", {"nodes": 3, "namespace": "bench"}),
    "a processor": ("distilbert:cpu", {"gpus": 2}),
    "an accelerator": ("distilbert:c500", {"nodes": 2, "gpus": 8}),
    "one device": ("distilbert:a100", {}),
    "nodes of one product": ("distilbert:h100", {"nodes": 2}),
    "nodes of one device": ("distilbert:h100-sxm", {"nodes": 2}),
    "nodes of one label": ("distilbert:h100", {"nodes": 2, "node_label": ("cloud/gpu=h100,h200",)}),
    "nodes by name": ("distilbert:h100", {"nodes": 2, "node_label": ("kubernetes.io/hostname=a,b",)}),
    # Its name says gpu, and it is not the accelerator.
    "RDMA": ("distilbert:a100", {"nodes": 2, "gpus": 8, "rdma_resource": ("example.com/gpu=4",)}),
    "a queue": ("distilbert:cpu", {"queue": "fast"}),
    "volumes": ("distilbert:cpu", VOLUMES),
    "one volume": ("llama2-7b-lora:a100", {"out_pvc": "results", "resume_pvc": "results:first"}),
    "a store": ("distilbert:cpu", STORE),
    "a registry": ("distilbert:cpu", {"registry": "r.io:5000/team"}),
    "a digest": ("distilbert:cpu", {"image": f"r.io/x@{DIGEST}", "pull_secret": ("reg",)}),
    "arguments": ("distilbert:cpu", TOLD),
    "an end": ("distilbert:cpu", {"max_minutes": 3.51}),
    # Of these it is only asked whether they are valid.
    "MACA 3": ("distilbert:c500-maca3", {"gpus": 8}),
    "a digest of an accelerator's image": ("distilbert:h200", {"gpus": 8, "image": "r.io/x@" + DIGEST}),
    "variables": ("distilbert:cpu", {"env": ("A=$(B) $$",), "preset": "tiny", "full": True}),
    "a model across nodes": ("aquila-33b:a100-cuda11.8", {"nodes": 2, "gpus": 4, "set_": ("tp=8",)}),
    "a model in stages": ("llama2-70b:cuda13", {"nodes": 4, "gpus": 8, "set_": ("tp=8", "pp=4")}),
}
"""A job of every kind that is rendered: what to run, and the options."""
_TERMS = "pod affinity nodeAffinity requiredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms"
BOUND = _TERMS + " 0 matchFields 0 values 0"
"""The place of the node's name in a job for one node."""
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


@cache
def _catalog():
    return load_catalog_without_claims()


def request_of(of="distilbert:cpu", /, **options):
    """A request with options of the run and of the job."""
    options = {"run_id": "run-1", **options}
    run = _take(RunOptions, options)
    job = _take(JobOptions, options)
    return KubernetesRequest(*resolve_image(of, _catalog()), run, job, KubernetesOptions(**options))


def _take(options_class, options):
    """An object of a dataclass with those of the options that it has, which are removed."""
    names = [field.name for field in fields(options_class) if field.name in options]
    return options_class(**{name: options.pop(name) for name in names})


def job_documents(request):
    """The Service and the Job that `flagbench job` prints for a request."""
    return list(yaml.safe_load_all(request.render()))


def job_of(of="distilbert:cpu", /, **options):
    """The Service and the Job of a request with these options."""
    return job_documents(request_of(of, **options))


def kustomization(title):
    """The text of the kustomization.yaml in that section of docs/kubernetes.md."""
    section = DOCS.split("\n## %s\n" % title)[1].split("\n## ")[0]
    return section.split("```yaml\n")[1].split("```")[0]


def with_init_container(documents, text):
    """The documents with what a kustomization adds: an init container, volumes, and mounts of the main container."""
    (patch,) = yaml.safe_load(text)["patches"]
    added = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]
    service, job = deepcopy(documents)
    pod = job["spec"]["template"]["spec"]
    pod["initContainers"] = added["initContainers"]
    pod["volumes"] = added["volumes"] + pod["volumes"]
    (container,) = pod["containers"]
    container["volumeMounts"] = added["containers"][0]["volumeMounts"] + container["volumeMounts"]
    return [service, job]


def find(documents, place):
    """What stands at `ROOT KEY INDEX ...` in a Service and a Job; None where nothing does."""
    service, job = documents
    pod = job["spec"]["template"]["spec"]
    root, *steps = place.split()
    value = {"service": service, "job": job, "pod": pod, "main": pod["containers"][0]}[root]
    for step in steps:
        if step == "LAST-KEY":
            return [*value][-1]
        value = value[int(step)] if isinstance(value, list) else (value or {}).get(step)
    return value


def expand(text, environment):
    """What Kubernetes makes of `text`: `$(NAME)` becomes the value of NAME where there is one, `$$` becomes `$`."""
    return _REFERENCE.sub(lambda match: "$" if match[1] is None else environment.get(match[1], match[0]), text)


def pod_name(documents, index):
    """The name in the cluster's DNS, `HOST.SERVICE`, of the pod of that index."""
    job = documents[1]
    return "%s-%d.%s" % (job["metadata"]["name"], index, job["spec"]["template"]["spec"]["subdomain"])


def pod_environment(documents, index):
    """The variables of the pod of that index, on a node of its own; those from Secrets are not among them."""
    found = {}
    for entry in _container(documents)["env"]:
        if "value" in entry:
            found[entry["name"]] = expand(entry["value"], found)
        elif entry["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}:
            found[entry["name"]] = find(documents, BOUND) or "node-%d" % index
    return {**found, "JOB_COMPLETION_INDEX": str(index)}


def pod_arguments(documents, index):
    """The arguments that the image's entrypoint is given."""
    return [expand(word, pod_environment(documents, index)) for word in _container(documents)["args"]]


def pod_image(documents):
    """The image that every pod runs."""
    return _container(documents)["image"]


def pod_file_systems(documents):
    """The root and the empty folders of a pod, as options of docker-py's `containers.create`; not /dev/shm."""
    empty = {volume["name"] for volume in documents[1]["spec"]["template"]["spec"]["volumes"] if "emptyDir" in volume}
    container = _container(documents)
    mounts = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in empty - {"shm"}]
    read_only = container["securityContext"]["readOnlyRootFilesystem"]
    return {"read_only": read_only, "tmpfs": dict.fromkeys(mounts, "exec")}


def _container(documents):
    (container,) = documents[1]["spec"]["template"]["spec"]["containers"]
    return container
