"""A job: one run of a case on a stack, with every value checked before a document is written."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from flagbench._version import __version__
from flagbench.catalog.model import Case, Stack
from flagbench.errors import FlagbenchError
from flagbench.images import ImageReference, image_of, parse_reference
from flagbench.launchers.kubernetes import syntax
from flagbench.launchers.kubernetes.options import (
    RESERVED_VARIABLES,
    JobOptions,
    Rule,
    metadata_fault,
    pairs,
    refuse,
    refuse_secret,
)
from flagbench.launchers.kubernetes.storage import check_store
from flagbench.oci.bucket_address import is_in_bucket
from flagbench.options import check_ranges, text_fault, words
from flagbench.request import RunOptions, can_resume, check_address, check_options, is_address, new_run_id

DEFAULT_DEADLINE = 4 * 3600
DEADLINE_SLACK = 1800
"""Seconds beyond --max-minutes for scheduling, pulling a large image and starting."""
_QUANTITY = "write 8, 500m or 96Gi"
_SECRET = "give the name of a Secret"
_RULES: Mapping[str, tuple[Rule, str | None]] = {
    "namespace": (syntax.label_fault, None),
    "queue": (syntax.label_fault, "give the name of a LocalQueue"),
    "registry": (syntax.registry_fault, None),
    "pull_secret": (syntax.subdomain_fault, _SECRET),
    "env_from_secret": (syntax.subdomain_fault, _SECRET),
    "store_secret": (syntax.subdomain_fault, _SECRET),
    "ticket_secret": (syntax.subdomain_fault, _SECRET),
    "cpu": (syntax.quantity_fault, _QUANTITY),
    "memory": (syntax.quantity_fault, _QUANTITY),
    "shm": (syntax.quantity_fault, _QUANTITY),
}
"""Of options whose values need nothing else to be checked: the rule, and the remedy."""
_NAMES = ("--name=", "--namespace=", "--store-secret=", "--ticket-secret=")
"""Options with the name of something: it may well look like a key."""


@dataclass(frozen=True)
class Volume:
    """A PersistentVolumeClaim and the folder in it; None is all of it."""

    name: str
    subpath: str | None


@dataclass(frozen=True)
class JobRequest:
    """One job.

    Raises FlagbenchError (usage) when it is made, for the first value that Kubernetes or the image would refuse.
    """

    case: Case
    stack: Stack
    run: RunOptions = field(default_factory=RunOptions)
    job: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        check_options(self.run, self.case, self.stack)
        check_ranges(self.job)
        for name, (rule, remedy) in _RULES.items():
            given = getattr(self.job, name)
            for value in given if isinstance(given, tuple) else () if given is None else (given,):
                refuse(f"--{name.replace('_', '-')}", value, rule, remedy)
        self._check_times()
        self._check_names()
        self._check_resources()
        check_store(self.run, self.job)
        # Parsed for their errors.
        _ = self.volumes, self.rdma, self.environment, self.labels, self.annotations, self.node_labels
        for word in self.command():
            # A job's name may well look like a key: sk-learn-2x8-nightly.
            if not word.startswith(_NAMES):
                refuse_secret(word.partition("=")[0], "", word)
        self._check_sources()
        if "resume" in self.volumes and not can_resume(self.run, self.case):
            raise FlagbenchError(
                f"--resume-pvc: {self.case.name} writes no checkpoints with this engine",
                remedy="leave out --resume-pvc",
            )

    @cached_property
    def run_id(self) -> str:
        """Made once, here: every node is given the same."""
        return self.run.run_id or new_run_id()

    @cached_property
    def job_name(self) -> str:
        """The name of the Job; made of case, stack and run id where none was given."""
        if self.job.name is not None:
            return self.job.name
        slug = re.sub(r"[^a-z0-9]+", "-", f"flagbench-{self.case.name}-{self.stack.name}".lower())
        room = syntax.LABEL_LENGTH - len(f"-{self.run.nodes - 1}") - 9
        return f"{slug[:room].rstrip('-')}-{hashlib.sha256(self.run_id.encode()).hexdigest()[:8]}"

    @cached_property
    def image(self) -> str:
        """The image to run, by digest where one was given, else by a tag that does not move."""
        if self.job.image is not None:
            return self.job.image
        prefix = f"{self.job.registry}/" if self.job.registry else ""
        return prefix + image_of(self.case.name, self.stack.name, __version__)

    @property
    def reference(self) -> ImageReference:
        """The image's name in parts."""
        return parse_reference(self.image)

    @cached_property
    def deadline(self) -> int:
        """Seconds after which the cluster ends the job, waiting for nodes included."""
        if self.job.deadline is not None:
            return self.job.deadline
        minutes = self.run.max_minutes
        return DEFAULT_DEADLINE if minutes is None else math.ceil(minutes * 60) + DEADLINE_SLACK

    @cached_property
    def max_minutes(self) -> float:
        """After how many minutes the run ends itself: before the cluster does, which deletes the logs."""
        if self.run.max_minutes is not None:
            return self.run.max_minutes
        # Half of a short deadline: whole minutes, where it has any.
        minutes = max(self.deadline - DEADLINE_SLACK, self.deadline / 2) / 60
        return math.floor(minutes) if minutes >= 1 else minutes

    @cached_property
    def volumes(self) -> Mapping[str, Volume]:
        """Volumes by the name that option, volume and folder have: data, weights, resume, out."""
        found = {}
        for name in ("data", "weights", "resume", "out"):
            text = getattr(self.job, f"{name}_pvc")
            if text is not None:
                claim, colon, subpath = text.partition(":")
                refuse(f"--{name}-pvc", claim, syntax.subdomain_fault, "give the name of a PersistentVolumeClaim")
                if colon:
                    refuse(f"--{name}-pvc", subpath, syntax.subpath_fault, "write NAME:FOLDER/IN/IT")
                found[name] = Volume(claim, subpath if colon else None)
        return found

    @cached_property
    def rdma(self) -> Mapping[str, str]:
        """Network devices of one pod, by resource."""

        def name_fault(name: str) -> str | None:
            own = name == self.stack.kubernetes.resource
            return "is the accelerator's own resource: see --gpus" if own else syntax.resource_fault(name)

        remedy = "write DOMAIN/NAME=1, as the cluster calls it"
        return pairs("--rdma-resource", self.job.rdma_resource, name_fault, syntax.devices_fault, remedy)

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """Variables asked for, by name; none that the job sets itself, no secret, which would be written down."""

        def name_fault(name: str) -> str | None:
            if name in RESERVED_VARIABLES:
                return "is set by the job, the image or the cluster: leave it out"
            if name == self.stack.visibility_variable:
                return "is set by the cluster, which decides which devices are visible: see --gpus"
            return syntax.variable_fault(name)

        found = pairs("--env", self.job.env, name_fault, text_fault)
        for name, value in found.items():
            refuse_secret("--env", name, value)
        return found

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """Labels asked for, by key; none by which flagbench or the Job controller finds its pods."""
        return pairs("--label", self.job.label, metadata_fault, syntax.label_value_fault)

    @cached_property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of the pods, by key; none of our own."""
        found = pairs("--annotation", self.job.annotation, metadata_fault, text_fault)
        if sum(len(key) + len(value.encode()) for key, value in found.items()) > 128 * 1024:
            raise FlagbenchError("--annotation: all together are longer than 128 KiB", remedy="give shorter values")
        return found

    @cached_property
    def node_labels(self) -> Mapping[str, tuple[str, ...]]:
        """Labels that a node must have, each with the values allowed."""

        def values_fault(text: str) -> str | None:
            faults = ((value, syntax.label_value_fault(value)) for value in text.split(","))
            return next((f"holds {value!r}, which {fault}" for value, fault in faults if fault), None)

        given = pairs("--node-label", self.job.node_label, syntax.key_fault, values_fault)
        return {key: tuple(text.split(",")) for key, text in given.items()} or self.stack.kubernetes.node_labels

    @property
    def shm(self) -> str:
        """The size of /dev/shm in one pod."""
        return self.job.shm or f"{self.stack.kubernetes.shm_per_device_gib * self.run.gpus}Gi"

    @property
    def memory(self) -> str:
        """The memory of one pod: what is written to /dev/shm counts against it, so it has room for that too."""
        needs = self.stack.kubernetes
        return self.job.memory or f"{(needs.memory_per_device_gib + needs.shm_per_device_gib) * self.run.gpus}Gi"

    @property
    def cpu(self) -> str:
        """The processors of one pod."""
        return self.job.cpu or str(self.stack.kubernetes.cpus_per_device * self.run.gpus)

    @property
    def root(self) -> bool:
        """Whether the process is uid 0: pinning memory for RDMA needs a capability that other uids cannot hold."""
        return bool(self.rdma) or self.stack.docker.root

    def warnings(self) -> list[str]:
        """What may go wrong with a valid job, each with a way out."""
        found = []
        if not self.reference.host:
            found.append(f"clusters look for {self.image} at docker.io; name the registry by --registry or --image")
        if any(map(is_address, (self.run.data, self.run.weights))) and not (
            self.job.env_from_secret or self.job.store_secret
        ):
            found.append(
                "the pods read data from a bucket, and the job gives them no credentials; --env-from-secret does, "
                "and --store-secret beside --store"
            )
        stored = self.job.store is not None or self.job.ticket_secret is not None
        if self.run.nodes > 1 and "out" not in self.volumes and not stored:
            found.append(
                "where one node fails, the others are deleted with their logs, node 0's record among them; "
                "--out-pvc CLAIM keeps it, and so does --store"
            )
        return found

    def command(self) -> list[str]:
        """The words of the command that makes this job again, byte for byte."""
        name = f"{self.case.name}:{self.stack.name}"
        run = replace(self.run, run_id=self.run_id)
        return ["flagbench", "job", name, "--for", "kubernetes", *run.words(), *words(self.job)]

    def _check_sources(self) -> None:
        """Data and weights are in a volume or in a bucket: this machine's folders are not on the cluster."""
        for name in ("data", "weights"):
            given = getattr(self.run, name)
            if is_address(given):
                check_address(f"--{name}", given)
            elif given is not None and (name, given) != ("data", "synthetic"):
                other = "--data synthetic, " if name == "data" else ""
                raise FlagbenchError(
                    f"--{name} {given!r} is not on the cluster",
                    remedy=f"give {other}--{name} s3://BUCKET/PREFIX, or --{name}-pvc CLAIM",
                )
            if name in self.volumes and given is not None:
                raise FlagbenchError(f"--{name} and --{name}-pvc contradict each other", remedy="give one of them")

    def _check_times(self) -> None:
        minutes = self.run.max_minutes
        if minutes is not None and self.deadline <= minutes * 60:
            raise FlagbenchError(
                f"the cluster would end the job after {self.deadline} s, before --max-minutes {minutes:g}",
                remedy="give a longer --deadline, or leave it out",
            )

    def _check_names(self) -> None:
        refuse("--name", self.job_name, syntax.label_fault, "give a short name, like distilbert-2x8")
        if len(longest := f"{self.job_name}-{self.run.nodes - 1}") > syntax.LABEL_LENGTH:
            raise FlagbenchError(
                f"--name {self.job_name!r} is too long: the last pod would be called {longest}",
                remedy=f"host names have at most {syntax.LABEL_LENGTH} characters; give a shorter name",
            )
        if self.job.image is not None and self.job.registry is not None:
            raise FlagbenchError("--image and --registry contradict each other", remedy="give one of them")
        if is_in_bucket(self.image):
            raise FlagbenchError(
                "--image names an object store, and a cluster pulls from registries alone",
                remedy="serve the bucket at the root of a host, and write --image HOST/NAME@sha256:DIGEST "
                "(docs/object-storage.md)",
            )
        refuse("--image", self.image, syntax.image_fault, "give a tag that does not move, or NAME@sha256:DIGEST")

    def _check_resources(self) -> None:
        if self.job.port < 1024 and not self.root:
            raise FlagbenchError(f"--port {self.job.port} is reserved for uid 0", remedy="give a port from 1024 on")
        shm, memory = syntax.quantity(self.shm), syntax.quantity(self.memory)
        if shm is not None and memory is not None and shm >= memory:
            raise FlagbenchError(
                f"--shm: /dev/shm of {self.shm} leaves nothing of --memory {self.memory}",
                remedy="what is written there counts against --memory: give a smaller --shm or more memory",
            )
