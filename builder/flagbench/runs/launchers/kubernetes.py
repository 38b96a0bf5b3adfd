"""Prints the YAML of a run on a Kubernetes cluster, for `kubectl apply`.

`KubernetesRequest` checks the options before a cluster sees them, and writes the YAML from the template
manifests/kubernetes/job.yaml.j2.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.expect.memory import lacking, measured_memory
from flagbench.image_reference import try_parse_reference
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.model import MeasuredMemory
from flagbench.options import Text, Texts
from flagbench.runs.launchers.job_request import (
    SLACK_MINUTES,
    JobOptions,
    JobRequest,
    Scheduler,
    check_bucket,
    job_template,
)
from flagbench.runs.request import RunOptions, check_run_id, config_options, new_run_id
from flagbench_core import __version__
from flagbench_core.config import Options
from flagbench_core.data_folders import SYNTHETIC

_VOLUME = "NAME[:SUBPATH]"
"""How --help writes the value of an option that names a volume."""
_LONGEST_NAME = 63
"""Most characters of a host name. That of a pod is the job's name with the number of the node."""
_HASH_DIGITS = 8
"""Digits in a generated name that are computed from the run id, so that runs have different names."""
_HOST_NAME_LABEL = "kubernetes.io/hostname"
"""The label that has another value on every node."""


@dataclass(frozen=True)
class KubernetesOptions:
    """The options of `flagbench job` that only Kubernetes has, as the user typed them. None: it was not given."""

    GROUP: ClassVar[str] = "Kubernetes"

    namespace: Annotated[Text, Option(help="Default: the one that kubectl is pointed at.")] = None
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
    store_secret: Annotated[
        Text, Option(metavar="NAME", help="Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the bucket.")
    ] = None
    tolerate: Annotated[
        Texts, Option(metavar="KEY", help="Key of a taint to tolerate, such as that of new nodes; repeatable.")
    ] = ()
    queue: Annotated[Text, Option(metavar="NAME", help="LocalQueue of Kueue that the job waits in.")] = None


@dataclass(frozen=True)
class Volume:
    """A PersistentVolumeClaim, mounted at `/NAME`."""

    name: str
    """data, weights, resume or out: the name of the image's option for the folder."""
    claim: str
    subpath: str | None
    """The folder in the volume; None: the whole volume."""
    read_only: bool
    """Whether the claim is attached read-only, as every claim is but that of --out-pvc."""


class NodeJob(NamedTuple):
    """A Job to create."""

    name: str
    run_id: str
    node: str | None
    """The node that it is bound to; None: the scheduler chooses its nodes."""


def check_data(run: RunOptions, options: KubernetesOptions) -> None:
    """Raise FlagbenchError (USAGE) for data of this machine or in a bucket: a pod reads data from a volume."""
    if run.data is None:
        return
    if options.data_pvc is not None:
        raise FlagbenchError("--data and --data-pvc contradict each other", remedy="give one of them")
    if run.data != SYNTHETIC:
        raise FlagbenchError(
            f"--data {run.data!r} is not on the cluster",
            remedy="give --data-pvc CLAIM, or have an init container copy it from a bucket (docs/kubernetes.md)",
        )


def check_store(job: JobOptions, options: KubernetesOptions) -> None:
    """Raise FlagbenchError (USAGE) for a store that is not a bucket, and for --store-secret without --store."""
    if job.store is None:
        if options.store_secret is not None:
            raise FlagbenchError(
                "--store-secret needs a bucket", remedy="say which one it is for: --store s3://BUCKET/PREFIX"
            )
        return
    check_bucket(job.store, "write --store s3://BUCKET/PREFIX, or keep the record with --out-pvc CLAIM")


_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
"""A label of RFC 1123, as Kubernetes requires of names (its documentation: Object Names and IDs)."""


