"""Options of a job that have a form of their own: `K=V`, `NAME=COUNT`, `CLAIM[:SUBPATH]`; parsed, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from flagbench.errors import FlagbenchError
from flagbench.jobs import syntax
from flagbench.redaction import is_secret

if TYPE_CHECKING:
    from flagbench.catalog.model import Stack

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""By which Kueue knows a job that it is to admit."""
OWN_DOMAIN = "flagbench.dev"
RESOURCE_ANNOTATION = f"{OWN_DOMAIN}/device-resource"
"""Says of a Job which resource its devices are, so that the job can be checked without the catalog."""
NO_RESOURCE = "none"
"""Its value where a stack has no devices."""
TERMINATION_VARIABLE = "FLAGBENCH_TERMINATION_LOG"
DIGEST_VARIABLE = "FLAGBENCH_IMAGE_DIGEST"
MASTER_VARIABLE = "FLAGBENCH_MASTER"
SERVICE = "flagbench"
"""The headless Service of a namespace, shared by its jobs."""
HOST_LABEL = "kubernetes.io/hostname"
"""Of a node: which one it is."""
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in every pod of an Indexed Job."""
_KEPT_VARIABLES = {
    TERMINATION_VARIABLE,
    DIGEST_VARIABLE,
    MASTER_VARIABLE,
    INDEX_VARIABLE,
    "FLAGBENCH_NODE_RANK",
    "FLAGBENCH_STACK",
    "FLAGBENCH_COMMIT",
    "FLAGBENCH_CONTEXT_DIGEST",
    "FLAGBENCH_LOCK_DIGEST",
}
_KEPT_DOMAINS = ("app.kubernetes.io", "batch.kubernetes.io", OWN_DOMAIN)
CONTROLLER_LABELS = (
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/controller-uid",
    "job-name",
    "controller-uid",
)
"""Labels that the Job controller sets on pods by itself, and refuses in a template."""


@dataclass(frozen=True)
class Claim:
    """A PersistentVolumeClaim, and the folder in it that is meant; None is all of it."""

    name: str
    subpath: str | None


def refuse(option: str, value: str, rule: Callable[[str], str | None], remedy: str | None = None) -> None:
    """Raise FlagbenchError (usage) where the rule finds a fault in the value."""
    if fault := rule(value):
        raise FlagbenchError(f"{option} {value!r} {fault}", remedy=remedy or f"give another {option}")


def pairs(option: str, texts: Iterable[str]) -> Mapping[str, str]:
    """`KEY=VALUE` texts by key. Raises FlagbenchError (usage) for one without `=`, and for a key given twice."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            # Not repeated in whole: it may be a misplaced secret.
            raise FlagbenchError(f"a value of {option} holds no '='", remedy=f"write {option} KEY=VALUE")
        if key in found:
            raise FlagbenchError(f"{option} {key!r} is given twice", remedy="give it once")
        found[key] = value
    return found


def claim(option: str, text: str | None) -> Claim | None:
    """`NAME[:SUBPATH]` as a claim."""
    if text is None:
        return None
    name, colon, subpath = text.partition(":")
    refuse(option, name, syntax.subdomain_fault, "give the name of a PersistentVolumeClaim")
    if colon:
        refuse(option, subpath, syntax.subpath_fault, "write NAME:FOLDER/IN/IT")
    return Claim(name, subpath if colon else None)


def rdma(texts: Iterable[str], stack: Stack) -> Mapping[str, int]:
    """`DOMAIN/NAME=COUNT` texts by resource."""
    found = {}
    for name, text in pairs("--rdma-resource", texts).items():
        refuse("--rdma-resource", name, syntax.resource_fault, "write DOMAIN/NAME=COUNT, as the cluster calls it")
        if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
            raise FlagbenchError(
                f"--rdma-resource {name}: {text!r} is not a number of devices", remedy="write DOMAIN/NAME=1"
            )
        if name == stack.kubernetes.resource:
            raise FlagbenchError(
                f"--rdma-resource {name} is the accelerator's own resource", remedy="--gpus says how many of those"
            )
        found[name] = int(text)
    return found


def node_labels(texts: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """`KEY=VALUE[,VALUE]` texts by key."""
    found = {}
    for key, text in pairs("--node-label", texts).items():
        refuse("--node-label", key, syntax.key_fault)
        for value in text.split(","):
            refuse(f"--node-label {key}", value, syntax.label_value_fault)
        found[key] = tuple(text.split(","))
    return found


def check_environment(environment: Mapping[str, str], stack: Stack) -> None:
    """Refuse names that are no variables or that the job sets itself, and secrets, which would be written down."""
    for name, value in environment.items():
        refuse("--env", name, syntax.variable_fault)
        if name in _KEPT_VARIABLES:
            raise FlagbenchError(f"--env {name}: the job, the image or the cluster sets it", remedy="leave it out")
        if name == stack.visibility_variable:
            raise FlagbenchError(
                f"--env {name}: which devices are visible is what the cluster grants",
                remedy="leave it out; --gpus asks for devices",
            )
        if is_secret(name, value):
            raise FlagbenchError(
                f"--env {name} looks like a secret, which everyone who may read the job could read",
                remedy="keep it in a Secret, and name that with --env-from-secret",
            )
        if fault := syntax.text_fault(value):
            raise FlagbenchError(f"the value of --env {name} {fault}", remedy="give a value without it")


def check_labels(labels: Mapping[str, str]) -> None:
    """Refuse labels that Kubernetes would, and those by which flagbench and the Job controller find their pods."""
    for key, value in labels.items():
        _check_key("--label", key)
        refuse(f"--label {key}", value, syntax.label_value_fault)


def check_annotations(annotations: Mapping[str, str]) -> None:
    """Refuse annotations that Kubernetes would, and our own."""
    for key, value in annotations.items():
        _check_key("--annotation", key)
        if fault := syntax.text_fault(value):
            raise FlagbenchError(f"the value of --annotation {key} {fault}", remedy="give a value without it")
    if sum(len(key) + len(value.encode()) for key, value in annotations.items()) > 128 * 1024:
        raise FlagbenchError("the annotations are longer than 128 KiB", remedy="Kubernetes takes 256 KiB in all")


def _check_key(option: str, key: str) -> None:
    refuse(option, key, syntax.key_fault)
    if key == QUEUE_LABEL:
        raise FlagbenchError(f"{option} {key} is what --queue sets", remedy="use --queue NAME")
    if key in CONTROLLER_LABELS or key.rpartition("/")[0] in _KEPT_DOMAINS:
        raise FlagbenchError(f"{option} {key} is set by flagbench or by Kubernetes", remedy="give another key")


def words(options: Any, skip: Collection[str] = ()) -> list[str]:
    """A dataclass whose fields are named as options, as words of a command line; defaults are left out."""
    found = []
    for entry in fields(options):
        value = getattr(options, entry.name)
        if entry.name in skip or value == entry.default:
            continue
        flag = "--" + entry.name.rstrip("_").replace("_", "-")
        if value is True:
            found.append(flag)
        else:
            found += [f"{flag}={item}" for item in (value if isinstance(value, tuple) else (value,))]
    return found
