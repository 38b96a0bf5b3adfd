"""Whatever is typed: it is refused, or it stands in the YAML as exactly that value, in its field and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flagbench.errors import FlagbenchError
from flagbench.runs.launchers.job_request import JobOptions
from flagbench.runs.launchers.kubernetes import KubernetesOptions, KubernetesRequest, quote
from job_pods import expand, find, request_of

# libyaml's reader is ten times as fast, where there is one.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
HOSTILE = ["x\n---\nkind: Pod", "x: y", "{{ x }}", "{% raw %}", "!!python/object/apply:os.system [id]", "*a", "&a b"]
HOSTILE += ["'\"", "# c", "$(HOME)", "$$(HOME)", "`id`", "a,b", "yes", "1e3", "~", "../..", "a=b=c", "]}", "\\"]
HOSTILE += ["\u2028kind: Pod", "\x85kind: Pod", "ä", "\u0660", "\U0001f600", "\ufeff", "\u202ekind"]
VALID = st.from_regex(r"[a-z][a-z0-9.-]{0,20}[a-z0-9]", fullmatch=True)
ANY = st.text(min_size=1, max_size=100) | st.sampled_from(HOSTILE) | VALID
RULE = (
    "pod affinity nodeAffinity requiredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms 0 matchExpressions 0"
)


def argument(option: str) -> Callable[[list[dict[str, Any]]], str]:
    """Reads the last value of an option of the image, as its container gets it."""

    def read(documents: list[dict[str, Any]]) -> str:
        words = [expand(word, {"HOME": "/root"}) for word in find(documents, "main args")]
        return [word for word in words if word.startswith(f"{option}=")][-1].removeprefix(f"{option}=")

    return read


# What is typed, a form around any value, and the one place where the value is read back.
FIELDS: dict[str, tuple[str, str | Callable[[list[dict[str, Any]]], str]]] = {
    "name": ("%s", "job metadata name"),
    "namespace": ("%s", "job metadata namespace"),
    "image": ("%s", "main image"),
    "registry": ("%s", lambda documents: str(find(documents, "main image")).rpartition("/flagbench/")[0]),
    "pull_secret": ("%s", "pod imagePullSecrets 0 name"),
    "rdma_resource": ("%s=1", "main resources limits LAST-KEY"),
    "rdma_resource value": ("rdma/a=%s", "main resources limits rdma/a"),
    "node_label": ("%s=1", f"{RULE} key"),
    "node_label value": ("zone=%s", lambda documents: ",".join(find(documents, f"{RULE} values"))),
    "data_pvc": ("%s:x", "pod volumes 1 persistentVolumeClaim claimName"),
    "weights_pvc": ("c:%s", "main volumeMounts 1 subPath"),
    "out_pvc": ("c:%s", "main volumeMounts 1 subPath"),
    "resume_pvc": ("%s:x", "pod volumes 1 persistentVolumeClaim claimName"),
    "store": ("%s", argument("--store")),
    "store_secret": ("%s", "main env 3 valueFrom secretKeyRef name"),
    "env": ("%s=1", "main env -1 name"),
    "env value": ("A=%s", lambda documents: expand(find(documents, "main env -1 value"), {"HOME": "/root"})),
    "tolerate": ("%s", "pod tolerations 0 key"),
    "queue": ("%s", "job metadata labels kueue.x-k8s.io/queue-name"),
    "run_id": ("%s", "job metadata annotations flagbench.dev/run-id"),
    "set_": ("lora_dropout=%s", lambda documents: argument("--set")(documents).removeprefix("lora_dropout=")),
}
WITH = {"store_secret": {"store": "s3://bench"}}


def test_every_option_with_a_text_is_tried() -> None:
    texts = {field.name for options in (JobOptions, KubernetesOptions) for field in fields(options)}
    assert texts <= {field.partition(" ")[0] for field in FIELDS}


def rendered(request: KubernetesRequest) -> list[dict[str, Any]]:
    """The documents that are written, read back by a plain YAML reader: no more than the two, and no other fields."""
    text = request.render()
    assert text.isascii()
    documents = list(yaml.load_all(text, Loader=_LOADER))
    assert [(document["kind"], set(document)) for document in documents] == [
        (kind, {"apiVersion", "kind", "metadata", "spec"}) for kind in ("Service", "Job")
    ]
    return documents


@given(field=st.sampled_from([*FIELDS]), value=ANY)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_typed_stands_in_its_field_or_is_refused(field: str, value: str) -> None:
    form = FIELDS[field][0]
    # The first part of a pair ends at the first separator.
    assume(not form.startswith("%s") or form[2:3] not in value or form == "%s")
    check_field(field, value)


@pytest.mark.parametrize("field", FIELDS)
def test_a_reference_is_not_expanded(field: str) -> None:
    check_field(field, "$(HOME)")


def check_field(field: str, value: str) -> None:
    option = field.partition(" ")[0]
    form, place = FIELDS[field]
    typed = form.replace("%s", value)
    several = option in ("set_", "env", "pull_secret", "rdma_resource", "node_label", "tolerate")
    try:
        given = {option: (typed,) if several else typed, **WITH.get(option, {})}
        request = request_of("llama2-7b-lora:cpu", **given)
    except FlagbenchError:
        return
    documents = rendered(request)
    assert (find(documents, place) if isinstance(place, str) else place(documents)) == value


# YAML's keys are of at most 1,024 characters, of which an escaped one takes ten.
KEYS = st.text(max_size=100)


@given(st.text() | st.sampled_from(HOSTILE) | st.integers() | st.lists(st.text()) | st.dictionaries(KEYS, st.text()))
def test_any_quoted_value_comes_back(value: Any) -> None:
    assert yaml.load(quote(value), Loader=_LOADER) == value
    assert yaml.load(f"a: {quote(value)}\nb: 1", Loader=_LOADER) == {"a": value, "b": 1}
