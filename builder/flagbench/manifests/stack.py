"""A stack as typed data: how its images are made, and what its runs need.

A stack is one vendor's software on a family of devices, such as a100-cuda11.8. The JSON Schema of manifests/stacks is
generated from these types.
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


@dataclass(frozen=True)
class Compiled:
    """A package compiled from source in a stage of its own, with the reason for its version."""

    name: PackageName
    version: PackageVersion
    env: Environment
    reason: Reason
    apt: tuple[Word, ...] = ()
    """Debian packages that its setup runs, in that stage alone."""


@dataclass(frozen=True)
class OtherPython:
    """A package taken as a wheel for another Python, with the reason. It replaces what the base has of it."""

    name: PackageName
    version: PackageVersion
    python: PythonVersion
    """Minor version, such as 3.10."""
    reason: Reason


@dataclass(frozen=True)
class StackBuild:
    """How the image of a stack is made on its base."""

    interpreter: Annotated[str, Meta(pattern=r"^/[^\s]+\Z")] | None
    """The base's Python; null: Debian's, in a virtual environment of ours."""
    apt: tuple[Word, ...]
    from_base: tuple[PackageName, ...]
    """Packages that the base brings and that are never installed over."""
    packages: tuple[Requirement, ...]
    """Direct requirements, `name==version`; the lock holds what they need in turn."""
    indexes: tuple[HttpsUrl, ...]
    """URLs of package indexes beside the default one."""
    compiled: tuple[Compiled, ...]
    """Only in images of cases that need them, like `optional`."""
    left_out: Mapping[Name, Reason]
    """Packages a reader would look for, and why they are not here."""
    env: Environment
    """Environment of the image."""
    optional: tuple[PlainRequirement, ...] = ()
    """Requirements like `packages`, installed only in images of cases that need them."""
    other_python: tuple[OtherPython, ...] = ()
    """The same, without what they need in turn."""


@dataclass(frozen=True)
class MultiNodeNeeds:
    """What `docker run` has to grant besides in a run of several nodes."""

    devices: tuple[DevicePath, ...]
    capabilities: tuple[Capability, ...]


@dataclass(frozen=True)
class DockerNeeds:
    """What `docker run` has to grant a container of a stack."""

    gpus: Literal["all", None]
    devices: tuple[DevicePath, ...]
    groups: tuple[Annotated[str, Meta(pattern=r"^[a-z0-9_-]+\Z")], ...]
    capabilities: tuple[Capability, ...]
    shm_size: Annotated[str, Meta(pattern=r"^[1-9][0-9]*[mg]\Z")]
    """As docker writes it: a number and `m` or `g`."""
    ulimits: Annotated[Mapping[str, Annotated[int, Meta(ge=-1)]], keys(Literal["memlock", "stack", "nofile"])]
    """Soft and hard limit alike; -1 is unlimited, `memlock` and `stack` are in bytes."""
    root: bool
    """Whether a device demands uid 0."""
    multi_node: MultiNodeNeeds


@dataclass(frozen=True)
class KubernetesNeeds:
    """What a pod of a stack asks its cluster for, per device where it says so."""

    resource: ResourceName | None
    """The extended resource of one device; null on processors."""
    node_labels: Mapping[
        str,
        Annotated[
            tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")], ...],
            Meta(min_length=1),
        ]
        | None,
    ]
    """Labels a node must carry, each with the values that will do.

    Null: the names of the devices, with dashes for spaces."""
    tolerations: tuple[ResourceName, ...]
    memory_per_device_gib: PositiveCount
    cpus_per_device: PositiveCount
    shm_per_device_gib: PositiveCount


@dataclass(frozen=True)
class Redistribution:
    """Whether a base's layers may be given to others; `flagbench push` sends them only then, or when told to."""

    status: Literal["allowed", "restricted", "unknown"]
    """`restricted`: on conditions of the licence that a person has to judge. `unknown` counts as not allowed."""
    reason: Reason
    source: HttpsUrl | None
    """Where the licence can be read."""


@dataclass(frozen=True)
class Base:
    """The image that a stack's images are made on."""

    image: Annotated[str, Meta(pattern=r"^[^\s]+\Z")] | None
    obtain: Reason | None
    """How a person gets the base, where no public one exists."""
    redistribution: Redistribution


@dataclass(frozen=True)
class DeviceSupport:
    """How a process of a stack finds its devices, and how ranks reach each other."""

    kind: Literal["cpu", "cuda"]
    """What torch calls them."""
    visibility_variable: str | None
    driver_floor: str | None
    backend: Literal["gloo", "nccl", "mccl"]
    architectures: tuple[Architecture, ...] = ()
    """Those on which it also runs where no manifest has the device."""


@dataclass(frozen=True, kw_only=True)
class StackManifest:
    """One vendor software stack on a family of devices."""

    VERSION: ClassVar[str] = "stack/v1"

    name: Name
    title: str
    vendor: Name
    aliases: tuple[Name, ...]
    base: Base | None
    """Null: there is no image of it, and a run is native."""
    platform: Literal["linux/amd64", "linux/arm64"]
    python: PythonVersion
    expects: Annotated[Mapping[str, Word], Meta(min_length=1)]
    """Versions that the image must show when it is built and when it starts, by package; a prefix that ends at a dot
    will do. torch where the image has one."""
    device: DeviceSupport
    monitor: Monitor
    """The parser of what its devices say of themselves: a module of telemetry/monitors on the image side, or cpu."""
    devices: tuple[Name, ...]
    """Device models that it supports: names of files in devices/."""
    does_not_run: Mapping[Name, Reason]
    """Cases this stack cannot run, each with the reason; every other case it runs."""
    build: StackBuild
    docker: DockerNeeds
    kubernetes: KubernetesNeeds


@dataclass(frozen=True, kw_only=True)
class Stack(StackManifest, Manifest):
    """A stack of the catalog."""

    runs: tuple[str, ...]
    """The names of the catalog's cases that run on this stack, sorted: all that neither side excludes."""
    raw: Mapping[str, Any]
    """The manifest as it is compiled for the image side; `accelerators` has what images read of the devices."""
    path: Path
    accelerators: tuple[DeviceModel, ...]
    """The devices themselves: all of `devices`, or those that `chosen` names."""
    chosen: str | None = None
    """The name of some of its devices, such as h100 or h100-sxm."""

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
        """The base's reference; None if there is no public one."""
        if self.base is None:
            return None
        return self.base.image

    @property
    def device_kind(self) -> str:
        """`cpu`, or `cuda` for all that torch calls so."""
        return self.device.kind

    def accelerator(self, reported: str) -> DeviceModel | None:
        """Find the device model that a driver reports by this name; None if the stack does not support it.

        The whole name must match.
        """
        for model in self.accelerators:
            if model.has_name(reported):
                return model
        return None
