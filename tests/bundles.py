"""Bundles for tests: sound ones, and parts to make hostile ones of."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from typing import Any

FILES = {"spool/rank-00000.events": b'{"step": 1}\n' * 200, "log/node.log": b"started\n", "empty": b""}


def member(name: str, content: bytes = b"", **changes: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A member of an archive, with any field changed."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in changes.items():
        setattr(info, field, value)
    return info, content


def archive(
    members: list[tuple[tarfile.TarInfo, bytes]],
    format: int = tarfile.PAX_FORMAT,
    pax_headers: dict[str, str] | None = None,
) -> bytes:
    """The .tar.gz of members; `pax_headers` are those of all of them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, pax_headers=pax_headers) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return gzip.compress(out.getvalue(), compresslevel=1, mtime=0)


def manifest(files: dict[str, bytes], **facts: Any) -> bytes:
    """MANIFEST.json of those files."""
    named = [
        {"path": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    ]
    return json.dumps({"schema": "bundle/v1", **facts, "files": named}).encode()


def bundle(files: dict[str, bytes] = FILES, **facts: Any) -> bytes:
    """A sound bundle; `facts` are run_id, record_id and node."""
    members = [member(name, content) for name, content in files.items()]
    return archive([*members, member("MANIFEST.json", manifest(files, **facts))])
