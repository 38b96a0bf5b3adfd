"""Bundles for tests: sound ones of a node, and parts to make hostile ones of."""

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


def archive(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """The .tar.gz of members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return gzip.compress(out.getvalue(), compresslevel=1, mtime=0)


def sums(files: dict[str, bytes]) -> tuple[tarfile.TarInfo, bytes]:
    """SHA256SUMS of those files, as a member."""
    lines = (f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items())
    return member("SHA256SUMS", "".join(lines).encode())


def bundle(files: dict[str, bytes] = FILES, **origin: Any) -> bytes:
    """A sound bundle; `origin` is record_id, run_id and node."""
    files = {**files, "MANIFEST.json": json.dumps({"schema": "bundle/v1", **origin}).encode()}
    return archive([*(member(name, content) for name, content in files.items()), sums(files)])
