"""The types of single values in manifests, and the base class of manifests that are compiled for images.

The patterns and bounds of these types become rules of the JSON Schemas, and are checked when a manifest is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, get_args

from msgspec import Meta

NOT_PUBLISHED = "not published"
"""The value of a condition that the publisher did not state."""

Number = int | float
"""A number. An integer in YAML, such as `361`, stays an integer."""
Scalar = str | int | float | bool
"""The value of a condition or of a setting."""
PositiveNumber = Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0)]
PositiveCount = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*\Z")]
"""A name of a case, a stack, a device model or a limit, which is also part of file names and command lines."""
Identifier = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
"""A name of a metric or a check."""
ConfigPath = Annotated[str, Meta(pattern=r"^[a-z_0-9]+(\.[a-z_0-9]+)*\Z")]
"""A path in the resolved configuration, such as `train.batch_size`."""
Reason = Annotated[str, Meta(min_length=10)]
"""A reason in words. It is long enough to say something."""
SourceText = Annotated[str, Meta(min_length=3)]
"""The source of a number in words."""
Word = Annotated[str, Meta(min_length=1)]
"""A text that is not empty."""
HttpsUrl = Annotated[str, Meta(pattern=r"^https://[^\s]+\Z")]
PackageName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
PackageVersion = Annotated[str, Meta(pattern=r"^[^\s;]+\Z")]
PythonVersion = Annotated[str, Meta(pattern=r"^3\.[0-9]+\Z")]
"""A minor version of Python, such as 3.10."""
DevicePath = Annotated[str, Meta(pattern=r"^/dev/[A-Za-z0-9._/-]+\Z")]
Architecture = Annotated[str, Meta(pattern=r"^[a-z]+_?[0-9]+[a-z]*\Z")]
"""The architecture of a device as its compiler names it, such as `sm_90` or `gfx942`."""
ResourceName = Annotated[str, Meta(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+\Z")]
"""An extended resource or a taint of Kubernetes, such as nvidia.com/gpu."""
_PINNED = "of the form name==version"
"""Describes the pattern of a requirement in error messages: `'torch' is not of the form name==version`."""
Requirement = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,-]+\])?==[^\s;]+\Z", description=_PINNED)
]
"""A Python package with its version, and possibly with extras: `name[extra]==version`."""
PlainRequirement = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[^\s;]+\Z", description=_PINNED)]
"""A Python package with its version, without extras."""
Monitor = Literal["cpu", "amd-smi", "mx-smi", "nvml"]
"""The program or library that the telemetry of devices is read from."""
Environment = Mapping[
    Annotated[str, Meta(pattern=r"^[A-Z_][A-Z0-9_]*\Z")], Annotated[str, Meta(pattern=r"^[^\n\r]*\Z")]
]
"""Environment variables by name."""
Capability = Literal["IPC_LOCK", "SYS_NICE", "SYS_PTRACE"]
"""A Linux capability that a container may be granted."""
Division = Literal["faithful"]
"""The rules of a run. A faithful run executes the work that the publisher describes."""
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
"""A precision in which cases run."""
PeakPrecision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
"""A precision for which devices have a peak."""
DeviceNumber = PeakPrecision | Literal["power_watts", "memory_bandwidth", "sm_clock_mhz"]
"""A peak or a limit of a device. The manifest of a device has each of them, or states why it does not."""
Preset = Literal["reference", "tiny"]
"""A size of a case: the published one, or a small one for trials."""
Axis = Literal["dp", "tp", "pp"]
"""An axis of the layout of ranks: data-parallel replicas, tensor-parallel parts, pipeline stages."""
Unit = Literal["samples/s", "tokens/s", "requests/s", "TFLOP/s", "GB/s", "s", "fraction", "GiB", "nats"]
"""A unit of metrics."""
Scope = Literal["job", "node", "device"]
"""Whether a value is that of the whole job, of one node or of one device."""


def keys(names: Any, *required: str) -> Meta:
    """Make a rule of the JSON Schema for the keys of a mapping.

    Args:
        names: a Literal with all keys that are allowed.
        required: the keys that must be present.
    """
    rules: dict[str, Any] = {"propertyNames": {"enum": list(get_args(names))}}
    if required:
        rules["required"] = list(required)
    return Meta(extra_json_schema=rules)


class Manifest:
    """The base class of loaded manifests. Images get a compiled copy of those of cases, devices and stacks."""

    raw: Mapping[str, Any]
    """The manifest as JSON types."""
    HOST_ALONE: ClassVar[frozenset[str]] = frozenset()
    """The keys of the manifest that only the host reads, so that images do not get them."""

    @property
    def read_by_images(self) -> dict[str, Any]:
        """The part of the manifest that images get. A change of other keys must not lead to new images."""
        return {key: field for key, field in self.raw.items() if key not in self.HOST_ALONE}

    @cached_property
    def compiled(self) -> str:
        """The text of the copy for images, case.json or stacks/NAME.json: JSON with sorted keys."""
        return json.dumps(self.read_by_images, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
