"""The certificates by which a registry is trusted: those of this machine, and docker's own for that registry."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from requests.utils import DEFAULT_CA_BUNDLE_PATH

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
    # Other hosts are asked, too: a service for tokens, a server of blobs.
    own, public = _contents(files), _contents(_public())
    parts = [*own, *(public or _contents([Path(DEFAULT_CA_BUNDLE_PATH)]))]
    # Removed when this process ends.
    made = tempfile.NamedTemporaryFile(prefix="flagbench-", suffix=".pem")  # noqa: SIM115
    made.write(b"\n".join(parts))
    made.flush()
    _kept.append(made)
    return Path(made.name)


def _public() -> list[Path]:
    """The files of this machine's certificates, or of those that the user names."""
    system = ssl.get_default_verify_paths()
    named = os.environ.get("REQUESTS_CA_BUNDLE") or system.cafile or system.capath
    place = Path(named) if named else None
    if place is None:
        return []
    with suppress(OSError):
        # A folder has a certificate under its own name and under the hash of its subject.
        return sorted({file.resolve() for file in place.iterdir()})
    return [place]


def _contents(files: Iterable[Path]) -> list[bytes]:
    found = []
    for file in files:
        with suppress(OSError):  # docker skips what it may not read, too
            found.append(file.read_bytes()[:_BUNDLE_BYTES])
    return found


_kept: list[object] = []
