"""Good jobs pass Kubernetes' schemas and our own check; each planted mistake is caught by the half that should."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flagbench.jobs import check_documents
from flagbench.jobs.schemas import VERSIONS, check_schemas

Data = dict[str, Any]
Documents = list[Data]
JobOf = Callable[..., Documents]

DIGEST = "sha256:" + "a" * 64
GOOD: dict[str, Data] = {
    "cpu": {},
    "cpu on two nodes": {"nodes": 2, "gpus": 2},
    "a100 2x8 with RDMA": {
        "of": "distilbert:a100",
        "nodes": 2,
        "gpus": 8,
        "rdma_resource": ("rdma/hca_shared_devices_a=1",),
        "namespace": "bench",
    },
    "c500": {"of": "distilbert:c500", "nodes": 2, "gpus": 8, "group": (44,)},
    "c500 with MACA 3": {"of": "distilbert:c500-maca3", "gpus": 8},
    "hopper": {"of": "distilbert:h200", "gpus": 8, "image": f"r.io/flagbench/distilbert@{DIGEST}"},
    "queue": {"nodes": 2, "queue": "fast", "label": ("team=a",), "annotation": ("note=x: y",)},
    "claims": {"data_pvc": "sets:sst2", "weights_pvc": "models", "out_pvc": "results:a/b"},
    "variables": {"env": ("A=$(B) $$",), "env_from_secret": ("hub",), "pull_secret": ("regcred",), "ttl": 600},
    "options": {"arguments": {"preset": "tiny", "full": True, "max_minutes": 3.5, "set_": ("dropout=0",)}},
}


def good(job_of: JobOf, name: str) -> Documents:
    options = dict(GOOD[name])
    return copy.deepcopy(job_of(options.pop("of", "distilbert:cpu"), **options))


@pytest.mark.parametrize("name", GOOD)
def test_good_jobs_pass_our_check(name: str, job_of: JobOf) -> None:
    assert check_documents(good(job_of, name)) == []


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.usefixtures("schemas")
def test_good_jobs_pass_the_schemas_of_the_last_three_releases(name: str, job_of: JobOf) -> None:
    assert len(VERSIONS) == 3
    assert check_schemas(good(job_of, name)) == []


def test_what_the_server_takes_is_not_refused(planted: Planted) -> None:
    """Kubernetes 1.36 takes each of these; older rules forbade the first two."""
    planted.service["metadata"]["name"] = planted.pod["subdomain"] = "1a"
    planted.main["env"][0]["value"] = "fb-0.1a:29400"
    planted.pod["volumes"].append({"name": "more", "emptyDir": {}})
    planted.main["volumeMounts"].append({"name": "more", "mountPath": "/a:b"})
    assert check_documents(planted.documents) == []


def test_only_pods_at_a_time_are_limited(planted: Planted) -> None:
    """With fewer pods at a time the server takes any number of completions; a run needs them all at once."""
    planted.spec.update(completions=200_000, parallelism=2)
    fields = [problem.path for problem in check_documents(planted.documents)]
    assert ("spec", "parallelism") in fields
    assert ("spec", "completions") not in fields


class Planted:
    """A good job of two nodes with RDMA and claims, to be spoilt in one place."""

    def __init__(self, documents: Documents) -> None:
        self.documents = documents
        self.service, self.job = documents
        self.spec: Data = self.job["spec"]
        self.pod: Data = self.spec["template"]["spec"]
        self.main: Data = self.pod["containers"][0]
        self.limits: Data = self.main["resources"]["limits"]
        self.requests: Data = self.main["resources"]["requests"]
        self.rules: list[Data] = self.spec["podFailurePolicy"]["rules"]

    def rename(self, mapping: Data, old: str, new: str) -> None:
        """Misspell a field."""
        mapping[new] = mapping.pop(old)


@pytest.fixture
def planted(job_of: JobOf) -> Planted:
    options = {"rdma_resource": ("rdma/hca=1",), "data_pvc": "sets", "image": f"r.io/x@{DIGEST}"}
    return Planted(copy.deepcopy(job_of("distilbert:a100", name="fb", nodes=2, gpus=8, **options)))


def replace_label(p: Planted, value: str) -> None:
    p.job["metadata"]["labels"]["app.kubernetes.io/version"] = value


SCHEMA_CATCHES: dict[str, tuple[Callable[[Planted], Any], str]] = {
    "misspelt backoffLimit": (lambda p: p.rename(p.spec, "backoffLimit", "backOffLimit"), "backOffLimit"),
    "misspelt completionMode": (lambda p: p.rename(p.spec, "completionMode", "completionmode"), "completionmode"),
    "misspelt sizeLimit": (
        lambda p: p.rename(p.pod["volumes"][0]["emptyDir"], "sizeLimit", "sizelimit"),
        "sizelimit",
    ),
    "a number for a variable": (lambda p: p.main["env"].append({"name": "A", "value": 1}), "1 is not of type"),
    "a number among the arguments": (lambda p: p.main["args"].append(5), "5 is not of type"),
    "completions as text": (lambda p: p.spec.update(completions="2", parallelism="2"), "'2' is not of type"),
    "a rule without action": (lambda p: p.rules[1].pop("action"), "'action' is a required property"),
    "a container without name": (lambda p: p.main.pop("name"), "'name' is a required property"),
    "no template": (lambda p: p.spec.pop("template"), "'template' is a required property"),
    "a number for a label": (lambda p: replace_label(p, 1), "1 is not of type"),  # type: ignore[arg-type]
    "a port that is no number": (
        lambda p: p.service["spec"]["ports"][0].update(port="http"),
        "'http' is not of type",
    ),
}


def init(p: Planted, **fields: Any) -> None:
    """A container that runs before the others, harmless but for these fields."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    p.pod["initContainers"] = [{"name": "fetch", "image": "r.io/fetch:1", "securityContext": security, **fields}]


