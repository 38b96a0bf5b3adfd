"""Submits a run as a Kubernetes job.

`JobRequest` checks the options before a cluster sees them, `render_job` writes the YAML from the template
manifests/kubernetes/job.yaml.j2, and `submit` applies it with kubectl. `flagbench job --for kubernetes` uses this
module through `launchers.schedulers`.
"""

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
from flagbench.image_reference import image_of, try_parse_reference
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
"""How --help writes the value of an option that names a volume."""
DEFAULT_MINUTES = 210
"""The default of --max-minutes. With `_DEADLINE_SLACK`, the cluster removes a job after four hours."""
_LONGEST_NAME = 63
"""Most characters of a host name. That of a pod is the job's name with the number of the node."""
_HASH_DIGITS = 8
"""Digits in a generated name that are computed from the run id, so that runs have different names."""
_DEADLINE_SLACK = 1800
"""Seconds beyond --max-minutes for waiting for nodes, pulling a large image and starting."""
_HOST_NAME_LABEL = "kubernetes.io/hostname"
"""The label that has another value on every node."""
_KUBECTL_SECONDS = 30
"""Longest time for kubectl to apply a job: a server that has not answered by then is not reachable."""


@dataclass(frozen=True)
class JobOptions:
    """The options of `flagbench job --for kubernetes`, as the user typed them. None: the option was not given."""

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
    """Whether the claim is attached read-only, as every claim is but that of --out-pvc."""


def volumes_of(job: JobOptions) -> tuple[Volume, ...]:
    """The volumes of `--NAME-pvc CLAIM[:SUBPATH]`."""
    out_claim = (job.out_pvc or "").partition(":")[0]
    volumes = []
    for name in ("data", "weights", "resume", "out"):
        text = getattr(job, f"{name}_pvc")
        if text is not None:
            claim, _, subpath = text.partition(":")
            volumes.append(Volume(name, claim, subpath or None, read_only=claim != out_claim))
    return tuple(volumes)


def check_data(run: RunOptions, job: JobOptions) -> None:
    """Raise FlagbenchError (USAGE) for data of this machine or in a bucket: a pod reads data from a volume."""
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
    """Raise FlagbenchError (USAGE) for a store that is not a bucket, and for --store-secret without --store."""
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


_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
"""A label of RFC 1123, as Kubernetes requires of names (its documentation: Object Names and IDs)."""
_NAMES = ("--name=", "--namespace=", "--queue=", "--pull-secret=", "--store-secret=")
"""Options whose value is a name. A name may look like a secret and is not checked for one: sk-learn-2x8-nightly."""


