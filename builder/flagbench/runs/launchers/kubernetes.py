"""A run as a job of Kubernetes: its options, the request, checked before a cluster sees it, its YAML, and kubectl."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.expect.memory import lacking, measured_memory
from flagbench.image_reference import find_reference, image_of
from flagbench.images.bucket import is_in_bucket
from flagbench.machine.diagnosis import Diagnosis, Level
from flagbench.manifests.device import DeviceModel
from flagbench.manifests.model import Case, MeasuredMemory
from flagbench.manifests.settings import config_errors
from flagbench.manifests.stack import Stack
from flagbench.options import Text, Texts, check_ranges, text_fault, words
from flagbench.runs.request import (
    ENV,
    RunOptions,
    check_options,
    config_options,
    new_run_id,
    read_env,
    refuse_secret,
)
from flagbench.schema import shipped_manifests
from flagbench_core import __version__
from flagbench_core.config import resolve
from flagbench_core.data_folders import SYNTHETIC
from flagbench_core.environment import GIVEN
from flagbench_core.exit_codes import ExitCode
from flagbench_core.redaction import redact
from flagbench_core.s3 import S3Error, parse_address

_VOLUME = "NAME[:SUBPATH]"


@dataclass(frozen=True)
class JobOptions:
    """Options of a job, as typed. None is the default."""

    GROUP: ClassVar[str] = "Cluster"

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
    env: Annotated[Texts, ENV] = ()
    queue: Annotated[Text, Option(metavar="NAME", help="LocalQueue of Kueue that the job waits in.")] = None
    port: Annotated[int, Option(min=1024, max=65535, help="Where node 0 listens.")] = 29400


@dataclass(frozen=True)
class Volume:
    """A PersistentVolumeClaim, mounted at `/NAME`."""

    name: str
    """data, weights, resume or out: the name of the image's option for the folder."""
    claim: str
    subpath: str | None
    """The folder in the volume; None: the whole volume."""
    read_only: bool
    """Whether the claim can be attached read-only: it is not also the claim of --out-pvc."""


def volumes_of(job: JobOptions) -> tuple[Volume, ...]:
    """The volumes of `--NAME-pvc CLAIM[:SUBPATH]`."""
    written = (job.out_pvc or "").partition(":")[0]
    volumes = []
    for name in ("data", "weights", "resume", "out"):
        text = getattr(job, f"{name}_pvc")
        if text is not None:
            claim, _, subpath = text.partition(":")
            volumes.append(Volume(name, claim, subpath or None, claim != written))
    return tuple(volumes)


def check_data(run: RunOptions, job: JobOptions) -> None:
    """Raise FlagbenchError (usage) for data of this machine or in a bucket: a pod reads data from a volume."""
    if run.data is None:
        return
    if job.data_pvc is not None:
        raise FlagbenchError("--data and --data-pvc contradict each other", remedy="give one of them")
    if run.data != SYNTHETIC:
        raise FlagbenchError(
            f"--data {run.data!r} is not on the cluster",
            remedy="give --data-pvc CLAIM, or have an init container copy it from a bucket (docs/kubernetes.md)",
        )


def check_store(job: JobOptions) -> None:
    """Raise FlagbenchError (usage) for a store that is not a bucket, and for --store-secret without --store."""
    if job.store is None:
        if job.store_secret is not None:
            raise FlagbenchError(
                "--store-secret needs a bucket", remedy="say which one it is for: --store s3://BUCKET/PREFIX"
            )
        return
    if not job.store.lower().startswith("s3:"):
        raise FlagbenchError(
            f"--store {redact(job.store)!r} is not a bucket, and a pod's folders end with it",
            remedy="write --store s3://BUCKET/PREFIX, or keep the record with --out-pvc CLAIM",
        )
    try:
        parse_address(job.store)
    except S3Error as error:
        raise FlagbenchError(f"--store: {error.message}", remedy=error.remedy) from None


DEFAULT_MINUTES = 210
_LONGEST_NAME = 63
"""Characters of a host name, which a pod's is: the job's with the number of the node."""
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
"""A label of RFC 1123, as Kubernetes has it (Object Names and IDs)."""
_NAMES = ("--name=", "--namespace=", "--queue=", "--pull-secret=", "--store-secret=")
"""Options with the name of something, which may well look like a key: sk-learn-2x8-nightly."""


