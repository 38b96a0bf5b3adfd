"""Checks the addresses and certificates that a build is given."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from flagbench.errors import FlagbenchError
from flagbench.files import TEXT_BYTES, read_file, reason

# What ends a line, a word or a text of a configuration file, or begins a variable.
_UNSAFE = re.compile(r"[\s\"'\\<>^`{|}]")


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


def check_url(url: str, option: str) -> str:
    """A URL that is safe in a line of a configuration file. Raises FlagbenchError (usage).

    The URL may hold credentials, so no message repeats it.
    """
    if not _is_safe(url):
        raise FlagbenchError(
            f"{option} is not a URL of http or https",
            remedy="write it like https://mirror.example/simple; percent-encode what a URL cannot hold",
        )
    return url


def _is_safe(url: str) -> bool:
    if not (url.isascii() and url.isprintable()) or _UNSAFE.search(url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