@dataclass(frozen=True)
class JobRequest:
    """One job, whose options are checked when it is made.

    Raises FlagbenchError (USAGE) for the first value that the image would refuse once the job has its nodes, that
    would give away a secret, or that cannot name a job. Quantities and other names are checked by the cluster.
    """

    case: Case
    stack: Stack
    run: RunOptions = field(default_factory=RunOptions)
    job: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        check_options(self.run)
        check_ranges(self.job)
        check_store(self.job)
        # These properties parse options when they are read first, and raise for those that are not valid.
        _ = self.config
        _ = self.rdma
        _ = self.environment
        _ = self.node_labels
        self._check_words()
        self._check_name()
        check_data(self.run, self.job)
        self._check_image()

    @cached_property
    def run_id(self) -> str:
        """The id of the run. It is chosen here, because all nodes must have the same one."""
        return self.run.run_id or new_run_id()

    @cached_property
    def job_name(self) -> str:
        """The name of the job; by default of case and stack, with digits computed from the run id."""
        if self.job.name is not None:
            return self.job.name
        slug = re.sub(r"[^a-z0-9]+", "-", f"flagbench-{self.case.name}-{self.stack.name}".lower())
        suffix = "-" + hashlib.sha256(self.run_id.encode()).hexdigest()[:_HASH_DIGITS]
        longest_slug = _LONGEST_NAME - len(suffix) - len(self._last_node_suffix)
        return slug[:longest_slug].rstrip("-") + suffix

    @property
    def _last_node_suffix(self) -> str:
        """The suffix by which the last node's pod is named after the job, for example `-1` with two nodes."""
        return f"-{self.run.nodes - 1}"

    @property
    def image(self) -> str:
        """The name of the image to run: that of --image, else the one that this version of flagbench builds."""
        if self.job.image is not None:
            return self.job.image
        image = image_of(self.case.name, self.stack.name, __version__)
        if self.job.registry:
            return f"{self.job.registry}/{image}"
        return image

    @property
    def image_digest(self) -> str | None:
        """The digest in the name of the image; None if it has none."""
        reference = try_parse_reference(self.image)
        if reference is None:
            return None
        return reference.digest

    @property
    def max_minutes(self) -> float:
        """Minutes after which the run ends itself."""
        if self.run.max_minutes is None:
            return DEFAULT_MINUTES
        return self.run.max_minutes

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """The volumes that the run reads and writes."""
        return volumes_of(self.job)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration, as far as it is known without looking at the volumes."""
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
        """The number of network devices of one pod as text, by the cluster's name of the resource."""
        resources = _parse_pairs("--rdma-resource", self.job.rdma_resource)
        if self.stack.kubernetes.resource in resources:
            raise FlagbenchError(
                f"--rdma-resource {self.stack.kubernetes.resource} is the accelerator's own", remedy="see --gpus"
            )
        return resources

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The variables of `--env`, by name. One that the job sets itself, or that has a secret, is refused."""
        return read_env(self.job.env, {self.stack.device.visibility_variable})

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
        chosen = _parse_pairs("--node-label", self.job.node_label)
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

    def arguments(self) -> list[str]:
        """The arguments of the image, except the number of the node, which the cluster sets."""
        # /data is the default, but must be named: the tiny preset would use the data that it carries.
        arguments = replace(self.run, run_id=self.run_id, max_minutes=self.max_minutes).image_arguments()
        arguments += [f"--{volume.name}=/{volume.name}" for volume in self.volumes]
        if self.job.store is not None:
            arguments.append(f"--store={self.job.store}")
        return arguments

    def command(self) -> list[str]:
        """The words of the command that prints the same YAML again."""
        name = f"{self.case.name}:{self.stack.selector}"
        run = replace(self.run, run_id=self.run_id)
        env = tuple(f"{key}={value}" for key, value in self.environment.items() if key != GIVEN)
        job = replace(self.job, env=env)
        return ["flagbench", "job", name, "--for", "kubernetes", *run.command_line(), *words(job)]

    def warnings(self) -> list[str]:
        """Problems that a valid job may have, each with its remedy."""
        warnings = []
        reference = try_parse_reference(self.image)
        if reference is not None and not reference.host:
            warnings.append(
                f"clusters pull {self.image} from docker.io; name your registry with --registry or --image"
            )
        memory_warning = self._memory_warning()
        if memory_warning is not None:
            warnings.append(memory_warning)
        if self.job.store is not None and self.job.store_secret is None:
            warnings.append("the job gives its pods no credentials for the bucket; --store-secret does")
        is_kept = self.job.store is not None or self.job.out_pvc is not None
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
        if self.job.node_label or self.devices_with_memory:
            return None
        largest_gib = max(device.memory_gib for device in self.stack.accelerators)
        return lacking(self.case, self.memory, largest_gib, self.run.ranks)

    def _check_words(self) -> None:
        """Refuse a value that cannot be in YAML, and one that looks like a secret: the YAML shows the command."""
        for word in self.command():
            option = word.partition("=")[0]
            if fault := text_fault(word):
                raise FlagbenchError(f"the value of {option} {fault}", remedy="leave it out")
            if not word.startswith(_NAMES):
                refuse_secret(option, "", word)

    def _check_name(self) -> None:
        """Refuse a name with which the host name of the last node's pod is not a label of RFC 1123."""
        longest = _LONGEST_NAME - len(self._last_node_suffix)
        if len(self.job_name) <= longest and _LABEL.fullmatch(self.job_name):
            return
        raise FlagbenchError(
            f"--name {self.job_name!r} cannot name a Kubernetes job",
            remedy=f"use at most {longest} of a to z, 0 to 9 and '-', a letter or digit first and last",
        )

    def _check_image(self) -> None:
        """Refuse two names of the image, one in a bucket, and one that may mean another image tomorrow."""
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
    """The reason why a name does not identify one image, as the end of a sentence; None if it does.

    It is malformed, has neither tag nor digest, or has the tag `latest`.
    """
    reference = try_parse_reference(image)
    if reference is None:
        return "is not the name of an image"
    if reference.digest is None and reference.tag in (None, "latest"):
        return "names another image tomorrow"
    return None


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


