"""The types of stack manifests (manifests/stacks/*.yaml): how the images of a stack are built, and what runs need.

A stack is one vendor's software for a family of devices, such as a100-cuda11.8. The JSON Schema of a stack is
generated from this file: types become its rules, and the docstrings of classes and fields its descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from flagbench.manifests.device import DeviceModel
from flagbench.manifests.fields import (
    Architecture,
    Capability,
    DevicePath,
    Environment,
    HttpsUrl,
    Manifest,
    Monitor,
    Name,
    PackageName,
    PackageVersion,
    PlainRequirement,
    PositiveCount,
    PythonVersion,
    Reason,
    Requirement,
    ResourceName,
    Word,
    keys,
)

_LabelValue = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")]
"""A value of a label in Kubernetes."""
_LabelValues = Annotated[tuple[_LabelValue, ...], Meta(min_length=1)]


@dataclass(frozen=True)
class Compiled:
    """A package that is compiled from source, in a build stage of its own."""

    name: PackageName
    """The name of the package."""
    version: PackageVersion
    """The version of the package."""
    env: Environment
    """The environment variables that its setup reads."""
    reason: Reason
    """Why this version is installed."""
    apt: tuple[Word, ...] = ()
    """The Debian packages that its setup needs. They are installed only in this stage."""


@dataclass(frozen=True)
class OtherPython:
    """A package that is installed from a wheel for another Python version, and replaces that of the base image."""

    name: PackageName
    """The name of the package."""
    version: PackageVersion
    """The version of the package."""
    python: PythonVersion
    """The Python version of the wheel, such as 3.10."""
    reason: Reason
    """Why the wheel for this Python also works with that of the image, and why it is needed."""


@dataclass(frozen=True)
class Toolkit:
    """A compiler for the device that is copied from another image, because the base image does not have it."""

    image: Annotated[str, Meta(pattern=r"^[^\s@]+@sha256:[0-9a-f]{64}\Z")]
    """The reference of the image that has the toolkit, with its digest. A build with `--base` takes the toolkit from
    that base."""
    folder: Annotated[str, Meta(pattern=r"^/[^\s]+\Z")]
    """The path of the toolkit, the same in both images. Packages are compiled with all of it."""
    files: Annotated[tuple[Word, ...], Meta(min_length=1)]
    """The files and folders in `folder` that are copied to the image of the stack: those that compilations during a
    run need."""


@dataclass(frozen=True)
class StackBuild:
    """How the images of a stack are built on its base image."""

    interpreter: Annotated[str, Meta(pattern=r"^/[^\s]+\Z")] | None
    """The path of the base image's Python. Null if the image uses Debian's Python in a new virtual environment."""
    apt: tuple[Word, ...]
    """The Debian packages to install."""
    from_base: tuple[PackageName, ...]
    """The packages of the base image that are never replaced, even if another package requires other versions."""
    packages: tuple[Requirement, ...]
    """The Python packages to install, each as `name==version`. A lock file adds their dependencies."""
    indexes: tuple[HttpsUrl, ...]
    """The URLs of package indexes that are used in addition to the default one."""
    compiled: tuple[Compiled, ...]
    """The packages that are compiled from source, only in images of cases that need them."""
    left_out: Mapping[Name, Reason]
    """The packages that cases could use but that are not available: their names, and the reason of each. A case that
    imports one of them only runs natively on the stack."""
    env: Environment
    """The environment variables of the image."""
    optional: tuple[PlainRequirement, ...] = ()
    """The Python packages to install only in images of cases that need them, each as `name==version`. A lock file
    adds their dependencies."""
    other_python: tuple[OtherPython, ...] = ()
    """The packages to install from wheels for another Python version, without their dependencies, only in images of
    cases that need them."""
    toolkit: Toolkit | None = None
    """The compiler for the device. Null if the base image has one, or if none is needed."""


@dataclass(frozen=True)
class MultiNodeNeeds:
    """What a container of a stack needs in addition in a run of several nodes."""

    devices: tuple[DevicePath, ...]
    """The device files to pass to the container, if the machine has them, such as /dev/infiniband."""
    capabilities: tuple[Capability, ...]
    """The Linux capabilities to add."""


@dataclass(frozen=True)
class DockerNeeds:
    """What a container of a stack needs from `docker run`."""

    gpus: Literal["all", None]
    """The value of the option --gpus; null to omit the option."""
    devices: tuple[DevicePath, ...]
    """The device files to pass to the container, such as /dev/kfd."""
    groups: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9_-]+\Z")], ...]
    """The groups of the host that own the device files, by name. The container is added to them."""
    capabilities: tuple[Capability, ...]
    """The Linux capabilities to add."""
    shm_size: Annotated[str, Meta(pattern=r"^[1-9][0-9]*[mg]\Z")]
    """The size of the shared memory in the notation of docker: a number followed by `m` or `g`."""
    ulimits: Annotated[Mapping[str, Annotated[int, Meta(ge=-1)]], keys(Literal["memlock", "stack", "nofile"])]
    """The resource limits, each both the soft and the hard limit. `memlock` and `stack` are in bytes; -1 is
    unlimited."""
    root: bool
    """Whether the device can only be used as root (uid 0)."""
    multi_node: MultiNodeNeeds
    """What the container needs in addition in a run of several nodes."""


@dataclass(frozen=True)
class KubernetesNeeds:
    """What a pod of a stack requests from its cluster."""

    resource: ResourceName | None
    """The extended resource that stands for one device, such as nvidia.com/gpu; null if there is none."""
    node_labels: Mapping[str, _LabelValues | None]
    """The labels that a node must have: for each label the values that are allowed. Null allows the names of the
    stack's devices, with hyphens in place of spaces."""
    tolerations: tuple[ResourceName, ...]
    """The keys of the node taints that the pod tolerates."""
    memory_per_device_gib: PositiveCount
    """The host memory to request for each device, in GiB."""
    cpus_per_device: PositiveCount
    """The number of processors to request for each device."""
    shm_per_device_gib: PositiveCount
    """The shared memory to request for each device, in GiB."""


