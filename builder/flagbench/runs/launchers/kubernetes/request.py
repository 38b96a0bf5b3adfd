"""A job: one run of a case on a stack, with what a cluster could not find wrong with it checked beforehand."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from flagbench.errors import FlagbenchError
from flagbench.image_reference import find_reference, image_of
from flagbench.images.bucket import is_in_bucket
from flagbench.manifests.model import Case, Stack
from flagbench.options import check_ranges, text_fault, words
from flagbench.runs.launchers.kubernetes.options import (
    JobOptions,
    Volume,
    check_sources,
    check_store,
    reads_bucket,
    volumes_of,
)
from flagbench.runs.request import RunOptions, can_resume, check_options, new_run_id
from flagbench_core import __version__
from flagbench_core.redaction import is_secret

DEFAULT_MINUTES = 210
_LONGEST_NAME = 63
"""Characters of a host name, which a pod's is: the job's with the number of the node."""
_RESERVED_VARIABLES = frozenset(
    {
        *("FLAGBENCH_MASTER", "FLAGBENCH_NODE_RANK", "JOB_COMPLETION_INDEX"),
        *("FLAGBENCH_TERMINATION_LOG", "FLAGBENCH_TICKET"),
        *("FLAGBENCH_IMAGE_DIGEST", "FLAGBENCH_IMAGE_ID", "FLAGBENCH_STACK"),
        *("FLAGBENCH_COMMIT", "FLAGBENCH_CONTEXT_DIGEST", "FLAGBENCH_LOCK_DIGEST"),
    }
)
_NAMES = ("--name=", "--namespace=", "--queue=", "--pull-secret=", "--store-secret=", "--ticket-secret=")
"""Options with the name of something, which may well look like a key: sk-learn-2x8-nightly."""


@dataclass(frozen=True)
class JobRequest:
    """One job.

    Raises FlagbenchError (usage) when it is made, for the first value that the image would refuse once it has its
    nodes, or that would give away a secret. Names and quantities are for the cluster to check.
    """

    case: Case
    stack: Stack
    run: RunOptions = field(default_factory=RunOptions)
    job: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        check_options(self.run, self.case, self.stack)
        check_ranges(self.job)
        check_store(self.run, self.job)
        # Parsed for their errors.
        _ = self.rdma, self.environment, self.node_labels
        for word in self.command():
            option = word.partition("=")[0]
            if fault := text_fault(word):
                raise FlagbenchError(f"the value of {option} {fault}", remedy="leave it out")
            if not word.startswith(_NAMES):
                _refuse_secret(option, "", word)
        check_sources(self.run, self.job)
        self._check_image()
        if self.job.resume_pvc is not None and not can_resume(self.run, self.case):
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
        """The name of the job; made of case, stack and run id where none was given."""
        if self.job.name is not None:
            return self.job.name
        slug = re.sub(r"[^a-z0-9]+", "-", f"flagbench-{self.case.name}-{self.stack.name}".lower())
        room = _LONGEST_NAME - len(f"-{self.run.nodes - 1}") - 9
        return f"{slug[:room].rstrip('-')}-{hashlib.sha256(self.run_id.encode()).hexdigest()[:8]}"

    @property
    def image(self) -> str:
        """The image to run, by digest where one was given, else by a tag that does not move."""
        if self.job.image is not None:
            return self.job.image
        prefix = f"{self.job.registry}/" if self.job.registry else ""
        return prefix + image_of(self.case.name, self.stack.name, __version__)

    @property
    def image_digest(self) -> str | None:
        """The digest that the image was given by."""
        reference = find_reference(self.image)
        return reference.digest if reference else None

    @property
    def max_minutes(self) -> float:
        """After how many minutes the run ends itself."""
        return DEFAULT_MINUTES if self.run.max_minutes is None else self.run.max_minutes

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """The volumes that the run reads and writes."""
        return volumes_of(self.job)

    @cached_property
    def rdma(self) -> Mapping[str, str]:
        """Network devices of one pod, by resource."""
        found = _pairs("--rdma-resource", self.job.rdma_resource)
        if self.stack.kubernetes.resource in found:
            raise FlagbenchError(
                f"--rdma-resource {self.stack.kubernetes.resource} is the accelerator's own", remedy="see --gpus"
            )
        return found

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """Variables asked for, by name; none that the job sets itself, and no secret, which would be written down."""
        found = _pairs("--env", self.job.env)
        for name, value in found.items():
            if name in _RESERVED_VARIABLES or name == self.stack.device.visibility_variable:
                raise FlagbenchError(f"--env {name} is set by the job or the image", remedy="leave it out")
            _refuse_secret(f"--env {name}", name, value)
        return found

    @cached_property
    def node_labels(self) -> Mapping[str, tuple[str, ...]]:
        """Labels that a node must have, each with the values allowed."""
        given = _pairs("--node-label", self.job.node_label)
        return {key: tuple(text.split(",")) for key, text in given.items()} or self.stack.kubernetes.node_labels

    def arguments(self) -> list[str]:
        """What the image is told; which node it is, the cluster says."""
        # /data is named though it is the default: the tiny preset would take the set that it carries.
        told = replace(self.run, run_id=self.run_id, max_minutes=self.max_minutes).words()
        told += [f"--{volume.name}=/{volume.name}" for volume in self.volumes]
        return told if self.job.store is None else [*told, f"--store={self.job.store}"]

    def command(self) -> list[str]:
        """The words of the command that makes this job again, byte for byte."""
        name = f"{self.case.name}:{self.stack.name}"
        run = replace(self.run, run_id=self.run_id)
        return ["flagbench", "job", name, "--for", "kubernetes", *run.words(), *words(self.job)]

    def warnings(self) -> list[str]:
        """What may go wrong with a valid job, each with a way out."""
        found = []
        reference = find_reference(self.image)
        if reference is not None and not reference.host:
            found.append(f"clusters look for {self.image} at docker.io; name the registry by --registry or --image")
        if (self.job.store is not None or reads_bucket(self.run)) and self.job.store_secret is None:
            found.append("the job gives its pods no credentials for the bucket; --store-secret does")
        stored = {self.job.store, self.job.ticket_secret, self.job.out_pvc} != {None}
        if self.run.nodes > 1 and not stored:
            found.append(
                "where one node fails, the others are deleted with their logs, node 0's record among them; "
                "--out-pvc CLAIM keeps it, and so does --store"
            )
        return found

    def _check_image(self) -> None:
        if self.job.image is not None and self.job.registry is not None:
            raise FlagbenchError("--image and --registry contradict each other", remedy="give one of them")
        if is_in_bucket(self.image):
            raise FlagbenchError(
                "--image names an object store, and a cluster pulls from registries alone",
                remedy="serve the bucket at the root of a host, and write --image HOST/NAME@sha256:DIGEST "
                "(docs/object-storage.md)",
            )
        if fault := image_fault(self.image):
            option = "--image" if self.job.registry is None else "--registry makes the image"
            raise FlagbenchError(
                f"{option} {self.image!r}, which {fault}",
                remedy="write [HOST[:PORT]/]NAME:TAG with a tag that does not move, or NAME@sha256:DIGEST",
            )


def image_fault(image: str) -> str | None:
    """Why `image` does not say which image is run: malformed, or without both tag and digest, or `latest`."""
    reference = find_reference(image)
    if reference is None:
        return "is not the name of an image"
    if reference.digest is None and reference.tag in (None, "latest"):
        return "names another image tomorrow"
    return None


def _pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """`KEY=VALUE` texts by key. Raises FlagbenchError (usage) for a text without '=', and for a key given twice."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        # A text without a '=' is not repeated: it may be a misplaced secret.
        if not equals:
            raise FlagbenchError(f"a value of {option} has no '='", remedy=f"write {option} KEY=VALUE")
        if key in found:
            raise FlagbenchError(f"{option} {key!r} is given twice", remedy="give it once")
        found[key] = value
    return found


def _refuse_secret(option: str, name: str, value: str) -> None:
    """Raise FlagbenchError (usage) where what would be written into the job is a secret, without repeating it."""
    if is_secret(name, value):
        raise FlagbenchError(
            f"{option} looks like a secret, which everyone who may read the job could read",
            remedy="keep it in a Secret, and name that under envFrom in a patch (docs/kubernetes.md)",
        )
