"""Options of a job that only a cluster knows, declared once; those in a form of their own, like `K=V`, are parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from flagbench.catalog.model import Stack
from flagbench.errors import FlagbenchError
from flagbench.launchers.kubernetes import syntax
from flagbench.options import text_fault
from flagbench.redaction import is_secret
from flagbench.request import YEAR

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""By which Kueue knows a job that it is to admit."""
OWN_DOMAIN = "flagbench.dev"
RESOURCE_ANNOTATION = f"{OWN_DOMAIN}/device-resource"
"""Names the resource that a Job's devices are, so that the Job can be checked without the catalog."""
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
SHORTEST = 60
"""Seconds: a job that the cluster ends, or removes, sooner than that leaves nothing to read."""
MAX_PORT = 65535
_RESERVED_VARIABLES = {
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
_RESERVED_DOMAINS = ("app.kubernetes.io", "batch.kubernetes.io", OWN_DOMAIN)
_CONTROLLER_LABELS = ("job-name", "controller-uid")
"""Labels without a domain that the Job controller sets on pods."""
_VOLUME = "NAME[:SUBPATH]"


@dataclass(frozen=True)
class JobOptions:
    """What was asked of the cluster, as typed. None is the default."""

    name: Annotated[str | None, typer.Option(help="Name of the job. Default: of case, stack and run.")] = None
    namespace: Annotated[str | None, typer.Option(help="Default: the one that kubectl is pointed at.")] = None
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="REF", help="Image, with its tag or digest. Default: this version's."),
    ] = None
    registry: Annotated[
        str | None, typer.Option(metavar="HOST[/PATH]", help="Where the default image was pushed.")
    ] = None
    pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None, typer.Option(help="Default: IfNotPresent.")
    ] = None
    pull_secret: Annotated[
        tuple[str, ...], typer.Option(metavar="NAME", help="Secret of the registry; repeatable.")
    ] = ()
    cpu: Annotated[
        str | None, typer.Option(metavar="QUANTITY", help="Processors of a pod. Default: the stack's.")
    ] = None
    memory: Annotated[str | None, typer.Option(metavar="QUANTITY", help="Memory of a pod, /dev/shm included.")] = None
    shm: Annotated[str | None, typer.Option(metavar="QUANTITY", help="Size of /dev/shm.")] = None
    rdma_resource: Annotated[
        tuple[str, ...],
        typer.Option(metavar="NAME=COUNT", help="RDMA devices of a pod, by the cluster's name; repeatable."),
    ] = ()
    node_label: Annotated[
        tuple[str, ...],
        typer.Option(metavar="KEY=VALUE[,VALUE]", help="Nodes to use, instead of the stack's; repeatable."),
    ] = ()
    group: Annotated[
        tuple[int, ...],
        typer.Option(
            metavar="GID",
            min=0,
            max=2**31 - 1,
            help="Supplementary group: of the cluster's device files; repeatable.",
        ),
    ] = ()
    data_pvc: Annotated[str | None, typer.Option(metavar=_VOLUME, help="PersistentVolumeClaim read at /data.")] = None
    weights_pvc: Annotated[str | None, typer.Option(metavar=_VOLUME, help="The same, read at /weights.")] = None
    out_pvc: Annotated[str | None, typer.Option(metavar=_VOLUME, help="The same for the record, at /out.")] = None
    resume_pvc: Annotated[
        str | None, typer.Option(metavar=_VOLUME, help="The same with checkpoints to resume from, at /resume.")
    ] = None
    env: Annotated[tuple[str, ...], typer.Option(metavar="NAME=VALUE", help="Variable, no secret; repeatable.")] = ()
    env_from_secret: Annotated[
        tuple[str, ...], typer.Option(metavar="NAME", help="Secret with variables; repeatable.")
    ] = ()
    label: Annotated[tuple[str, ...], typer.Option(metavar="KEY=VALUE", help="Label of everything; repeatable.")] = ()
    annotation: Annotated[
        tuple[str, ...], typer.Option(metavar="KEY=VALUE", help="Annotation of pods; repeatable.")
    ] = ()
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="LocalQueue of Kueue that the job waits in.")] = (
        None
    )
    deadline: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            min=SHORTEST,
            max=YEAR,
            help="The cluster ends it. Default: --max-minutes + 1800, else 14400.",
        ),
    ] = None
    ttl: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            min=SHORTEST,
            max=2**31 - 1,
            help="How long the ended job is kept. Default: 12 hours.",
        ),
    ] = None
    port: Annotated[int, typer.Option(min=1, max=MAX_PORT, help="Where node 0 listens.")] = 29400
    template: Annotated[str | None, typer.Option(metavar="FILE", help="Template other than flagbench's own.")] = None


