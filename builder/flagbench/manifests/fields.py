"""The types of fields that several manifests share, and the base class of manifests that are compiled for images.

The patterns and bounds here become a part of the JSON Schemas, and are checked when a manifest is loaded.
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
"""An integer in YAML, as `361`, stays one."""
Scalar = str | int | float | bool
PositiveNumber = Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0)]
PositiveCount = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*\Z")]
Identifier = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
ConfigPath = Annotated[str, Meta(pattern=r"^[a-z_0-9]+(\.[a-z_0-9]+)*\Z")]
"""A path in the resolved configuration."""
Reason = Annotated[str, Meta(min_length=10)]
SourceText = Annotated[str, Meta(min_length=3)]
Word = Annotated[str, Meta(min_length=1)]
HttpsUrl = Annotated[str, Meta(pattern=r"^https://[^\s]+\Z")]
PackageName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
PackageVersion = Annotated[str, Meta(pattern=r"^[^\s;]+\Z")]
PythonVersion = Annotated[str, Meta(pattern=r"^3\.[0-9]+\Z")]
DevicePath = Annotated[str, Meta(pattern=r"^/dev/[A-Za-z0-9._/-]+\Z")]
Architecture = Annotated[str, Meta(pattern=r"^[a-z]+_?[0-9]+[a-z]*\Z")]
ResourceName = Annotated[str, Meta(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+\Z")]
_PINNED = "of the form name==version"
Requirement = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,-]+\])?==[^\s;]+\Z", description=_PINNED)
]
PlainRequirement = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[^\s;]+\Z", description=_PINNED)]
Monitor = Literal["cpu", "amd-smi", "mx-smi", "nvml"]
Environment = Mapping[
    Annotated[str, Meta(pattern=r"^[A-Z_][A-Z0-9_]*\Z")], Annotated[str, Meta(pattern=r"^[^\n\r]*\Z")]
]
Capability = Literal["IPC_LOCK", "SYS_NICE", "SYS_PTRACE"]
Division = Literal["faithful"]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
PeakPrecision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
DeviceNumber = PeakPrecision | Literal["power_watts", "memory_bandwidth", "sm_clock_mhz"]
"""A peak or a limit of a device, which its manifest states or says why not."""
Preset = Literal["reference", "tiny"]
Axis = Literal["dp", "tp", "pp"]
Unit = Literal["samples/s", "tokens/s", "TFLOP/s", "GB/s", "s", "fraction", "GiB", "nats"]
Scope = Literal["job", "node", "device"]


def keys(names: Any, *required: str) -> Meta:
    """Make the rule that a mapping has only keys of a Literal, and has those that are required."""
    rules: dict[str, Any] = {"propertyNames": {"enum": list(get_args(names))}}
    if required:
        rules["required"] = list(required)
    return Meta(extra_json_schema=rules)


class Manifest:
    """The base class of Case, DeviceModel and Stack, of which images get a compiled copy."""

    raw: Mapping[str, Any]
    """The manifest as JSON types."""
    HOST_ALONE: ClassVar[frozenset[str]] = frozenset()
    """Keys of the manifest that only the host reads."""

    @property
    def read_by_images(self) -> dict[str, Any]:
        """The keys that the image side reads. A change of the others must not make new images."""
        return {key: field for key, field in self.raw.items() if key not in self.HOST_ALONE}

    @cached_property
    def compiled(self) -> str:
        """The text of case.json or stacks/NAME.json: these keys as JSON, sorted, indented by one space."""
        return json.dumps(self.read_by_images, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
