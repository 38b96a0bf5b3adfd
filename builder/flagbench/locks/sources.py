"""Where packages come from: what pip and uv are configured with on this machine, and the options that override it."""

from __future__ import annotations

import ast
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from flagbench.errors import FlagbenchError
from flagbench.files import TEXT_BYTES, expanded, read_file, reason

_WEB = ("http", "https")
# What ends a line, a word or a text of a configuration file, or begins a variable.
_UNSAFE = re.compile(r"[\s\"'\\<>^`{|}]")
_SAME = (
    ("UV_FIND_LINKS", "find-links", ","),
    ("UV_NO_INDEX", "no-index", ""),
    ("UV_INSECURE_HOST", "trusted-host", " "),
    ("UV_HTTP_TIMEOUT", "timeout", ""),
    ("SSL_CERT_FILE", "cert", ""),
)
"""uv's variable, pip's setting, and what separates several values in the variable."""


@dataclass(frozen=True)
class Sources:
    """The options of a command: None is whatever pip and uv are configured with."""

    indexes: tuple[str, ...] = ()
    """URLs of package indexes: the first instead of the default one, more instead of the stack's further ones."""
    ca_bundle: Path | None = None
    """Certificates (PEM) to trust instead of the system's."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __post_init__(self) -> None:
        if self.ca_bundle is not None:
            certificates(self.ca_bundle)
        for index in self.indexes:
            # Unlike an image's build, `lock` and `wheels` see the folders of this machine.
            check_url(index, "--pip-source", (*_WEB, "file"))

    @classmethod
    def chosen(cls, pip_source: Sequence[str] | None, ca_bundle: str | None) -> Sources:
        """The options as typed; an empty text, as an empty variable gives, counts as not given.

        Raises FlagbenchError (usage) for an index that is no URL, and a bundle without certificates.
        """
        indexes = tuple(url for url in pip_source or () if url)
        return cls(indexes, expanded(ca_bundle).absolute() if ca_bundle else None)

    @property
    def further(self) -> tuple[str, ...]:
        """Indexes to ask instead of the stack's further ones; empty: the stack's own are asked."""
        return self.indexes[1:]

    @cached_property
    def pip(self) -> Mapping[str, str]:
        """The configuration of this Python's pip, by the name of the setting; empty if there is no pip."""
        command = [sys.executable, "-m", "pip", "config", "list"]
        listed = subprocess.run(command, env=dict(self.environ), capture_output=True, text=True, check=False)
        return parse_pip_configuration(listed.stdout) if listed.returncode == 0 else {}

    def pip_environment(self) -> dict[str, str]:
        """The environment for a `pip` of this Python: its own configuration, and the options over it.

        The environment, not the command line: an index may carry a password, and other users see command lines.
        """
        environment = dict(self.environ)
        if self.indexes:
            environment["PIP_INDEX_URL"] = self.indexes[0]
        if self.further:
            environment["PIP_EXTRA_INDEX_URL"] = " ".join(self.further)
        if self.ca_bundle is not None:
            environment["PIP_CERT"] = str(self.ca_bundle)
        return environment

    def uv_environment(self, indexes: Sequence[str]) -> dict[str, str]:
        """The environment for uv, which does not read pip's configuration: uv's own settings beat it, options both.

        Args:
            indexes: the stack's package indexes beside the default one.
        """
        environment = dict(self.environ)
        own_default = environment.pop("UV_INDEX_URL", None) or self.pip.get("index-url")
        if self.indexes:
            environment["UV_DEFAULT_INDEX"] = self.indexes[0]
        elif own_default:
            environment.setdefault("UV_DEFAULT_INDEX", own_default)
        older = environment.pop("UV_EXTRA_INDEX_URL", None)
        own = environment.get("UV_INDEX") or older or self.pip.get("extra-index-url", "")
        if beside := [*(self.further or indexes), *own.split()]:
            environment["UV_INDEX"] = " ".join(beside)
        for name, key, separator in _SAME:
            if key in self.pip:
                environment.setdefault(name, separator.join(self.pip[key].split()))
        if self.ca_bundle is not None:
            environment["SSL_CERT_FILE"] = str(self.ca_bundle)
        return environment


def parse_pip_configuration(listing: str) -> dict[str, str]:
    """The settings in the output of `pip config list`: the environment's beat `install.*`, those beat `global.*`."""
    found: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):
        for line in listing.splitlines():
            key, equals, value = line.partition("=")
            if equals and key.startswith(section):
                # pip prints a Python literal.
                found[key.removeprefix(section)] = str(ast.literal_eval(value))
    return found


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


def check_url(url: str, option: str, schemes: Iterable[str] = _WEB) -> str:
    """A URL that is safe in a line of a configuration file. Raises FlagbenchError (usage).

    The URL may hold credentials, so no message repeats it.
    """
    if not _is_safe(url, schemes):
        raise FlagbenchError(
            f"{option} is not a URL of {' or '.join(schemes)}",
            remedy="write it like https://mirror.example/simple; percent-encode what a URL cannot hold",
        )
    return url


def _is_safe(url: str, schemes: Iterable[str]) -> bool:
    if not (url.isascii() and url.isprintable()) or _UNSAFE.search(url):
        return False
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return parts.scheme in schemes and (has_host or parts.scheme == "file")
