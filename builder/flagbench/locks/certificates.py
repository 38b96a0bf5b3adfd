"""The certificates that --ca-bundle names."""

from __future__ import annotations

import ssl
from pathlib import Path

from flagbench.errors import FlagbenchError
from flagbench.files import TEXT_BYTES, read_file, reason


def certificates(path: Path) -> bytes:
    """The content of a bundle of certificates (PEM).

    Raises FlagbenchError (usage) for a file that cannot be read, holds no certificates, or holds a private key.
    """
    remedy = "name a file of certificates in PEM form, such as /etc/ssl/certs/ca-certificates.crt"
    try:
        content = read_file(path, TEXT_BYTES)
    except OSError as error:
        raise FlagbenchError(f"--ca-bundle {path} cannot be read: {reason(error)}", remedy=remedy) from error
    if b"PRIVATE KEY-----" in content:
        raise FlagbenchError(f"--ca-bundle {path} holds a private key, which nothing here needs", remedy=remedy)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise FlagbenchError(f"--ca-bundle {path} holds no certificates that can be read", remedy=remedy) from error
    return content