def volume(p: Planted, **source: Any) -> None:
    """A volume more, and its mount."""
    p.pod["volumes"].append({"name": "more", **source})
    p.main["volumeMounts"].append({"name": "more", "mountPath": "/more"})


def pod_rule(p: Planted, kind: str) -> Data:
    """How the pods keep together, or apart."""
    rule: Data = p.pod["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    return rule


OTHERS: Data = {"labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": "other"}}}


def without(p: Planted, option: str) -> None:
    p.main["args"] = [word for word in p.main["args"] if not word.startswith(option)]


OURS: dict[str, tuple[Callable[[Planted], Any], str]] = {
    "a completion mode there is not": (lambda p: p.spec.update(completionMode="Index"), "did you mean Indexed?"),
    "an action there is not": (lambda p: p.rules[1].update(action="Retry"), "'Retry' is not a value of this field"),
    "an operator of codes there is not": (
        lambda p: p.rules[1]["onExitCodes"].update(operator="in"),
        "did you mean In",
    ),
    "a toleration's operator": (lambda p: p.pod["tolerations"][0].update(operator="Exist"), "did you mean Exists?"),
    "a toleration's effect": (lambda p: p.pod["tolerations"][0].update(effect="NoRun"), "'NoRun' is not a value"),
    "Always in a Job": (lambda p: p.pod.update(restartPolicy="Always"), "restartPolicy: 'Always' is not a value"),
    "a policy with OnFailure": (lambda p: p.pod.update(restartPolicy="OnFailure"), "is refused with another restart"),
    "a pull policy there is not": (lambda p: p.main.update(imagePullPolicy="always"), "did you mean Always?"),
    "a medium there is not": (
        lambda p: p.pod["volumes"][0]["emptyDir"].update(medium="memory"),
        "did you mean Memory?",
    ),
    "a protocol there is not": (lambda p: p.service["spec"]["ports"][0].update(protocol="tcp"), "did you mean TCP?"),
    "unsorted exit codes": (lambda p: p.rules[1]["onExitCodes"]["values"].reverse(), "have to be in order"),
    "zero among the codes": (lambda p: p.rules[1]["onExitCodes"].update(values=[0, 1]), "0 is no failure"),
    "codes of another container": (
        lambda p: p.rules[1]["onExitCodes"].update(containerName="main"),
        "there is no container 'main'",
    ),
    "a rule of both kinds": (
        lambda p: p.rules[1].update(onPodConditions=[{"type": "X", "status": "True"}]),
        "and not both",
    ),
    "a condition without status": (
        lambda p: p.rules[0]["onPodConditions"][0].pop("status"),
        "is missing, which Kubernetes up to 1.34 does not take",
    ),
    "fewer devices requested": (lambda p: p.requests.update({"nvidia.com/gpu": "4"}), "is '4' and the limit '8'"),
    "devices not requested": (lambda p: p.requests.pop("nvidia.com/gpu"), "is nothing and the limit '8'"),
    "less memory requested": (lambda p: p.requests.update(memory="1Gi"), "is '1Gi' and the limit '576Gi'"),
    "no memory limit": (lambda p: (p.limits.pop("memory"), p.requests.pop("memory")), "there is no limit of memory"),
    "a quantity in words": (lambda p: p.limits.update(cpu="eight"), "'eight' is no quantity"),
    "half a device": (
        lambda p: (p.limits.update({"rdma/hca": "0.5"}), p.requests.update({"rdma/hca": "0.5"})),
        "a part of a device",
    ),
    "other devices than --gpus": (
        lambda p: (p.limits.update({"nvidia.com/gpu": "4"}), p.requests.update({"nvidia.com/gpu": "4"})),
        "is '4' and --gpus 8",
    ),
    "other nodes than completions": (
        lambda p: p.main.update(args=["--nodes", "4", "--gpus", "8"]),
        "--nodes is 4 and completions 2",
    ),
    "more pods than nodes": (lambda p: p.spec.update(completions=3), "is 2 and completions 3"),
    "a name too long": (lambda p: p.job["metadata"].update(name="n" * 62), "of 64 characters"),
    "a name in capitals": (lambda p: p.job["metadata"].update(name="FB"), "metadata.name: 'FB' may hold"),
    "a Service that ends with a dash": (
        lambda p: (p.service["metadata"].update(name="b-"), p.pod.update(subdomain="b-")),
        "metadata.name: 'b-' may hold",
    ),
    "a label too long": (lambda p: replace_label(p, "v" * 64), "has 64 characters"),
    "a label with a blank": (lambda p: replace_label(p, "a b"), "'a b' may hold"),
    "a label's key": (lambda p: p.job["metadata"]["labels"].update({"a b": "c"}), "the key 'a b' may hold"),
    "the controller's own label": (
        lambda p: p.spec["template"]["metadata"]["labels"].update({"job-name": "fb"}),
        "the Job controller sets this label",
    ),
    "a variable with a dash": (lambda p: p.main["env"].append({"name": "A-B", "value": "1"}), "'A-B' may hold"),
    "a variable twice": (lambda p: p.main["env"].append(p.main["env"][0]), "FLAGBENCH_MASTER is set twice"),
    "a mount without volume": (lambda p: p.pod["volumes"].pop(), "there is no volume 'data'"),
    "a volume without mount": (lambda p: p.main["volumeMounts"].pop(), "nothing mounts the volume 'data'"),
    "two volumes of one name": (lambda p: p.pod["volumes"].append(p.pod["volumes"][0]), "two volumes are called shm"),
    "more shm than memory": (
        lambda p: p.pod["volumes"][0]["emptyDir"].update(sizeLimit="1Ti"),
        "'1Ti' is more than the memory limit '576Gi'",
    ),
    "shm without a size": (lambda p: p.pod["volumes"][0]["emptyDir"].pop("sizeLimit"), "has no size of its own"),
    "shm of the host": (
        lambda p: p.pod["volumes"].__setitem__(0, {"name": "shm", "hostPath": {"path": "/dev/shm"}}),
        "is not memory of the pod's own",
    ),
    "another subdomain": (lambda p: p.pod.update(subdomain="other"), "not the name of a Service in the file"),
    "no Service": (lambda p: p.documents.pop(0), "not the name of a Service in the file"),
    "a selector that fits no pod": (
        lambda p: p.service["spec"].update(selector={"app": "x"}),
        "the pods of fb do not carry app=x",
    ),
    "an empty selector": (lambda p: p.service["spec"].update(selector={}), "selects no pods"),
    "addresses only when ready": (
        lambda p: p.service["spec"].pop("publishNotReadyAddresses"),
        "is not found before it is ready",
    ),
    "a Service with an address": (lambda p: p.service["spec"].pop("clusterIP"), "the Service is not headless"),
    "two namespaces": (lambda p: p.service["metadata"].update(namespace="x"), "the Job is in nothing"),
    "a master that is not node 0": (
        lambda p: p.main["env"][0].update(value="fb-1.flagbench:29400"),
        "'fb-1.flagbench:29400' is not where node 0 listens",
    ),
    "a master without port": (
        lambda p: p.main["env"][0].update(value="fb-0.flagbench"),
        "is not where node 0 listens",
    ),
    "no master": (lambda p: p.main["env"].pop(0), "FLAGBENCH_MASTER is missing"),
    "anti-affinity to others": (
        lambda p: pod_rule(p, "podAntiAffinity").update(OTHERS),
        "does not fit this job's own pods",
    ),
    "a second attempt": (lambda p: p.spec.update(backoffLimit=3), "is 3: a node that is started again"),
    "no deadline": (lambda p: p.spec.pop("activeDeadlineSeconds"), "nothing ends a job that hangs"),
    "kept for ever": (lambda p: p.spec.pop("ttlSecondsAfterFinished"), "stays for ever"),
    "suspended by nobody": (lambda p: p.spec.update(suspend=True), "nothing will ever start this job"),
    "a queue, not suspended": (
        lambda p: p.job["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "q"}),
        "a job for a queue begins suspended",
    ),
    "root that must not be": (
        lambda p: p.pod["securityContext"].update(runAsNonRoot=True),
        "0 is root, and runAsNonRoot is true",
    ),
    "perhaps root": (lambda p: p.pod["securityContext"].pop("runAsNonRoot"), "the run may be root"),
    "privileged": (lambda p: p.main["securityContext"].update(privileged=True), "no run needs it"),
    "escalation": (lambda p: p.main["securityContext"].pop("allowPrivilegeEscalation"), "no run needs it"),
    "capabilities kept": (lambda p: p.main["securityContext"]["capabilities"].pop("drop"), "capabilities are kept"),
    "a capability more": (
        lambda p: p.main["securityContext"]["capabilities"]["add"].append("SYS_ADMIN"),
        "'SYS_ADMIN' is not needed",
    ),
    "a privileged container before": (
        lambda p: init(p, securityContext={"privileged": True}),
        "initContainers[0].securityContext.privileged: no run needs it",
    ),
    "a container before of any image": (lambda p: init(p, image="r.io/fetch"), "has neither a tag nor a digest"),
    "a secret before": (
        lambda p: init(p, env=[{"name": "HUB_TOKEN", "value": "x"}]),
        "initContainers[0].env[0]: HUB_TOKEN looks like a secret",
    ),
    "all of /proc": (lambda p: p.main["securityContext"].update(procMount="Unmasked"), "opens parts of /proc"),
    "a folder of the node": (lambda p: volume(p, hostPath={"path": "/"}), "opens the node's own files"),
    "a token in a volume": (
        lambda p: volume(p, projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}),
        "serviceAccountToken: a run needs no token",
    ),
    "a volume of nothing": (volume, "the volume comes from nothing"),
    "a volume of two sources": (
        lambda p: volume(p, emptyDir={}, configMap={"name": "a"}),
        "the volume comes from emptyDir and configMap",
    ),
    "two volumes at one place": (
        lambda p: (volume(p, emptyDir={}), p.main["volumeMounts"][-1].update(mountPath="/data/")),
        "two volumes are mounted at '/data/'",
    ),
    "a secret's name": (
        lambda p: p.main["env"].append({"name": "WANDB_API_KEY", "value": "x"}),
        "WANDB_API_KEY looks like a secret",
    ),
    "a secret's value": (
        lambda p: p.main["env"].append({"name": "A", "value": "glpat-" + "aB3" * 7}),
        "A looks like a secret",
    ),
    "no devices": (
        lambda p: (p.limits.pop("nvidia.com/gpu"), p.requests.pop("nvidia.com/gpu")),
        "is nothing and --gpus 8",
    ),
    "no devices, nor a word of which": (
        lambda p: (p.job["metadata"]["annotations"].clear(), p.limits.update({"nvidia.com/gpu": "4"})),
        "is '4' and --gpus 8",
    ),
    "no anti-affinity": (lambda p: p.pod.pop("affinity"), "nothing keeps two pods off one node"),
    "anti-affinity by zone": (
        lambda p: pod_rule(p, "podAntiAffinity").update(topologyKey="topology.kubernetes.io/zone"),
        "nothing keeps two pods off one node",
    ),
    "two models of device": (lambda p: p.pod["affinity"].pop("podAffinity"), "on another model of device"),
    "two models of device, tied to others": (
        lambda p: pod_rule(p, "podAffinity").update(OTHERS),
        "topologyKey: nvidia.com/gpu.product",
    ),
    "no arguments": (lambda p: p.main.pop("args"), "--nodes is missing"),
    "no run": (lambda p: without(p, "--run-id"), "--run-id is missing"),
    "no end of its own": (lambda p: without(p, "--max-minutes"), "--max-minutes is nothing, but after 14400 s"),
    "an end after the cluster's": (lambda p: p.spec.update(activeDeadlineSeconds=60), "but after 60 s the cluster"),
    "an end in words": (lambda p: p.main["args"].append("--max-minutes=soon"), "--max-minutes is 'soon'"),
    "another command": (lambda p: p.main.update(command=["sleep"]), "replaces the image's entrypoint"),
    "two containers of one name": (
        lambda p: p.pod["containers"].append(p.main),
        "two containers are called flagbench",
    ),
    "two containers of one name, one before": (lambda p: init(p, name="flagbench"), "two containers are called"),
    "no container of ours": (lambda p: p.main.update(name="main"), "there is no container called flagbench"),
    "a port that is none": (
        lambda p: p.service["spec"]["ports"][0].update(port=70000),
        "spec.ports[0].port: 70000 is no port",
    ),
    "a master's port that is none": (
        lambda p: p.main["env"][0].update(value="fb-0.flagbench:70000"),
        "'fb-0.flagbench:70000' is not where node 0 listens",
    ),
    "no time to end": (lambda p: p.pod.update(terminationGracePeriodSeconds=-1), "GracePeriodSeconds: is -1"),
    "more nodes than Kubernetes takes": (
        lambda p: p.spec.update(completions=100_001, parallelism=100_001),
        "spec.parallelism: is 100001",
    ),
    "no seccomp": (lambda p: p.pod["securityContext"].pop("seccompProfile"), "there is none"),
    "a token": (lambda p: p.pod.pop("automountServiceAccountToken"), "needs no token"),
    "the host's network": (lambda p: p.pod.update(hostNetwork=True), "would share it with what else is on the node"),
    "an image without tag": (lambda p: p.main.update(image="r.io/x"), "has neither a tag nor a digest"),
    "another digest": (lambda p: p.main.update(image="r.io/x:1"), "FLAGBENCH_IMAGE_DIGEST is not the image's digest"),
    "another termination message": (
        lambda p: p.main.update(terminationMessagePath="/tmp/x"),
        "is not the terminationMessagePath",
    ),
    "no Job at all": (lambda p: p.documents.pop(), "there is no Job in it"),
    "a CronJob's concurrency": (
        lambda p: p.documents.append(
            {
                "apiVersion": "batch/v1",
                "kind": "CronJob",
                "metadata": {"name": "c"},
                "spec": {"schedule": "@daily", "jobTemplate": {"spec": p.spec}, "concurrencyPolicy": "Never"},
            }
        ),
        "'Never' is not a value of this field",
    ),
}