@dataclass(frozen=True)
class JobRequest:
    """One job.

    Raises FlagbenchError (usage) when it is made, for the first value that the image would refuse once it has its
    nodes, that would give away a secret, or that cannot name a job. Quantities and other names are for the cluster to
    check.
    """

    case: Case
    stack: Stack
    run: RunOptions = field(default_factory=RunOptions)
    job: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        check_options(self.run)
        check_ranges(self.job)
        check_store(self.job)
        # Parsed for their errors.
        _ = self.config, self.rdma, self.environment, self.node_labels
        for word in self.command():
            option = word.partition("=")[0]
            if fault := text_fault(word):
                raise FlagbenchError(f"the value of {option} {fault}", remedy="leave it out")
            if not word.startswith(_NAMES):
                refuse_secret(option, "", word)
        self._check_name()
        check_data(self.run, self.job)
        self._check_image()

    @cached_property
    def run_id(self) -> str:
        """The same on every node, so it is made once, here."""
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
        image = image_of(self.case.name, self.stack.name, __version__)
        if self.job.registry:
            return f"{self.job.registry}/{image}"
        return image

    @property
    def image_digest(self) -> str | None:
        """The digest in the name of the image, if it has one."""
        reference = find_reference(self.image)
        return reference.digest if reference else None

    @property
    def max_minutes(self) -> float:
        """Minutes after which the run ends itself."""
        return DEFAULT_MINUTES if self.run.max_minutes is None else self.run.max_minutes

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """The volumes that the run reads and writes."""
        return volumes_of(self.job)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration; what is on the volumes is not known."""
        source = self.run.data
        if self.job.data_pvc is not None:
            source = "files"
        core_options = config_options(
            self.run,
            source=source,
            weights=self.job.weights_pvc is not None,
            resume=self.job.resume_pvc is not None,
            out=self.job.out_pvc is not None,
        )
        with config_errors():
            return resolve(self.case.raw, self.stack.raw, core_options)

    @cached_property
    def rdma(self) -> Mapping[str, str]:
        """Network devices of one pod, by resource."""
        resources = _pairs("--rdma-resource", self.job.rdma_resource)
        if self.stack.kubernetes.resource in resources:
            raise FlagbenchError(
                f"--rdma-resource {self.stack.kubernetes.resource} is the accelerator's own", remedy="see --gpus"
            )
        return resources

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The variables of `--env`, by name: none that the job sets itself, and no secret, which it would show."""
        return read_env(self.job.env, {self.stack.device.visibility_variable})

    @cached_property
    def memory(self) -> MeasuredMemory | None:
        """The memory that such a run was measured to use on each device."""
        return measured_memory(self.case, self.config, self.config["precision"], self.run.ranks)

    @property
    def devices_with_memory(self) -> tuple[DeviceModel, ...]:
        """The stack's devices that have as much memory as was measured."""
        least = 0 if self.memory is None else self.memory.gib
        return tuple(device for device in self.stack.accelerators if device.memory_gib >= least)

    @cached_property
    def node_labels(self) -> Mapping[str, tuple[str, ...]]:
        """Labels that a node must have, each with the values allowed."""
        labels = _pairs("--node-label", self.job.node_label)
        if labels:
            return {key: tuple(text.split(",")) for key, text in labels.items()}
        # As NVIDIA's GPU feature discovery writes the driver's name of a device.
        devices = self.devices_with_memory or self.stack.accelerators
        products = tuple(device.name.replace(" ", "-") for device in devices)
        labels_of_stack = self.stack.kubernetes.node_labels
        return {key: values or products for key, values in labels_of_stack.items() if values or products}

    def arguments(self) -> list[str]:
        """The arguments of the image, but for the number of the node, which the cluster sets."""
        # /data is named though it is the default: the tiny preset would take the set that it carries.
        arguments = replace(self.run, run_id=self.run_id, max_minutes=self.max_minutes).image_arguments()
        arguments += [f"--{volume.name}=/{volume.name}" for volume in self.volumes]
        if self.job.store is not None:
            arguments.append(f"--store={self.job.store}")
        return arguments

    def command(self) -> list[str]:
        """The words of the command that makes this job again, byte for byte."""
        name = f"{self.case.name}:{self.stack.selector}"
        run = replace(self.run, run_id=self.run_id)
        env = tuple(f"{key}={value}" for key, value in self.environment.items() if key != GIVEN)
        job = replace(self.job, env=env)
        return ["flagbench", "job", name, "--for", "kubernetes", *run.command_line(), *words(job)]

    def warnings(self) -> list[str]:
        """Problems that a valid job may have, each with its remedy."""
        warnings = []
        reference = find_reference(self.image)
        if reference is not None and not reference.host:
            warnings.append(
                f"clusters pull {self.image} from docker.io; name your registry with --registry or --image"
            )
        devices = () if self.job.node_label else self.stack.accelerators
        if self.memory is not None and devices and not self.devices_with_memory:
            most = max(device.memory_gib for device in devices)
            warnings.append(lacking(self.case, self.memory, most, self.run.ranks))
        if self.job.store is not None and self.job.store_secret is None:
            warnings.append("the job gives its pods no credentials for the bucket; --store-secret does")
        stored = self.job.store is not None or self.job.out_pvc is not None
        if self.run.nodes > 1 and not stored:
            warnings.append(
                "if a node fails, the other pods and their logs are deleted, so the record may be lost; "
                "keep it with --out-pvc CLAIM or --store"
            )
        return warnings

    def _check_name(self) -> None:
        """The host name of the last pod, which has the number of its node, must be a label of RFC 1123."""
        number = f"-{self.run.nodes - 1}"
        if len(self.job_name + number) <= _LONGEST_NAME and _LABEL.fullmatch(self.job_name):
            return
        most = _LONGEST_NAME - len(number)
        raise FlagbenchError(
            f"--name {self.job_name!r} cannot name a Kubernetes job",
            remedy=f"use at most {most} of a to z, 0 to 9 and '-', a letter or digit first and last",
        )

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


