"""What is asked of a cluster: one run of a case on a stack, every value of it checked before it is written down."""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from flagbench._version import __version__
from flagbench.errors import FlagbenchError
from flagbench.jobs import options, syntax
from flagbench.jobs.arguments import YEAR, ImageArguments, check_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flagbench.catalog.model import Case, Stack
    from flagbench.jobs.options import Claim

DEFAULT_DEADLINE = 4 * 3600
DEADLINE_SLACK = 1800
"""Seconds beyond --max-minutes for scheduling, pulling a large image and starting."""
SHORTEST = 60
"""Seconds: a job that the cluster ends, or removes, sooner than that leaves nothing to read."""


def new_run_id() -> str:
    """A name for a run that nobody named."""
    return f"run-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class JobRequest:
    """One job; the fields have the names of the options, and hold what was typed. None is the default.

    Raises FlagbenchError (usage) when it is made, for the first value that Kubernetes, the image or prudence refuses.
    """

    case: Case
    stack: Stack
    run_id: str
    """Made once, here: every node is given the same."""
    nodes: int = 1
    gpus: int = 1
    arguments: ImageArguments = field(default_factory=ImageArguments)
    name: str | None = None
    namespace: str | None = None
    image: str | None = None
    registry: str | None = None
    pull_policy: str | None = None
    pull_secret: tuple[str, ...] = ()
    deadline: int | None = None
    """Seconds."""
    ttl: int | None = None
    """Seconds that the ended job is kept."""
    queue: str | None = None
    data_pvc: str | None = None
    """`NAME[:SUBPATH]`, as the next three."""
    weights_pvc: str | None = None
    out_pvc: str | None = None
    resume_pvc: str | None = None
    rdma_resource: tuple[str, ...] = ()
    """`DOMAIN/NAME=COUNT` each."""
    cpu: str | None = None
    """Quantities for one pod, as the next two."""
    memory: str | None = None
    shm: str | None = None
    group: tuple[int, ...] = ()
    """Further groups of the process, by number: those that a cluster's device files belong to."""
    node_label: tuple[str, ...] = ()
    """`KEY=VALUE[,VALUE]` each, instead of the stack's own."""
    env: tuple[str, ...] = ()
    env_from_secret: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    annotation: tuple[str, ...] = ()
    port: int = 29400
    template: str | None = None
    """The file that the policy was read from, where it is not flagbench's own."""

    def __post_init__(self) -> None:
        check_arguments(self.arguments, self.case, self.stack)
        self._check_numbers()
        self._check_names()
        self._check_image()
        self._check_resources()
        options.check_environment(self.environment, self.stack)
        options.check_labels(self.labels)
        options.check_annotations(self.annotations)
        if self.data is not None and self.arguments.data is not None:
            raise FlagbenchError("--data and --data-pvc contradict each other", remedy="give one of them")
        if self.resume is not None:
            self._check_resume()

    @cached_property
    def job_name(self) -> str:
        """The name of the Job; made of case, stack and run id where none was given."""
        if self.name is not None:
            return self.name
        slug = re.sub(r"[^a-z0-9]+", "-", f"flagbench-{self.case.name}-{self.stack.name}".lower())
        room = syntax.LABEL_LENGTH - len(f"-{self.nodes - 1}") - 9
        return f"{slug[:room].rstrip('-')}-{hashlib.sha256(self.run_id.encode()).hexdigest()[:8]}"

    @cached_property
    def image_reference(self) -> str:
        """The image to run, by digest where one was given, else by a tag that does not move."""
        if self.image is not None:
            return self.image
        prefix = f"{self.registry}/" if self.registry else ""
        return f"{prefix}flagbench/{self.case.name}:{self.stack.name}-{__version__}"

    @cached_property
    def image_digest(self) -> str | None:
        """`sha256:...` of the image, where it is known."""
        parts = syntax.image_parts(self.image_reference)
        return parts[2] if parts else None

    @cached_property
    def deadline_seconds(self) -> int:
        """After how many seconds the cluster ends the job, waiting for nodes included."""
        if self.deadline is not None:
            return self.deadline
        minutes = self.arguments.max_minutes
        return DEFAULT_DEADLINE if minutes is None else math.ceil(minutes * 60) + DEADLINE_SLACK

    @cached_property
    def max_minutes(self) -> float:
        """After how many minutes the run ends itself: before the cluster does, which deletes the logs."""
        if self.arguments.max_minutes is not None:
            return self.arguments.max_minutes
        # Of a short deadline half: whole minutes, where it has any.
        minutes = max(self.deadline_seconds - DEADLINE_SLACK, self.deadline_seconds / 2) / 60
        return math.floor(minutes) if minutes >= 1 else minutes

    @cached_property
    def data(self) -> Claim | None:
        """The volume for /data."""
        return options.claim("--data-pvc", self.data_pvc)

    @cached_property
    def weights(self) -> Claim | None:
        """The volume for /weights."""
        return options.claim("--weights-pvc", self.weights_pvc)

    @cached_property
    def out(self) -> Claim | None:
        """The volume for /out."""
        return options.claim("--out-pvc", self.out_pvc)

    @cached_property
    def resume(self) -> Claim | None:
        """The volume for /resume: the checkpoints of a run, or one of them."""
        return options.claim("--resume-pvc", self.resume_pvc)

    @cached_property
    def rdma(self) -> Mapping[str, int]:
        """Network devices of one pod, by resource."""
        return options.rdma(self.rdma_resource, self.stack)

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """Variables asked for, by name."""
        return options.pairs("--env", self.env)

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """Labels asked for, by key."""
        return options.pairs("--label", self.label)

    @cached_property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of the pods, by key."""
        return options.pairs("--annotation", self.annotation)

    @cached_property
    def node_labels(self) -> Mapping[str, tuple[str, ...]]:
        """Labels that a node must carry, each with the values that will do."""
        return options.node_labels(self.node_label) if self.node_label else self.stack.kubernetes.node_labels

    @cached_property
    def shm_quantity(self) -> str:
        """The size of /dev/shm in one pod."""
        return self.shm or f"{self.stack.kubernetes.shm_per_device_gib * self.gpus}Gi"

    @cached_property
    def memory_quantity(self) -> str:
        """The memory of one pod: what is written to /dev/shm counts against it, so it has room for that too."""
        needs = self.stack.kubernetes
        return self.memory or f"{(needs.memory_per_device_gib + needs.shm_per_device_gib) * self.gpus}Gi"

    @cached_property
    def cpu_quantity(self) -> str:
        """The processors of one pod."""
        return self.cpu or str(self.stack.kubernetes.cpus_per_device * self.gpus)

    @property
    def root(self) -> bool:
        """Whether the process is uid 0: pinning memory for RDMA needs a capability that other uids cannot hold."""
        return bool(self.rdma) or self.stack.docker.root

    def warnings(self) -> list[str]:
        """What may go wrong with a job that is right in itself, each with a way out."""
        found = []
        parts = syntax.image_parts(self.image_reference)
        if parts is not None and not syntax.has_registry(parts[0]):
            found.append(
                f"clusters look for {self.image_reference} at docker.io; name the registry by --registry or --image"
            )
        if self.nodes > 1 and self.out is None:
            found.append(
                "where one node fails, the others are deleted with their logs, node 0's record among them; "
                "--out-pvc CLAIM keeps it"
            )
        return found

    def command(self) -> list[str]:
        """The words of the command that makes this job again, byte for byte."""
        words = ["flagbench", "job", f"{self.case.name}:{self.stack.name}", "--for", "kubernetes"]
        return words + options.words(self, skip=("case", "stack", "arguments")) + options.words(self.arguments)

    def _check_numbers(self) -> None:
        ranges = {
            "--nodes": (self.nodes, 1, syntax.MOST_NODES),
            "--gpus": (self.gpus, 1, 1024),
            "--port": (self.port, 1, syntax.MOST_PORT),
            "--deadline": (self.deadline, SHORTEST, YEAR),
            "--ttl": (self.ttl, SHORTEST, 2**31 - 1),
        }
        for option, (value, least, most) in ranges.items():
            if value is not None and not least <= value <= most:
                raise FlagbenchError(
                    f"{option} {value} is out of range", remedy=f"give a number from {least} to {most}"
                )
        if self.port < 1024 and not self.root:
            raise FlagbenchError(f"--port {self.port} is kept for uid 0", remedy="give a port from 1024 on")
        minutes = self.arguments.max_minutes
        if minutes is not None and self.deadline_seconds <= minutes * 60:
            raise FlagbenchError(
                f"the cluster would end the job after {self.deadline_seconds} s, before --max-minutes {minutes:g}",
                remedy="give a longer --deadline, or leave it out",
            )

    def _check_resume(self) -> None:
        if not self.case.raw["resume"]:
            raise FlagbenchError(
                f"{self.case.name} writes no checkpoints to resume from", remedy="leave out --resume-pvc"
            )
        if "engine=deepspeed" in self.arguments.set_:
            raise FlagbenchError("the deepspeed engine cannot resume from a checkpoint", remedy="use engine=torch")

    def _check_names(self) -> None:
        options.refuse("--run-id", self.run_id, syntax.run_id_fault)
        options.refuse("--name", self.job_name, syntax.label_fault, "give a short name, like distilbert-2x8")
        if len(longest := f"{self.job_name}-{self.nodes - 1}") > syntax.LABEL_LENGTH:
            raise FlagbenchError(
                f"--name {self.job_name!r} is too long: the last pod would be called {longest}",
                remedy=f"host names have at most {syntax.LABEL_LENGTH} characters; give a shorter name",
            )
        if self.namespace is not None:
            options.refuse("--namespace", self.namespace, syntax.label_fault)
        if self.queue is not None:
            options.refuse("--queue", self.queue, syntax.label_fault, "give the name of a LocalQueue")
        for secret in self.env_from_secret:
            options.refuse("--env-from-secret", secret, syntax.subdomain_fault, "give the name of a Secret")
        for secret in self.pull_secret:
            options.refuse("--pull-secret", secret, syntax.subdomain_fault, "give the name of a Secret")

    def _check_image(self) -> None:
        if self.image is not None and self.registry is not None:
            raise FlagbenchError("--image and --registry contradict each other", remedy="give one of them")
        if self.registry is not None:
            options.refuse("--registry", self.registry, syntax.registry_fault)
        remedy = "give a tag that does not move, or NAME@sha256:DIGEST"
        options.refuse("--image", self.image_reference, syntax.image_fault, remedy)
        policies = ("Always", "IfNotPresent", "Never")
        if self.pull_policy is not None and self.pull_policy not in policies:
            raise FlagbenchError(
                f"--pull-policy {self.pull_policy!r} is not valid",
                remedy=f"use {', '.join(policies[:-1])} or {policies[-1]}",
            )

    def _check_resources(self) -> None:
        for option, value in {"--cpu": self.cpu, "--memory": self.memory, "--shm": self.shm}.items():
            if value is not None and not syntax.quantity(value):
                raise FlagbenchError(f"{option} {value!r} is no quantity above 0", remedy="write 8, 500m or 96Gi")
        shm, memory = syntax.quantity(self.shm_quantity), syntax.quantity(self.memory_quantity)
        if shm is not None and memory is not None and shm >= memory:
            raise FlagbenchError(
                f"/dev/shm of {self.shm_quantity} does not leave anything of {self.memory_quantity} of memory",
                remedy="what is written there counts against --memory: give a smaller --shm or more memory",
            )
        for number in self.group:
            if not 0 <= number < 2**31:
                raise FlagbenchError(f"--group {number} is no group", remedy="give a group's number")
        # Parsed for their errors.
        _ = self.rdma, self.node_labels, self.data, self.weights, self.out, self.resume