@dataclass(frozen=True)
class Redistribution:
    """Whether the layers of a base image may be given to others.

    `flagbench push` sends them only if that is allowed, or if the user asks for it.
    """

    status: Literal["allowed", "restricted", "unknown"]
    """`allowed`; `restricted` if the licence has conditions that a person has to judge; or `unknown`, which counts as
    not allowed."""
    reason: Reason
    """The terms of the licence that decide the status."""
    source: HttpsUrl | None
    """The address of the licence; null if it is not published."""


@dataclass(frozen=True)
class Base:
    """The base image of a stack, which its images are built on."""

    image: Annotated[str, Meta(pattern=r"^[^\s]+\Z")] | None
    """The reference of the image, with an immutable tag or a digest; null if there is no public image."""
    obtain: Reason | None
    """How a user obtains the base image if there is no public one; else null."""
    redistribution: Redistribution
    """Whether the layers of the image may be given to others."""


@dataclass(frozen=True)
class DeviceSupport:
    """How processes of a stack find their devices, and how its ranks communicate."""

    kind: Literal["cpu", "cuda"]
    """The type of the devices in torch. Other vendors' devices may use the name `cuda`, too."""
    visibility_variable: str | None
    """The environment variable that selects devices, such as CUDA_VISIBLE_DEVICES; null if there is none."""
    driver_floor: str | None
    """The oldest version of the device driver that works with the images; null if any version does."""
    backend: Literal["gloo", "nccl", "mccl"]
    """The backend of torch.distributed."""
    architectures: tuple[Architecture, ...] = ()
    """The architectures, such as `sm_90`, on which the stack also runs devices without a manifest."""


@dataclass(frozen=True, kw_only=True)
class StackManifest:
    """The manifest of a stack, which is one vendor's software for a family of devices."""

    VERSION: ClassVar[str] = "stack/v1"

    name: Name
    """The name of the stack, which is also the name of its file."""
    title: str
    """The title of the stack in tables."""
    vendor: Name
    """The vendor of the devices, in lower case, such as `nvidia`."""
    aliases: tuple[Name, ...]
    """Other names that select the stack on a command line."""
    base: Base | None
    """The base image of the stack's images. Null if the stack has no image, so that all runs are native."""
    platform: Literal["linux/amd64", "linux/arm64"]
    """The platform of the images."""
    python: PythonVersion
    """The Python version of the images, such as 3.10."""
    expects: Annotated[Mapping[str, Word], Meta(min_length=1)]
    """The versions that an image must have when it is built and when a run starts, by package. A version may be a
    prefix that ends at a dot. `torch` is required if the stack has an image."""
    device: DeviceSupport
    """How processes find their devices, and how ranks communicate."""
    monitor: Monitor
    """The program or library that the telemetry of the devices is read from; `cpu` if there are no devices."""
    devices: tuple[Name, ...]
    """The ids of the device models that the stack supports; see manifests/devices."""
    families: tuple[Name, ...] = ()
    """The only families of cases that run on the stack; empty if it is for all cases."""
    does_not_run: Mapping[Name, Reason]
    """The cases that cannot run on the stack: their names, and the reason of each. All other cases run."""
    build: StackBuild
    """How the images are built on the base image."""
    docker: DockerNeeds
    """What a container needs from `docker run`."""
    kubernetes: KubernetesNeeds
    """What a pod requests from its cluster."""


@dataclass(frozen=True, kw_only=True)
class Stack(StackManifest, Manifest):
    """A stack of the catalog: its manifest, and what the catalog adds to it."""

    runs: tuple[str, ...]
    """The names of the cases that run on this stack, sorted: all that neither the case nor the stack excludes."""
    raw: Mapping[str, Any]
    """The manifest as JSON types, in the form that is compiled for images. `accelerators` in it has those facts about
    the devices that images need."""
    path: Path
    """The path of the manifest's file."""
    accelerators: tuple[DeviceModel, ...]
    """The device models of the stack: all of `devices`, or only those that `chosen` names."""
    chosen: str | None = None
    """The name by which some of the stack's devices were chosen, such as h100 or h100-sxm; None for all devices."""

    @property
    def selector(self) -> str:
        """The name that selects the stack and its chosen devices on a command line."""
        return self.chosen or self.name

    @property
    def names(self) -> tuple[str, ...]:
        """The stack's name and its aliases."""
        return (self.name, *self.aliases)

    @property
    def base_image(self) -> str | None:
        """The reference of the base image; None if there is no public one."""
        if self.base is None:
            return None
        return self.base.image

    @property
    def device_kind(self) -> Literal["cpu", "cuda"]:
        """The type of the devices in torch: `cpu`, or `cuda`, which includes devices of other vendors."""
        return self.device.kind

    def accelerator(self, reported: str) -> DeviceModel | None:
        """Find the device model for the exact name that a driver reports; None if the stack does not support it."""
        for model in self.accelerators:
            if model.has_name(reported):
                return model
        return None
