"""The certificates by which a registry is trusted: those of this machine, and docker's own for that registry."""

from __future__ import annotations

import os
import ssl
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

HUB = "docker.io"
_FOLDERS = ("/etc/docker/certs.d", "~/.config/docker/certs.d", "~/.docker/certs.d")
_BUNDLE_BYTES = 16 * 2**20


def trusted(host: str) -> Path | None:
    """A file of certificates (PEM) for a registry, Docker Hub where it is empty; None: this machine's are enough.

    Docker trusts `certs.d/HOST[:PORT]/*.crt` beside those of the machine, and so does the file.
    """
    folders = [Path(folder).expanduser() / (host or HUB) for folder in _FOLDERS]
    own = [file for folder in folders for file in sorted(folder.glob("*.crt"))]
    return _bundle(tuple(own)) if own else None


@cache
def _bundle(files: tuple[Path, ...]) -> Path | None:
    system = ssl.get_default_verify_paths()
    configured = os.environ.get("REQUESTS_CA_BUNDLE") or system.cafile
    parts = []
    for file in (*files, *([Path(configured)] if configured else ())):
        with suppress(OSError):  # docker skips what it may not read, too
            parts.append(file.read_bytes()[:_BUNDLE_BYTES])
    # Removed when this process ends.
    made = tempfile.NamedTemporaryFile(prefix="flagbench-", suffix=".pem")  # noqa: SIM115
    made.write(b"\n".join(parts))
    made.flush()
    _kept.append(made)
    return Path(made.name)


_kept: list[object] = []
