"""Good jobs pass Kubernetes' schemas and our own check; each planted mistake is found by the half that should."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flagbench.launchers.kubernetes.check import check_documents
from flagbench.launchers.kubernetes.schemas import VERSIONS, check_schemas
from flagbench.schema import field_name

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
    "volumes": {"data_pvc": "sets:sst2", "weights_pvc": "models", "out_pvc": "results:a/b"},
    "variables": {"env": ("A=$(B) $$",), "env_from_secret": ("hub",), "pull_secret": ("regcred",), "ttl": 600},
    "options": {"preset": "tiny", "full": True, "max_minutes": 3.5, "set_": ("dropout=0",)},
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


class Planted:
    """A good job of two nodes with RDMA and volumes, to be spoilt in one place."""

    def __init__(self, documents: Documents) -> None:
        self.documents = documents
        self.service, self.job = documents
        self.spec: Data = self.job["spec"]
        self.pod: Data = self.spec["template"]["spec"]
        self.main: Data = self.pod["containers"][0]
        self.limits: Data = self.main["resources"]["limits"]
        self.rules: list[Data] = self.spec["podFailurePolicy"]["rules"]

    def rename(self, mapping: Data, old: str, new: str) -> None:
        """Misspell a field."""
        mapping[new] = mapping.pop(old)

    def without(self, option: str) -> None:
        """Take an argument from the container."""
        self.main["args"] = [word for word in self.main["args"] if not word.startswith(option)]


@pytest.fixture
def planted(job_of: JobOf) -> Planted:
    options = {"rdma_resource": ("rdma/hca=1",), "data_pvc": "sets", "image": f"r.io/x@{DIGEST}"}
    return Planted(copy.deepcopy(job_of("distilbert:a100", name="fb", nodes=2, gpus=8, **options)))


SCHEMA_CATCHES: dict[str, tuple[Callable[[Planted], Any], str]] = {
    "misspelt backoffLimit": (lambda p: p.rename(p.spec, "backoffLimit", "backOffLimit"), "backOffLimit"),
    "completions as text": (lambda p: p.spec.update(completions="2"), "completions"),
    "no template": (lambda p: p.spec.pop("template"), "'template'"),
}
POD, MAIN = "spec.template.spec", "spec.template.spec.containers[0]"
ENV, ARGS = f"{MAIN}.env", f"{MAIN}.args"
OURS: dict[str, tuple[Callable[[Planted], Any], str]] = {
    "no index": (lambda p: p.spec.update(completionMode="NonIndexed"), "spec.completionMode"),
    "no completions": (lambda p: p.spec.pop("completions"), "spec.completions"),
    "more pods than nodes": (lambda p: p.spec.update(completions=3), "spec.parallelism"),
    "other nodes than completions": (lambda p: p.main.update(args=["--nodes", "4", "--gpus", "8"]), ARGS),
    "no anti-affinity": (lambda p: p.pod.pop("affinity"), f"{POD}.affinity.podAntiAffinity"),
    "no deadline": (lambda p: p.spec.pop("activeDeadlineSeconds"), "spec.activeDeadlineSeconds"),
    "a second attempt": (lambda p: p.spec.update(backoffLimit=3), "spec.backoffLimit"),
    "another attempt of one node": (lambda p: p.spec.update(backoffLimitPerIndex=1), "spec.backoffLimitPerIndex"),
    "success of node 0 alone": (
        lambda p: p.spec.update(successPolicy={"rules": [{"succeededIndexes": "0"}]}),
        "spec.successPolicy",
    ),
    "no time to write the record": (
        lambda p: p.pod.update(terminationGracePeriodSeconds=0),
        f"{POD}.terminationGracePeriodSeconds",
    ),
    "a restart of the container": (lambda p: p.main.update(restartPolicy="Always"), f"{MAIN}.restartPolicy"),
    "rules for a restart": (
        lambda p: p.main.update(restartPolicy="Never", restartPolicyRules=[{"action": "Restart"}]),
        f"{MAIN}.restartPolicyRules",
    ),
    "one node for all pods": (lambda p: p.pod.update(nodeName="node-7"), f"{POD}.nodeName"),
    "the node's DNS": (lambda p: p.pod.update(dnsPolicy="Default"), f"{POD}.dnsPolicy"),
    "the node's DNS, on its network": (lambda p: p.pod.update(hostNetwork=True), f"{POD}.dnsPolicy"),
    "a deadline of the pod": (lambda p: p.pod.update(activeDeadlineSeconds=60), ARGS),
    "a restart": (lambda p: p.pod.update(restartPolicy="OnFailure"), f"{POD}.restartPolicy"),
    "a failure that is ignored": (
        lambda p: p.rules[1].update(action="Ignore"),
        "spec.podFailurePolicy.rules[1].action",
    ),
    "codes of another container": (
        lambda p: p.rules[1]["onExitCodes"].update(containerName="main"),
        "spec.podFailurePolicy.rules[1].onExitCodes.containerName",
    ),
    "no end of its own": (lambda p: p.without("--max-minutes"), ARGS),
    "an end after the cluster's": (lambda p: p.spec.update(activeDeadlineSeconds=60), ARGS),
    "an end in words": (lambda p: p.main["args"].append("--max-minutes=soon"), ARGS),
    "no arguments": (lambda p: p.main.pop("args"), ARGS),
    "no run": (lambda p: p.without("--run-id"), ARGS),
    "another command": (lambda p: p.main.update(command=["sleep"]), f"{MAIN}.command"),
    "other devices than --gpus": (
        lambda p: p.limits.update({"nvidia.com/gpu": "4"}),
        f"{MAIN}.resources.limits.nvidia.com/gpu",
    ),
    "no devices": (lambda p: p.limits.pop("nvidia.com/gpu"), f"{MAIN}.resources.limits.nvidia.com/gpu"),
    "no device resource": (lambda p: p.job["metadata"]["annotations"].clear(), "metadata.annotations"),
    "another subdomain": (lambda p: p.pod.update(subdomain="other"), f"{POD}.subdomain"),
    "no Service": (lambda p: p.documents.pop(0), f"{POD}.subdomain"),
    "a selector that fits no pod": (lambda p: p.service["spec"].update(selector={"app": "x"}), "spec.selector"),
    "an empty selector": (lambda p: p.service["spec"].update(selector={}), "spec.selector"),
    "addresses only when ready": (
        lambda p: p.service["spec"].pop("publishNotReadyAddresses"),
        "spec.publishNotReadyAddresses",
    ),
    "a Service with an address": (lambda p: p.service["spec"].pop("clusterIP"), "spec.clusterIP"),
    "two namespaces": (lambda p: p.service["metadata"].update(namespace="x"), "metadata.namespace"),
    "a master that is not node 0": (lambda p: p.main["env"][0].update(value="fb-1.flagbench:29400"), ENV),
    "a master without port": (lambda p: p.main["env"][0].update(value="fb-0.flagbench"), ENV),
    "a port that there is not": (lambda p: p.main["env"][0].update(value="fb-0.flagbench:70000"), ENV),
    "no master": (lambda p: p.main["env"].pop(0), ENV),
    "an image without tag": (lambda p: p.main.update(image="r.io/x"), f"{MAIN}.image"),
    "another digest": (lambda p: p.main.update(image="r.io/x:1"), ENV),
    "another termination message": (lambda p: p.main.update(terminationMessagePath="/tmp/x"), ENV),
    "a secret's name": (lambda p: p.main["env"].append({"name": "WANDB_API_KEY", "value": "x"}), ENV),
    "a secret's value": (lambda p: p.main["env"].append({"name": "A", "value": "glpat-" + "aB3" * 7}), ENV),
    "no container of ours": (lambda p: p.main.update(name="main"), f"{POD}.containers"),
    "no Job at all": (lambda p: p.documents.pop(), ""),
}


@pytest.mark.parametrize("mistake", SCHEMA_CATCHES)
@pytest.mark.usefixtures("schemas")
def test_the_schemas_catch(mistake: str, planted: Planted) -> None:
    plant, named = SCHEMA_CATCHES[mistake]
    assert check_schemas(planted.documents, VERSIONS[-1:]) == []
    plant(planted)
    assert any(named in str(problem) for problem in check_schemas(planted.documents, VERSIONS[-1:]))


@pytest.mark.parametrize("mistake", OURS)
def test_our_check_names_the_field(mistake: str, planted: Planted) -> None:
    plant, field = OURS[mistake]
    assert check_documents(planted.documents) == []
    plant(planted)
    assert field in [field_name(problem.path) for problem in check_documents(planted.documents)]


def test_what_others_check_is_not_checked_twice(planted: Planted) -> None:
    """Valid or not is for the schemas and a server to say, rights are for the cluster's own policy."""
    planted.pod.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    planted.main["imagePullPolicy"] = "Sometimes"
    planted.main["securityContext"]["privileged"] = True
    planted.job["metadata"]["labels"]["x"] = "a b"
    assert check_documents(planted.documents) == []


@given(seed=st.integers(0, 2**32), value=st.sampled_from([None, 0, -1, 1.5, True, "", "x", [], [[]], {}, {"a": {}}]))
def test_a_document_of_any_shape_is_checked(seed: int, value: Any, job_of: JobOf) -> None:
    documents = good(job_of, "a100 2x8 with RDMA")
    fields: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            fields.append((node, key))
            if isinstance(child, (dict, list)):
                visit(child)

    visit(documents)
    node, key = random.Random(seed).choice(fields)
    node[key] = value
    for problem in check_documents([d for d in documents if isinstance(d, dict)]):
        assert problem.remedy
