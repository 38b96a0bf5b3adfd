"""The keys of objects in a store, compiled from manifests/store-v1.json, which the host side reads."""

import functools
import json
import os
from typing import Any, Dict

from flagbench_cases import shared


def record_key(record: Dict[str, Any]) -> str:
    """The key of a record."""
    names = {name: record[name] for name in ("case", "stack", "record_id")}
    return _layout()["record"].format(day=record["created_at"][:10], **names)


def bundle_key(record_id: str, node: int, sha256: str) -> str:
    """The key of a node's bundle. It names the content, because the end of an upload in parts may overwrite."""
    return _layout()["bundle"].format(record_id=record_id, node=node, sha256=sha256)


def checksum_name(name: str) -> str:
    """The name of the file, beside the file `name`, that holds its checksum."""
    return _layout()["checksum"].format(name=name)


def checksum_text(sha256: str, name: str) -> str:
    """The content of that file."""
    return _layout()["checksum_text"].format(sha256=sha256, name=name)


@functools.lru_cache(maxsize=None)
def _layout() -> Dict[str, str]:
    with open(os.path.join(os.path.dirname(shared.__file__), "store.json"), encoding="utf-8") as file:
        return dict(json.load(file))