@dataclass(frozen=True)
class Volume:
    """A PersistentVolumeClaim and the folder in it; None is all of it."""

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
            # The text is not repeated: it may be a misplaced secret.
            raise FlagbenchError(f"a value of {option} has no '='", remedy=f"write {option} KEY=VALUE")
        if key in found:
            raise FlagbenchError(f"{option} {key!r} is given twice", remedy="give it once")
        found[key] = value
    return found


def refuse_secret(option: str, name: str, value: str) -> None:
    """Raise FlagbenchError (usage) where what would be written into the job is a secret, without repeating it."""
    if is_secret(name, value):
        raise FlagbenchError(
            f"{option} {name}".rstrip() + " looks like a secret, which everyone who may read the job could read",
            remedy="keep it in a Secret, and name that with --env-from-secret",
        )


def volume(option: str, text: str) -> Volume:
    """`NAME[:SUBPATH]` as a volume."""
    name, colon, subpath = text.partition(":")
    refuse(option, name, syntax.subdomain_fault, "give the name of a PersistentVolumeClaim")
    if colon:
        refuse(option, subpath, syntax.subpath_fault, "write NAME:FOLDER/IN/IT")
    return Volume(name, subpath if colon else None)


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


def environment(texts: Iterable[str], stack: Stack) -> Mapping[str, str]:
    """`NAME=VALUE` texts by name; none that the job sets itself, no secret, which would be written down."""
    found = pairs("--env", texts)
    for name, value in found.items():
        refuse("--env", name, syntax.variable_fault)
        if name in _RESERVED_VARIABLES:
            raise FlagbenchError(f"--env {name}: the job, the image or the cluster sets it", remedy="leave it out")
        if name == stack.visibility_variable:
            raise FlagbenchError(
                f"--env {name}: the cluster decides which devices are visible",
                remedy="leave it out; --gpus asks for devices",
            )
        refuse_secret("--env", name, value)
        if fault := text_fault(value):
            raise FlagbenchError(f"the value of --env {name} {fault}", remedy="give a value without it")
    return found


def labels(texts: Iterable[str]) -> Mapping[str, str]:
    """`KEY=VALUE` texts by key; none by which flagbench or the Job controller finds its pods."""
    found = pairs("--label", texts)
    for key, value in found.items():
        _check_key("--label", key)
        refuse(f"--label {key}", value, syntax.label_value_fault)
    return found


def pod_annotations(texts: Iterable[str]) -> Mapping[str, str]:
    """`KEY=VALUE` texts by key; none of our own."""
    found = pairs("--annotation", texts)
    for key, value in found.items():
        _check_key("--annotation", key)
        if fault := text_fault(value):
            raise FlagbenchError(f"the value of --annotation {key} {fault}", remedy="give a value without it")
    if sum(len(key) + len(value.encode()) for key, value in found.items()) > 128 * 1024:
        raise FlagbenchError("--annotation: all together are longer than 128 KiB", remedy="give shorter values")
    return found


def _check_key(option: str, key: str) -> None:
    refuse(option, key, syntax.key_fault)
    if key == QUEUE_LABEL:
        raise FlagbenchError(f"{option} {key} is what --queue sets", remedy="use --queue NAME")
    if key in _CONTROLLER_LABELS or key.rpartition("/")[0] in _RESERVED_DOMAINS:
        raise FlagbenchError(f"{option} {key} is set by flagbench or by Kubernetes", remedy="give another key")
