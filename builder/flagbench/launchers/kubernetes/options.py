"""Options of a job that only a cluster knows, declared once; those in a form of their own, like `K=V`, are parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.launchers.kubernetes import syntax
from flagbench.options import Text, Texts
from flagbench.redaction import is_secret
from flagbench.request import YEAR

CONTAINER = "flagbench"
"""The container that runs the image; a template may have others beside it."""
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
TICKET_VARIABLE = "FLAGBENCH_TICKET"
"""The ticket itself, and the key of a Secret that holds it."""
STORE_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""A bucket's credentials, and the keys of a Secret that holds them."""
SESSION_VARIABLE = "AWS_SESSION_TOKEN"
"""The same of temporary credentials; such a Secret may lack it."""
RESERVED_VARIABLES = {
    TERMINATION_VARIABLE,
    DIGEST_VARIABLE,
    "FLAGBENCH_IMAGE_ID",
    MASTER_VARIABLE,
    INDEX_VARIABLE,
    "FLAGBENCH_NODE_RANK",
    "FLAGBENCH_STACK",
    "FLAGBENCH_COMMIT",
    "FLAGBENCH_CONTEXT_DIGEST",
    "FLAGBENCH_LOCK_DIGEST",
    TICKET_VARIABLE,
}
_RESERVED_DOMAINS = ("app.kubernetes.io", "batch.kubernetes.io", OWN_DOMAIN)
_CONTROLLER_LABELS = ("job-name", "controller-uid")
"""Labels without a domain that the Job controller sets on pods."""
_VOLUME = "NAME[:SUBPATH]"

Rule: TypeAlias = Callable[[str], str | None]
"""Why a text is not valid; None where it is."""


@dataclass(frozen=True)
class JobOptions:
    """What was asked of the cluster, as typed. None is the default."""

    name: Annotated[Text, Option(help="Name of the job. Default: of case, stack and run.")] = None
    namespace: Annotated[Text, Option(help="Default: the one that kubectl is pointed at.")] = None
    image: Annotated[
        Text, Option("--image", metavar="REF", help="Image, with its tag or digest. Default: this version's.")
    ] = None
    registry: Annotated[Text, Option(metavar="HOST[/PATH]", help="Where the default image was pushed.")] = None
    pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None, Option(help="Default: IfNotPresent.")
    ] = None
    pull_secret: Annotated[Texts, Option(metavar="NAME", help="Secret of the registry; repeatable.")] = ()
    cpu: Annotated[Text, Option(metavar="QUANTITY", help="Processors of a pod. Default: the stack's.")] = None
    memory: Annotated[Text, Option(metavar="QUANTITY", help="Memory of a pod, /dev/shm included.")] = None
    shm: Annotated[Text, Option(metavar="QUANTITY", help="Size of /dev/shm.")] = None
    rdma_resource: Annotated[
        Texts, Option(metavar="NAME=COUNT", help="RDMA devices of a pod, by the cluster's name; repeatable.")
    ] = ()
    node_label: Annotated[
        Texts, Option(metavar="KEY=VALUE[,VALUE]", help="Nodes to use, instead of the stack's; repeatable.")
    ] = ()
    group: Annotated[
        tuple[int, ...],
        Option(
            metavar="GID",
            min=0,
            max=2**31 - 1,
            help="Supplementary group: of the cluster's device files; repeatable.",
        ),
    ] = ()
    data_pvc: Annotated[Text, Option(metavar=_VOLUME, help="PersistentVolumeClaim read at /data.")] = None
    weights_pvc: Annotated[Text, Option(metavar=_VOLUME, help="The same, read at /weights.")] = None
    out_pvc: Annotated[Text, Option(metavar=_VOLUME, help="The same for the record, at /out.")] = None
    resume_pvc: Annotated[
        Text, Option(metavar=_VOLUME, help="The same with checkpoints to resume from, at /resume.")
    ] = None
    store: Annotated[
        Text, Option(metavar="s3://BUCKET/PREFIX", help="Bucket that gets the record and the bundles.")
    ] = None
    store_secret: Annotated[
        Text, Option(metavar="NAME", help="Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of --store.")
    ] = None
    ticket_secret: Annotated[
        Text, Option(metavar="NAME", help="Secret with FLAGBENCH_TICKET, a ticket for --run-id and --nodes.")
    ] = None
    env: Annotated[Texts, Option(metavar="NAME=VALUE", help="Variable, no secret; repeatable.")] = ()
    env_from_secret: Annotated[Texts, Option(metavar="NAME", help="Secret with variables; repeatable.")] = ()
    label: Annotated[Texts, Option(metavar="KEY=VALUE", help="Label of everything; repeatable.")] = ()
    annotation: Annotated[Texts, Option(metavar="KEY=VALUE", help="Annotation of pods; repeatable.")] = ()
    queue: Annotated[Text, Option(metavar="NAME", help="LocalQueue of Kueue that the job waits in.")] = None
    deadline: Annotated[
        int | None,
        Option(
            metavar="SECONDS",
            min=SHORTEST,
            max=YEAR,
            help="The cluster ends it. Default: --max-minutes + 1800, else 14400.",
        ),
    ] = None
    ttl: Annotated[
        int | None,
        Option(
            metavar="SECONDS", min=SHORTEST, max=2**31 - 1, help="How long the ended job is kept. Default: 12 hours."
        ),
    ] = None
    port: Annotated[int, Option(min=1, max=MAX_PORT, help="Where node 0 listens.")] = 29400
    template: Annotated[Text, Option(metavar="FILE", help="Template other than flagbench's own.")] = None


def refuse(option: str, value: str, rule: Rule, remedy: str | None = None) -> None:
    """Raise FlagbenchError (usage) where the rule finds a fault in the value."""
    if fault := rule(value):
        raise FlagbenchError(f"{option} {value!r} {fault}", remedy=remedy or f"give another {option}")


def pairs(
    option: str, texts: Iterable[str], key_rule: Rule, value_rule: Rule, remedy: str | None = None
) -> dict[str, str]:
    """`KEY=VALUE` texts by key. Raises FlagbenchError (usage) where a rule finds a fault, or a key is given twice."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        # No text without a '=' and no value is repeated: it may be a misplaced secret.
        if not equals:
            raise FlagbenchError(f"a value of {option} has no '='", remedy=f"write {option} KEY=VALUE")
        if key in found:
            raise FlagbenchError(f"{option} {key!r} is given twice", remedy="give it once")
        refuse(option, key, key_rule, remedy)
        if fault := value_rule(value):
            raise FlagbenchError(f"the value of {option} {key} {fault}", remedy=remedy or "give another value")
        found[key] = value
    return found


def refuse_secret(option: str, name: str, value: str) -> None:
    """Raise FlagbenchError (usage) where what would be written into the job is a secret, without repeating it."""
    if is_secret(name, value):
        raise FlagbenchError(
            f"{option} {name}".rstrip() + " looks like a secret, which everyone who may read the job could read",
            remedy="keep it in a Secret, and name that with --env-from-secret",
        )


def metadata_fault(key: str) -> str | None:
    """Why `key` cannot be a label or an annotation of the user's own."""
    if key == QUEUE_LABEL:
        return "is set with --queue NAME"
    if key in _CONTROLLER_LABELS or key.rpartition("/")[0] in _RESERVED_DOMAINS:
        return "is set by flagbench or by Kubernetes"
    return syntax.key_fault(key)
