"""Whatever is typed: it is refused, or it stands in the YAML as exactly that value, in its field and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from flagbench.errors import FlagbenchError
from flagbench.launchers.kubernetes.documents import Template, job_documents
from flagbench.launchers.kubernetes.dump import dump_documents, job_header
from flagbench.launchers.kubernetes.options import JobOptions
from flagbench.launchers.kubernetes.request import JobRequest
from job_pods import expand

from .conftest import Documents, find

# libyaml's reader is ten times as fast, where there is one.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
HOSTILE = ["x\n---\nkind: Pod", "x: y", "{{ x }}", "!!python/object/apply:os.system [id]", "*a", "&a b", "'\"", "# c"]
HOSTILE += ["$(HOME)", "`id`", "a,b", "yes", "1e3", "~", "../..", "a=b=c", "\u2028kind: Pod", "\x85kind: Pod", "ä"]
VALID = st.from_regex(r"[a-z][a-z0-9.-]{0,20}[a-z0-9]", fullmatch=True)
ANY = st.text() | st.sampled_from(HOSTILE) | VALID

PODS = "job spec template metadata"
RULE = (
    "pod affinity nodeAffinity requiredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms 0 matchExpressions 0"
)


def claimed(name: str) -> Callable[[Documents], str]:
    """Reads a claim and its folder back as the option is typed."""

    def read(documents: Documents) -> str:
        mount = find(documents, "main volumeMounts 1")
        claim: str = find(documents, "pod volumes 1 persistentVolumeClaim claimName")
        assert mount["name"] == name
        return f"{claim}:{mount['subPath']}" if "subPath" in mount else claim

    return read


# The options that fill a field: a form around the value typed, and the one place where it is read back.
FIELDS: dict[str, tuple[str, str | Callable[[Documents], str]]] = {
    "name": ("%s", "job metadata name"),
    "namespace": ("%s", "job metadata namespace"),
    "image": ("%s", "main image"),
    "registry": ("%s", lambda documents: str(find(documents, "main image")).rpartition("/flagbench/")[0]),
    "queue": ("%s", "job metadata labels kueue.x-k8s.io/queue-name"),
    "run_id": ("%s", "job metadata annotations flagbench.dev/run-id"),
    "pull_secret": ("%s", "pod imagePullSecrets 0 name"),
    "env_from_secret": ("%s", "main envFrom 0 secretRef name"),
    "cpu": ("%s", "main resources limits cpu"),
    "memory": ("%s", "main resources limits memory"),
    "shm": ("%s", "pod volumes 0 emptyDir sizeLimit"),
    "data_pvc": ("%s", claimed("data")),
    "weights_pvc": ("%s", claimed("weights")),
    "out_pvc": ("%s", claimed("out")),
    "rdma_resource": ("%s=1", "main resources limits LAST-KEY"),
    "node_label": ("zone=%s", lambda documents: ",".join(find(documents, f"{RULE} values"))),
    "env": ("A=%s", lambda documents: expand(find(documents, "main env -1 value"), {"HOME": "/root"})),
    "label": ("team=%s", "job metadata labels team"),
    "annotation": ("note=%s", f"{PODS} annotations note"),
    "env key": ("%s=1", "main env -1 name"),
    "label key": ("%s=1", "job metadata labels LAST-KEY"),
    "annotation key": ("%s=1", f"{PODS} annotations LAST-KEY"),
    "node_label key": ("%s=1", f"{RULE} key"),
}


def rendered(request: JobRequest, template: Template) -> Documents:
    """The documents that are written, read back by a plain YAML reader."""
    documents = job_documents(request, template)
    text = dump_documents(documents, job_header(request.command(), request.image, request.job_name))
    read = list(yaml.load_all(text, Loader=_LOADER))
    assert read == documents
    assert [document["kind"] for document in read] == ["Service", "Job"]
    return read


@pytest.mark.parametrize("field", FIELDS)
@example(value="$(HOME)")
@given(value=ANY)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_typed_stands_in_its_field_or_is_refused(
    field: str, value: str, request_of: Callable[..., JobRequest], template: Template
) -> None:
    option, _, is_key = field.partition(" ")
    assume(not is_key or "=" not in value)
    form, place = FIELDS[field]
    typed = form.replace("%s", value)
    try:
        request = request_of(**{option: (typed,) if getattr(JobOptions, option, None) == () else typed})
    except FlagbenchError:
        return
    documents = rendered(request, template)
    assert (find(documents, place) if isinstance(place, str) else place(documents)) == value


@given(value=ANY, name=st.sampled_from(["batch_size", "dropout", "nope"]))
@settings(max_examples=40)
def test_a_setting_reaches_the_image_as_typed_or_is_refused(
    value: str, name: str, request_of: Callable[..., JobRequest], template: Template
) -> None:
    try:
        request = request_of(set_=(f"{name}={value}",))
    except FlagbenchError:
        return
    words = find(rendered(request, template), "main args")
    assert f"--set={name}={value}" in [expand(word, {}) for word in words]
