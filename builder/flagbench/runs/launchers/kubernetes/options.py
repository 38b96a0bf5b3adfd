"""Options of a job that only a cluster knows, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from typer import Option

from flagbench.options import Text, Texts

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