@dataclass(frozen=True)
class KubernetesRequest(JobRequest):
    """A Kubernetes job. Quantities, and names other than the job's, are checked by the cluster."""

    SCHEDULER: ClassVar[Scheduler] = Scheduler.KUBERNETES

    options: KubernetesOptions = field(default_factory=KubernetesOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_store(self.job, self.options)
        # These properties parse options when they are read first, and raise for those that are not valid.
        _ = self.rdma
        _ = self.node_labels
        self._check_name()
        check_data(self.run, self.options)
        if self.each_node is not None and self.options.node_label:
            raise FlagbenchError("--each-node and --node-label contradict each other", remedy="give one of them")
        for job in self.jobs():
            check_run_id(job.run_id)

    @cached_property
    def run_id(self) -> str:
        """The id of the run. It is chosen here, because all nodes must have the same one."""
        return self.run.run_id or new_run_id()

    @cached_property
    def job_name(self) -> str:
        """The name of the job; by default of case and stack, with digits computed from the run id.

        Of several jobs, it is the label that they have in common.
        """
        if self.job.name is not None:
            return self.job.name
        return self._name_of_run(f"flagbench-{self.case.name}-{self.stack.name}", self.run_id)

    def jobs(self) -> list[NodeJob]:
        """The jobs to create: one, or one for each node, whose name and run id have that of the node."""
        if self.each_node is None:
            return [NodeJob(self.job_name, self.run_id, None)]
        prefix = self.job.name or f"flagbench-{self.case.name}"
        jobs = []
        for node in self.each_node.names:
            run_id = f"{self.run_id}-{node}"
            jobs.append(NodeJob(self._name_of_run(f"{prefix}-{node}", run_id), run_id, node))
        return jobs

    def _name_of_run(self, text: str, run_id: str) -> str:
        """The name of a run's job: a text, with digits computed from the run id, by which names differ."""
        digits = hashlib.sha256(run_id.encode()).hexdigest()[:_HASH_DIGITS]
        longest = _LONGEST_NAME - len(f"-{digits}{self._last_node_suffix}")
        # What cannot be in a name becomes a hyphen.
        slug = re.sub(r"[^a-z0-9]+", "-", text.lower())[:longest].strip("-")
        return f"{slug}-{digits}"

    @property
    def _last_node_suffix(self) -> str:
        """The suffix by which the last node's pod is named after the job, for example `-1` with two nodes."""
        return f"-{self.run.nodes - 1}"

    @property
    def image_digest(self) -> str | None:
        """The digest in the name of the image; None if it has none."""
        reference = try_parse_reference(self.image or "")
        if reference is None:
            return None
        return reference.digest

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """The volumes that the run reads and writes, of `--NAME-pvc CLAIM[:SUBPATH]`."""
        out_claim = (self.options.out_pvc or "").partition(":")[0]
        volumes = []
        for name in ("data", "weights", "resume", "out"):
            text = getattr(self.options, f"{name}_pvc")
            if text is not None:
                claim, _, subpath = text.partition(":")
                volumes.append(Volume(name, claim, subpath or None, read_only=claim != out_claim))
        return tuple(volumes)

    def _config_options(self) -> Options:
        """The options that decide the configuration, by the volumes of the job."""
        source = self.run.data
        if self.options.data_pvc is not None:
            source = "files"
        return config_options(
            self.run,
            source=source,
            weights=self.options.weights_pvc is not None,
            resume=self.options.resume_pvc is not None,
            out=self.options.out_pvc is not None,
        )

    @cached_property
    def rdma(self) -> Mapping[str, str]:
        """The number of network devices of one pod as text, by the cluster's name of the resource."""
        resources = _parse_pairs("--rdma-resource", self.options.rdma_resource)
        if self.stack.kubernetes.resource in resources:
            raise FlagbenchError(
                f"--rdma-resource {self.stack.kubernetes.resource} is the accelerator's own", remedy="see --gpus"
            )
        return resources

    @cached_property
    def memory(self) -> MeasuredMemory | None:
        """The memory that such a run was measured to use on each device; None if none was measured."""
        return measured_memory(self.case, self.config, self.config["precision"], self.run.ranks)

    @property
    def devices_with_memory(self) -> tuple[DeviceModel, ...]:
        """The stack's devices that have as much memory as was measured; all if none was measured."""
        devices = self.stack.accelerators
        if self.memory is None:
            return tuple(devices)
        needed_gib = self.memory.gib
        return tuple(device for device in devices if device.memory_gib >= needed_gib)

    @cached_property
    def node_labels(self) -> Mapping[str, tuple[str, ...]]:
        """Labels that a node must have, each with the values allowed: those of --node-label, else the stack's.

        A label of the stack without values has the names of its devices.
        """
        chosen = _parse_pairs("--node-label", self.options.node_label)
        if chosen:
            return {key: tuple(text.split(",")) for key, text in chosen.items()}
        devices = self.devices_with_memory or self.stack.accelerators
        # NVIDIA's GPU feature discovery writes the driver's name of a device with hyphens.
        device_names = tuple(device.name.replace(" ", "-") for device in devices)
        labels: dict[str, tuple[str, ...]] = {}
        for key, values in self.stack.kubernetes.node_labels.items():
            allowed = values or device_names
            if allowed:
                labels[key] = allowed
        return labels

    @property
    def tolerations(self) -> tuple[str, ...]:
        """The keys of the taints of nodes that the pods tolerate."""
        return (*self.stack.kubernetes.tolerations, *self.options.tolerate)

    def arguments(self, run_id: str) -> list[str]:
        """The arguments of the image for a run, except the number of the node, which the cluster sets."""
        # /data is the default, but must be named: the tiny preset would use the data that it carries.
        arguments = replace(self.run, run_id=run_id, max_minutes=self.max_minutes).image_arguments()
        arguments += [f"--{volume.name}=/{volume.name}" for volume in self.volumes]
        if self.job.store is not None:
            arguments.append(f"--store={self.job.store}")
        return arguments

    def render(self) -> str:
        """The YAML of the Service and the jobs, in the order in which they must be created.

        A comment at its start has the command that prints it again.
        """
        needs = self.stack.kubernetes
        values = {
            "request": self,
            "deadline": math.ceil((self.max_minutes + SLACK_MINUTES) * 60),
            "shm": f"{needs.shm_per_device_gib * self.run.gpus}Gi",
            "resources": _pod_resources(self),
            "alike": _shared_labels(self),
            # Pinning memory for RDMA needs a capability that other uids cannot hold.
            "root": bool(self.rdma) or self.stack.docker.root,
        }
        command = _escape_non_ascii(shlex.join(self.command()))
        header = f"# Made by flagbench {__version__}:\n#   {command}\n"
        return header + job_template("kubernetes/job.yaml.j2", quote).render(values)

    def _run_to_repeat(self) -> RunOptions:
        """The options of the run, with its id, from which the name of the job is made."""
        return replace(self.run, run_id=self.run_id)

    def warnings(self) -> list[str]:
        """Problems that a valid job may have, each with its remedy."""
        warnings = super().warnings()
        memory_warning = self._memory_warning()
        if memory_warning is not None:
            warnings.append(memory_warning)
        if self.job.store is not None and self.options.store_secret is None:
            warnings.append("the job gives its pods no credentials for the bucket; --store-secret does")
        is_kept = self.job.store is not None or self.options.out_pvc is not None
        if self.run.nodes > 1 and not is_kept:
            warnings.append(
                "if a node fails, the other pods and their logs are deleted, so the record may be lost; "
                "keep it with --out-pvc CLAIM or --store"
            )
        return warnings

    def _memory_warning(self) -> str | None:
        """A warning that no device of the stack has the memory that was measured; None if one has, or is chosen."""
        if self.memory is None or not self.stack.accelerators:
            return None
        if self.options.node_label or self.devices_with_memory:
            return None
        largest_gib = max(device.memory_gib for device in self.stack.accelerators)
        return lacking(self.case, self.memory, largest_gib, self.run.ranks)

    def _check_name(self) -> None:
        """Refuse a name with which the host name of the last node's pod is not a label of RFC 1123."""
        longest = _LONGEST_NAME - len(self._last_node_suffix)
        if len(self.job_name) <= longest and _LABEL.fullmatch(self.job_name):
            return
        raise FlagbenchError(
            f"--name {self.job_name!r} cannot name a Kubernetes job",
            remedy=f"use at most {longest} of a to z, 0 to 9 and '-', a letter or digit first and last",
        )


def _parse_pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """`KEY=VALUE` texts by key. Raises FlagbenchError (USAGE) for a text without '=', and for a key given twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        # A text without a '=' is not repeated: it may be a misplaced secret.
        if not equals:
            raise FlagbenchError(f"a value of {option} has no '='", remedy=f"write {option} KEY=VALUE")
        if key in pairs:
            raise FlagbenchError(f"{option} {key!r} is given twice", remedy="give it once")
        pairs[key] = value
    return pairs


def _pod_resources(request: KubernetesRequest) -> dict[str, str]:
    """The resources of one pod as Kubernetes writes them: processors, memory, accelerators and network devices."""
    needs = request.stack.kubernetes
    gpus = request.run.gpus
    # What is written to /dev/shm counts as memory of the pod.
    memory_gib = (needs.memory_per_device_gib + needs.shm_per_device_gib) * gpus
    resources = {"cpu": str(needs.cpus_per_device * gpus), "memory": f"{memory_gib}Gi"}
    if needs.resource is not None:
        resources[needs.resource] = str(gpus)
    return {**resources, **request.rdma}


def _shared_labels(request: KubernetesRequest) -> list[str]:
    """The labels that must have one value on all nodes of a job, so that its devices are of one kind."""
    if request.run.nodes == 1:
        return []
    labels = []
    for key, values in request.node_labels.items():
        if len(values) > 1 and key != _HOST_NAME_LABEL:
            labels.append(key)
    return labels


def quote(value: Any) -> str:
    """A value as YAML that every parser reads back as the same: ASCII JSON, in which strings are always quoted."""
    return _escape_non_ascii(json.dumps(value, ensure_ascii=False))


def _escape_non_ascii(text: str) -> str:
    """The text in printable ASCII; other characters, line breaks included, are escaped as in double-quoted YAML."""
    return re.sub(r"[^ -~]", lambda match: f"\\U{ord(match[0]):08x}", text)