_DEADLINE_SLACK = 1800
"""Seconds beyond --max-minutes for waiting for nodes, pulling a large image and starting."""
_ONE_NODE_LABEL = "kubernetes.io/hostname"


def render_job(request: JobRequest) -> str:
    """The Service and the Job, in the order in which they are to be made, below the command that makes them again."""
    needs, gpus = request.stack.kubernetes, request.run.gpus
    # What is written to /dev/shm counts against the memory of the pod.
    memory = (needs.memory_per_device_gib + needs.shm_per_device_gib) * gpus
    resources = {"cpu": str(needs.cpus_per_device * gpus), "memory": f"{memory}Gi"}
    if needs.resource is not None:
        resources[needs.resource] = str(gpus)
    alike = [key for key, values in request.node_labels.items() if len(values) > 1 and key != _ONE_NODE_LABEL]
    values = {
        "request": request,
        "deadline": math.ceil(request.max_minutes * 60) + _DEADLINE_SLACK,
        "shm": f"{needs.shm_per_device_gib * gpus}Gi",
        "resources": {**resources, **request.rdma},
        "alike": alike if request.run.nodes > 1 else [],
        # Pinning memory for RDMA needs a capability that other uids cannot hold.
        "root": bool(request.rdma) or request.stack.docker.root,
    }
    header = f"# Made by flagbench {__version__}:\n#   {_ascii(shlex.join(request.command()))}\n"
    return header + _template().render(values)


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(shipped_manifests() / "kubernetes"),
        # Applied to the value of every {{ }}, so that none can be forgotten.
        finalize=quote,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template("job.yaml.j2")


def quote(value: Any) -> str:
    """A value as YAML that every parser reads back as the same: ASCII JSON, in which strings are always quoted."""
    return _ascii(json.dumps(value, ensure_ascii=False))


def _ascii(text: str) -> str:
    """Anything but printable ASCII, line breaks of any kind included, as YAML escapes it between double quotes."""
    return re.sub(r"[^ -~]", lambda match: f"\\U{ord(match[0]):08x}", text)


_KUBECTL_SECONDS = 30


def health() -> Diagnosis:
    """Whether jobs can be submitted from here; kubectl is not started, and no server contacted."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        remedy = "needed to submit jobs, not to print them"
        return Diagnosis("kubernetes", Level.WARN, "kubectl is not installed", remedy)
    return Diagnosis("kubernetes", Level.OK, f"{kubectl} (no server contacted)")


def submit(job: str) -> str:
    """Apply the YAML of a job; returns what kubectl said. Raises FlagbenchError (engine) where it cannot."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise FlagbenchError(
            "--submit needs kubectl, which is not installed", remedy="install it, or apply the printed job elsewhere"
        )
    try:
        done = subprocess.run(
            [kubectl, "apply", "--validate=strict", "--filename=-"],
            input=job,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_KUBECTL_SECONDS,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.strip()
        reason = " ".join(done.stderr.split())
    except subprocess.TimeoutExpired:
        reason = f"no answer in {_KUBECTL_SECONDS} s"
    except OSError as error:
        reason = str(error.strerror)
    raise FlagbenchError(
        f"kubectl could not apply the job: {reason}",
        remedy="`kubectl config current-context` names the cluster that was asked",
        code=ExitCode.ENGINE,
    )
