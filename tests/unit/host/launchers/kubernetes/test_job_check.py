"""Good jobs pass Kubernetes' schemas and our own check; each planted mistake is found by the half that should."""

from __future__ import annotations

import copy
import functools
import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flagbench.launchers.kubernetes.check import check_documents
from flagbench.launchers.kubernetes.schemas import VERSIONS, check_schemas
from flagbench.schema import field_name

from ...conftest import places
from .conftest import Documents, find

Data = dict[str, Any]
JobOf = Callable[..., Documents]

DIGEST = "sha256:" + "a" * 64
GOOD: dict[str, Data] = {
    "cpu": {},
    "cpu on two nodes": {"nodes": 2, "gpus": 2},
    "a100 2x8 with RDMA": {"of": "distilbert:a100", "nodes": 2, "gpus": 8, "rdma_resource": ("rdma/shared=1",)},
    "c500": {"of": "distilbert:c500", "nodes": 2, "gpus": 8, "group": (44,)},
    "c500 with MACA 3": {"of": "distilbert:c500-maca3", "gpus": 8, "namespace": "bench"},
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
@pytest.mark.usefixtures("schemas")
def test_good_jobs_pass_the_schemas_of_the_last_three_releases(name: str, job_of: JobOf) -> None:
    assert len(VERSIONS) == 3
    assert check_schemas(good(job_of, name)) == []


GONE = object()
RULE = "job spec podFailurePolicy rules 1"


@pytest.fixture
def planted(job_of: JobOf) -> Documents:
    """A good job of two nodes with RDMA and a volume, to be spoilt in one place."""
    options = {"rdma_resource": ("rdma/hca=1",), "data_pvc": "sets", "image": f"r.io/x@{DIGEST}"}
    return copy.deepcopy(job_of("distilbert:a100", name="fb", nodes=2, gpus=8, **options))


def spoil(documents: Documents, place: str, key: str, value: Any) -> None:
    """Set a field, or take it away, or change it by a function."""
    mapping = find(documents, place)
    if value is GONE:
        del mapping[key]
    else:
        mapping[key] = value(mapping[key]) if callable(value) else value


def without(option: str) -> Callable[[list[str]], list[str]]:
    return lambda words: [word for word in words if not word.startswith(option)]


def plus(item: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda items: [*items, item]


def master(value: str) -> Callable[[list[Data]], list[Data]]:
    return lambda variables: [{"name": "FLAGBENCH_MASTER", "value": value}, *variables[1:]]


@pytest.mark.parametrize(
    ("place", "key", "value", "named"),
    [
        ("job spec", "backOffLimit", 0, "backOffLimit"),
        ("job spec", "completions", "2", "completions"),
        ("job spec", "template", GONE, "'template'"),
        ("service spec", "ports", [{"port": "http"}], "port"),
    ],
)
@pytest.mark.usefixtures("schemas")
def test_the_schemas_catch(place: str, key: str, value: Any, named: str, planted: Documents) -> None:
    assert check_schemas(planted, VERSIONS[-1:]) == []
    spoil(planted, place, key, value)
    assert any(named in str(problem) for problem in check_schemas(planted, VERSIONS[-1:]))


# Where a field is spoilt, and the end of the field that is named, where it is another.
OURS: list[tuple[Any, ...]] = [
    ("job spec", "completionMode", "NonIndexed"),
    ("job spec", "completions", GONE),
    ("job spec", "completions", 3, "spec.parallelism"),
    ("pod", "affinity", GONE, "affinity.podAntiAffinity"),
    ("pod", "nodeName", "node-7"),
    ("job spec", "activeDeadlineSeconds", GONE),
    ("job spec", "activeDeadlineSeconds", 60, "args"),
    ("pod", "activeDeadlineSeconds", 60, "args"),
    ("pod", "terminationGracePeriodSeconds", 0),
    ("job spec", "backoffLimit", 3),
    ("job spec", "backoffLimitPerIndex", 1),
    ("job spec", "successPolicy", {"rules": [{"succeededIndexes": "0"}]}),
    ("pod", "restartPolicy", "OnFailure"),
    ("main", "restartPolicy", "Always"),
    ("main", "restartPolicyRules", [{"action": "Restart"}]),
    (RULE, "action", "Ignore"),
    (f"{RULE} onExitCodes", "containerName", "main"),
    ("main", "args", GONE),
    ("main", "args", ["--nodes", "4", "--gpus", "8"]),
    ("main", "args", without("--run-id")),
    ("main", "args", plus("--set=x=hf_" + "aB3" * 10)),
    ("job metadata annotations", "note", "hf_" + "aB3" * 10, "metadata.annotations"),
    ("main", "args", without("--max-minutes")),
    ("main", "args", plus("--max-minutes=soon")),
    ("main", "command", ["sleep"]),
    ("main", "name", "main", "template.spec.containers"),
    ("main resources limits", "nvidia.com/gpu", "4"),
    ("main resources limits", "nvidia.com/gpu", GONE),
    ("job metadata annotations", "flagbench.dev/device-resource", GONE, "metadata.annotations"),
    ("pod", "subdomain", "other"),
    ("pod", "dnsPolicy", "Default"),
    ("pod", "hostNetwork", True, "dnsPolicy"),
    ("service spec", "selector", {"app": "x"}),
    ("service spec", "selector", {}),
    ("service spec", "publishNotReadyAddresses", GONE),
    ("service spec", "clusterIP", GONE),
    ("service metadata", "namespace", "x"),
    ("main", "env", master("fb-1.flagbench:29400")),
    ("main", "env", master("fb-0.flagbench")),
    ("main", "env", master("fb-0.flagbench:70000")),
    ("main", "env", lambda variables: variables[1:]),
    ("main", "env", plus({"name": "WANDB_API_KEY", "value": "x"})),
    ("main", "env", plus({"name": "A", "value": "glpat-" + "aB3" * 7})),
    ("main", "image", "r.io/x"),
    ("main", "image", "r.io/x:1", "env"),
    ("main", "terminationMessagePath", "/tmp/x", "env"),
]


@pytest.mark.parametrize("edit", OURS, ids=lambda edit: f"{edit[0]}-{edit[1]}")
def test_our_check_names_the_field(edit: tuple[Any, ...], planted: Documents) -> None:
    assert check_documents(planted) == []
    place, key, value, *named = edit
    spoil(planted, place, key, value)
    end = "." + (named or [key])[0]
    assert any(f".{field_name(problem.path)}".endswith(end) for problem in check_documents(planted))


@pytest.mark.parametrize(("missing", "field"), [(0, "spec.template.spec.subdomain"), (1, "")])
def test_a_service_and_a_job_are_needed(missing: int, field: str, planted: Documents) -> None:
    del planted[missing]
    assert [field_name(problem.path) for problem in check_documents(planted)] == [field]


def test_what_others_check_is_not_checked_twice(planted: Documents) -> None:
    """Valid or not is for the schemas and a server to say, rights are for the cluster's own policy."""
    spoil(planted, "pod", "hostNetwork", True)
    spoil(planted, "pod", "dnsPolicy", "ClusterFirstWithHostNet")
    spoil(planted, "main", "imagePullPolicy", "Sometimes")
    spoil(planted, "main", "securityContext", {"privileged": True})
    assert check_documents(planted) == []


@given(seed=st.integers(0, 2**32), value=st.sampled_from([None, 0, -1, 1.5, True, "", "x", [], [[]], {}, {"a": {}}]))
def test_a_document_of_any_shape_is_checked(seed: int, value: Any, job_of: JobOf) -> None:
    documents = good(job_of, "a100 2x8 with RDMA")
    *around, key = random.Random(seed).choice(places(documents)[1:])
    functools.reduce(operator.getitem, around, documents)[key] = value
    for problem in check_documents([d for d in documents if isinstance(d, dict)]):
        assert problem.remedy