def render_job(request: JobRequest) -> str:
    """The YAML of the Service and the Job, in the order in which they must be created.

    A comment at its start has the command that prints it again.
    """
    needs = request.stack.kubernetes
    gpus = request.run.gpus
    values = {
        "request": request,
        "deadline": math.ceil(request.max_minutes * 60) + _DEADLINE_SLACK,
        "shm": f"{needs.shm_per_device_gib * gpus}Gi",
        "resources": _pod_resources(request),
        "alike": _shared_labels(request),
        # Pinning memory for RDMA needs a capability that other uids cannot hold.
        "root": bool(request.rdma) or request.stack.docker.root,
    }
    command = _escape_non_ascii(shlex.join(request.command()))
    header = f"# Made by flagbench {__version__}:\n#   {command}\n"
    return header + _job_template().render(values)


def _pod_resources(request: JobRequest) -> dict[str, str]:
    """The resources of one pod as Kubernetes writes them: processors, memory, accelerators and network devices."""
    needs = request.stack.kubernetes
    gpus = request.run.gpus
    # What is written to /dev/shm counts as memory of the pod.
    memory_gib = (needs.memory_per_device_gib + needs.shm_per_device_gib) * gpus
    resources = {"cpu": str(needs.cpus_per_device * gpus), "memory": f"{memory_gib}Gi"}
    if needs.resource is not None:
        resources[needs.resource] = str(gpus)
    return {**resources, **request.rdma}


def _shared_labels(request: JobRequest) -> list[str]:
    """The labels that must have one value on all nodes of a job, so that its devices are of one kind."""
    if request.run.nodes == 1:
        return []
    labels = []
    for key, values in request.node_labels.items():
        if len(values) > 1 and key != _HOST_NAME_LABEL:
            labels.append(key)
    return labels


@cache
def _job_template() -> Template:
    """The template of the job."""
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
    return _escape_non_ascii(json.dumps(value, ensure_ascii=False))


def _escape_non_ascii(text: str) -> str:
    """The text in printable ASCII; other characters, line breaks included, are escaped as in double-quoted YAML."""
    return re.sub(r"[^ -~]", lambda match: f"\\U{ord(match[0]):08x}", text)


def health() -> Diagnosis:
    """Whether jobs can be submitted from here; kubectl is not started, and no server contacted."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        remedy = "needed to submit jobs, not to print them"
        return Diagnosis("kubernetes", Level.WARN, "kubectl is not installed", remedy)
    return Diagnosis("kubernetes", Level.OK, f"{kubectl} (no server contacted)")


def submit(job: str) -> str:
    """Apply the YAML of a job and return what kubectl printed.

    Raises FlagbenchError: usage if kubectl is not installed, engine if it fails or does not answer in time.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise FlagbenchError(
            "--submit needs kubectl, which is not installed", remedy="install it, or apply the printed job elsewhere"
        )
    try:
        process = subprocess.run(
            [kubectl, "apply", "--validate=strict", "--filename=-"],
            input=job,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_KUBECTL_SECONDS,
            check=False,
        )
        if process.returncode == 0:
            return process.stdout.strip()
        reason = " ".join(process.stderr.split())
    except subprocess.TimeoutExpired:
        reason = f"no answer in {_KUBECTL_SECONDS} s"
    except OSError as error:
        reason = str(error.strerror)
    raise FlagbenchError(
        f"kubectl could not apply the job: {reason}",
        remedy="`kubectl config current-context` names the cluster that was asked",
        code=ExitCode.ENGINE,
    )
