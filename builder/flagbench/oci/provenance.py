"""What an image was made of, as an in-toto statement with SLSA's predicate; unsigned.

It follows from the image, its name and the version of flagbench alone, so pushing an image again adds no other one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flagbench._version import __version__
from flagbench.labels import (
    BASE_DIGEST_LABEL,
    BASE_LABEL,
    BASE_NAME_LABEL,
    CASE_LABEL,
    CONTEXT_LABEL,
    CREATED_LABEL,
    EPOCH_LABEL,
    LOCK_LABEL,
    REVISION_LABEL,
    STACK_LABEL,
)

MEDIA_TYPE = "application/vnd.in-toto+json"
_BUILD_TYPE = "https://flagbench.dev/build/v1"


def provenance(name: str, digest: str, config_digest: str, labels: Mapping[str, str]) -> bytes:
    """The statement.

    Args:
        name: `flagbench/CASE:TAG`.
        digest: `sha256:<64 hex>` of the manifest.
        labels: the image's.
    """
    dependencies = [_base(labels), _dependency("lock", labels.get(LOCK_LABEL, ""))]
    if commit := labels.get(REVISION_LABEL):
        dirty = commit.endswith("-dirty")
        found = {"name": "flagbench", "digest": {"gitCommit": commit.removesuffix("-dirty")}}
        dependencies.append({**found, "annotations": {"dirty": True}} if dirty else found)
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": _digest(digest)}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {"case": labels.get(CASE_LABEL), "stack": labels.get(STACK_LABEL)},
                "internalParameters": {
                    "contextDigest": labels.get(CONTEXT_LABEL),
                    "configDigest": config_digest,
                    "epoch": labels.get(EPOCH_LABEL),
                    "created": labels.get(CREATED_LABEL),
                },
                "resolvedDependencies": [each for each in dependencies if each["digest"]],
            },
            "runDetails": {
                "builder": {
                    "id": "https://flagbench.dev/builder/v1",
                    "version": {"flagbench": __version__},
                },
            },
        },
    }
    return json.dumps(statement, indent=1, ensure_ascii=False).encode() + b"\n"


def _base(labels: Mapping[str, str]) -> dict[str, Any]:
    """The base: by the digest of its manifest if a registry has it, else by that of its content."""
    name, digest = labels.get(BASE_NAME_LABEL, ""), labels.get(BASE_DIGEST_LABEL, "")
    if digest:
        return {"uri": f"docker-image://{name}", **_dependency("base", digest)}
    return {**_dependency("base", labels.get(BASE_LABEL, "")), "annotations": {"image": name}}


def _dependency(name: str, digest: str) -> dict[str, Any]:
    return {"name": name, "digest": _digest(digest) if digest else {}}


def _digest(digest: str) -> dict[str, str]:
    algorithm, _, value = digest.partition(":")
    return {algorithm: value}
