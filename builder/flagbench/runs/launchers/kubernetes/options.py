"""Options of a job that only a cluster knows, declared once, and what they say of volumes and buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.options import Text, Texts
from flagbench.runs.request import RunOptions, check_address, is_address
from flagbench_core.redaction import redact

_VOLUME = "NAME[:SUBPATH]"


@dataclass(frozen=True)
class JobOptions:
    """What was asked of the cluster, as typed. None is the default."""

    GROUP: ClassVar = "Cluster"

    name: Annotated[Text, Option(help="Name of the job. Default: of case, stack and run.")] = None
    namespace: Annotated[Text, Option(help="Default: the one that kubectl is pointed at.")] = None
    image: Annotated[
        Text, Option("--image", metavar="REF", help="Image, with its tag or digest. Default: this version's.")
    ] = None
    registry: Annotated[Text, Option(metavar="HOST[/PATH]", help="Where the default image was pushed.")] = None
    pull_secret: Annotated[Texts, Option(metavar="NAME", help="Secret of the registry; repeatable.")] = ()
    rdma_resource: Annotated[
        Texts, Option(metavar="NAME=COUNT", help="RDMA devices of a pod, by the cluster's name; repeatable.")
    ] = ()
    node_label: Annotated[
        Texts, Option(metavar="KEY=VALUE[,VALUE]", help="Nodes to use, instead of the stack's; repeatable.")
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
        Text, Option(metavar="NAME", help="Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the bucket.")
    ] = None
    ticket_secret: Annotated[
        Text, Option(metavar="NAME", help="Secret with FLAGBENCH_TICKET, a ticket for --run-id and --nodes.")
    ] = None
    env: Annotated[Texts, Option(metavar="NAME=VALUE", help="Variable, no secret; repeatable.")] = ()
    queue: Annotated[Text, Option(metavar="NAME", help="LocalQueue of Kueue that the job waits in.")] = None
    port: Annotated[int, Option(min=1024, max=65535, help="Where node 0 listens.")] = 29400


@dataclass(frozen=True)
class Volume:
    """A PersistentVolumeClaim, mounted at `/NAME`."""

    name: str
    """data, weights, resume or out: as the option of the image is called that gets the folder."""
    claim: str
    subpath: str | None
    """The folder in it; None is all of it."""
    read_only: bool
    """Whether the claim can be attached for reading alone: it is not the one that is also written to."""


def volumes_of(job: JobOptions) -> tuple[Volume, ...]:
    """The volumes asked for by `--NAME-pvc CLAIM[:SUBPATH]`."""
    written = (job.out_pvc or "").partition(":")[0]
    found = []
    for name in ("data", "weights", "resume", "out"):
        text = getattr(job, f"{name}_pvc")
        if text is not None:
            claim, _, subpath = text.partition(":")
            found.append(Volume(name, claim, subpath or None, claim != written))
    return tuple(found)


def reads_bucket(run: RunOptions) -> bool:
    """Whether data or weights are in a bucket."""
    return is_address(run.data) or is_address(run.weights)


def check_sources(run: RunOptions, job: JobOptions) -> None:
    """Raise FlagbenchError (usage) unless data and weights are in a volume or a bucket: a folder of this machine
    is not on the cluster."""
    for name in ("data", "weights"):
        given = getattr(run, name)
        if given is None:
            continue
        if getattr(job, f"{name}_pvc") is not None:
            raise FlagbenchError(f"--{name} and --{name}-pvc contradict each other", remedy="give one of them")
        if is_address(given):
            check_address(f"--{name}", given)
        elif (name, given) != ("data", "synthetic"):
            raise FlagbenchError(
                f"--{name} {given!r} is not on the cluster",
                remedy=f"give --{name} s3://BUCKET/PREFIX or --{name}-pvc CLAIM",
            )


def check_store(run: RunOptions, job: JobOptions) -> None:
    """Raise FlagbenchError (usage) unless at most one place gets the record, and a Secret has a bucket to be for."""
    if job.ticket_secret is not None and job.store is not None:
        raise FlagbenchError(
            "--ticket-secret and --store contradict each other: the ticket says where the record goes",
            remedy="give one of them",
        )
    if job.ticket_secret is not None and run.run_id is None:
        raise FlagbenchError(
            "--ticket-secret needs --run-id: a ticket is for one run",
            remedy="give --run-id and --nodes as they were given to `flagbench store ticket`",
        )
    if job.store is not None and not is_address(job.store):
        raise FlagbenchError(
            f"--store {redact(job.store)!r} is not a bucket, and a pod's folders end with it",
            remedy="write --store s3://BUCKET/PREFIX, or keep the record with --out-pvc CLAIM",
        )
    if job.store is not None:
        check_address("--store", job.store)
    elif job.store_secret is not None and not reads_bucket(run):
        raise FlagbenchError(
            "--store-secret needs a bucket", remedy="say which one it is for: --store s3://BUCKET/PREFIX"
        )