def test_there_are_more_than_twenty_mistakes() -> None:
    assert len(SCHEMA_CATCHES) >= 10
    assert len(OURS) >= 20


@pytest.mark.parametrize("mistake", SCHEMA_CATCHES)
@pytest.mark.usefixtures("schemas")
def test_the_schemas_catch(mistake: str, planted: Planted) -> None:
    plant, message = SCHEMA_CATCHES[mistake]
    assert check_schemas(planted.documents, VERSIONS[-1:]) == []
    plant(planted)
    assert any(message in str(problem) for problem in check_schemas(planted.documents, VERSIONS[-1:]))


@pytest.mark.parametrize("mistake", OURS)
def test_our_check_catches(mistake: str, planted: Planted) -> None:
    plant, message = OURS[mistake]
    assert check_documents(planted.documents) == []
    plant(planted)
    problems = [str(problem) for problem in check_documents(planted.documents)]
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize("mistake", OURS)
@pytest.mark.usefixtures("schemas")
def test_what_our_check_catches_the_schemas_miss(mistake: str, planted: Planted) -> None:
    OURS[mistake][0](planted)
    assert check_schemas(planted.documents, VERSIONS[-1:]) == []


@given(seed=st.integers(0, 2**32), value=st.sampled_from([None, 0, -1, 1.5, True, "", "x", [], [[]], {}, {"a": {}}]))
def test_a_document_of_any_shape_is_examined_and_never_a_crash(seed: int, value: Any, job_of: JobOf) -> None:
    documents = good(job_of, "a100 2x8 with RDMA")
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            places.append((node, key))
            if isinstance(child, (dict, list)):
                visit(child)

    visit(documents)
    node, key = random.Random(seed).choice(places)
    node[key] = value
    for problem in check_documents([d for d in documents if isinstance(d, dict)]):
        assert problem.remedy
