"""Whatever is typed: it is refused, or it stands in the YAML as exactly that value, in its field and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flagbench.errors import FlagbenchError
from flagbench.launchers.kubernetes.documents import job_documents
from flagbench.launchers.kubernetes.dump import dump_documents, job_header
from flagbench.launchers.kubernetes.request import JobRequest
from flagbench.launchers.kubernetes.template import Template
from job_pods import expand

# libyaml's reader is ten times as fast, where there is one.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
HOSTILE = [
    "x\n---\nkind: Pod",
    "x: y",
    "{{ x }}",
    "!!python/object/apply:os.system [id]",
    "*a",
    "&a b",
    "'\"",
    "# c",
    "$(HOME)",
    "`id`",
    "a,b",
    "yes",
    "1e3",
    "~",
    "../..",
    "a=b=c",
    "\u2028kind: Pod",
    "\x85kind: Pod",
    "ä",
]
VALID = st.from_regex(r"[a-z][a-z0-9.-]{0,20}[a-z0-9]", fullmatch=True)
ANY = st.text() | st.sampled_from(HOSTILE) | VALID

# The field that each option fills: a form around the value typed, and the one place where it is read back.
FIELDS: dict[str, tuple[Callable[[str], Any], Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Any]]] = {
    "name": (str, lambda job, pod, main: job["metadata"]["name"]),
    "namespace": (str, lambda job, pod, main: job["metadata"]["namespace"]),
    "image": (str, lambda job, pod, main: main["image"]),
    "registry": (str, lambda job, pod, main: main["image"].rpartition("/flagbench/")[0]),
    "queue": (str, lambda job, pod, main: job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]),
    "run_id": (str, lambda job, pod, main: job["metadata"]["annotations"]["flagbench.dev/run-id"]),
    "pull_secret": (lambda v: (v,), lambda job, pod, main: pod["imagePullSecrets"][0]["name"]),
    "env_from_secret": (lambda v: (v,), lambda job, pod, main: main["envFrom"][0]["secretRef"]["name"]),
    "cpu": (str, lambda job, pod, main: main["resources"]["limits"]["cpu"]),
    "memory": (str, lambda job, pod, main: main["resources"]["limits"]["memory"]),
    "shm": (str, lambda job, pod, main: pod["volumes"][0]["emptyDir"]["sizeLimit"]),
    "data_pvc": (str, lambda job, pod, main: claimed(pod, main, "data")),
    "weights_pvc": (str, lambda job, pod, main: claimed(pod, main, "weights")),
    "out_pvc": (str, lambda job, pod, main: claimed(pod, main, "out")),
    "rdma_resource": (lambda v: (f"{v}=1",), lambda job, pod, main: [*main["resources"]["limits"]][2]),
    "node_label": (lambda v: (f"zone={v}",), lambda job, pod, main: ",".join(node_rule(pod)["values"])),
    "env": (lambda v: (f"A={v}",), lambda job, pod, main: expand(main["env"][-1]["value"], {"HOME": "/root"})),
    "label": (lambda v: (f"team={v}",), lambda job, pod, main: job["metadata"]["labels"]["team"]),
    "annotation": (
        lambda v: (f"note={v}",),
        lambda job, pod, main: job["spec"]["template"]["metadata"]["annotations"]["note"],
    ),
    "env key": (lambda v: (f"{v}=1",), lambda job, pod, main: main["env"][-1]["name"]),
    "label key": (lambda v: (f"{v}=1",), lambda job, pod, main: [*job["metadata"]["labels"]][-1]),
    "annotation key": (
        lambda v: (f"{v}=1",),
        lambda job, pod, main: [*job["spec"]["template"]["metadata"]["annotations"]][-1],
    ),
    "node_label key": (lambda v: (f"{v}=1",), lambda job, pod, main: node_rule(pod)["key"]),
}


def claimed(pod: dict[str, Any], main: dict[str, Any], name: str) -> str:
    """A claim and its folder as the option is typed."""
    volume = next(v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if v["name"] == name)
    mount = next(m for m in main["volumeMounts"] if m["name"] == name)
    return f"{volume}:{mount['subPath']}" if "subPath" in mount else volume


def node_rule(pod: dict[str, Any]) -> dict[str, Any]:
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return required["nodeSelectorTerms"][0]["matchExpressions"][0]


def rendered(request: JobRequest, template: Template) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Job, pod and container of what is written, read back by a plain YAML reader."""
    documents = job_documents(request, template)
    text = dump_documents(documents, job_header(request.command(), request.image, request.job_name))
    read = list(yaml.load_all(text, Loader=_LOADER))
    assert read == documents
    assert [document["kind"] for document in read] == ["Service", "Job"]
    pod = read[1]["spec"]["template"]["spec"]
    return read[1], pod, pod["containers"][0]


@pytest.mark.parametrize("field", FIELDS)
@given(value=ANY)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_typed_stands_in_its_field_or_is_refused(
    field: str, value: str, request_of: Callable[..., JobRequest], template: Template
) -> None:
    option, _, is_key = field.partition(" ")
    assume(not is_key or "=" not in value)
    typed, read_back = FIELDS[field]
    try:
        request = request_of(**{option: typed(value)})
    except FlagbenchError:
        return
    assert read_back(*rendered(request, template)) == value


@given(value=ANY, name=st.sampled_from(["batch_size", "dropout", "nope"]))
@settings(max_examples=60, deadline=None)
def test_a_setting_reaches_the_image_as_typed_or_is_refused(
    value: str, name: str, request_of: Callable[..., JobRequest], template: Template
) -> None:
    try:
        request = request_of(set_=(f"{name}={value}",))
    except FlagbenchError:
        return
    *_, main = rendered(request, template)
    assert f"--set={name}={value}" in [expand(word, {}) for word in main["args"]]
