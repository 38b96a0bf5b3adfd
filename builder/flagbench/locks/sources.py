"""Where packages come from: what pip and uv are configured with on this machine, and the options that override it."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flagbench.files import expanded
from flagbench.locks.certificates import certificates
from flagbench.locks.urls import WEB, check_url

Environment = dict[str, str]
_INDEXES = (*WEB, "file")
"""Unlike an image's build, `lock` and `wheels` see the folders of this machine."""


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
            check_url(index, "--pip-source", _INDEXES)

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


def pip_environment(sources: Sources) -> Environment:
    """The environment for a `pip` of this Python: its own configuration, and the options over it.

    The environment, not the command line: an index may carry a password, and other users see command lines.
    """
    environment = dict(sources.environ)
    if sources.indexes:
        environment["PIP_INDEX_URL"] = sources.indexes[0]
    if sources.further:
        environment["PIP_EXTRA_INDEX_URL"] = " ".join(sources.further)
    if sources.ca_bundle is not None:
        environment["PIP_CERT"] = str(sources.ca_bundle)
    return environment


def uv_environment(sources: Sources, pip: Mapping[str, str], indexes: Sequence[str]) -> Environment:
    """The environment for uv, which does not read pip's configuration.

    Args:
        sources: the options, which beat everything.
        pip: pip's configuration, see `pip_configuration`; what is configured for uv itself beats it.
        indexes: the stack's package indexes beside the default one.
    """
    environment = dict(sources.environ)
    own_default = environment.pop("UV_INDEX_URL", None) or pip.get("index-url")
    if sources.indexes:
        environment["UV_DEFAULT_INDEX"] = sources.indexes[0]
    elif own_default:
        environment.setdefault("UV_DEFAULT_INDEX", own_default)
    older = environment.pop("UV_EXTRA_INDEX_URL", None)
    own = environment.get("UV_INDEX") or older or pip.get("extra-index-url", "")
    if beside := [*(sources.further or indexes), *own.split()]:
        environment["UV_INDEX"] = " ".join(beside)
    for name, key, separator in _SAME:
        if key in pip:
            environment.setdefault(name, separator.join(pip[key].split()))
    if sources.ca_bundle is not None:
        environment["SSL_CERT_FILE"] = str(sources.ca_bundle)
    return environment


_SAME = (
    ("UV_FIND_LINKS", "find-links", ","),
    ("UV_NO_INDEX", "no-index", ""),
    ("UV_INSECURE_HOST", "trusted-host", " "),
    ("UV_HTTP_TIMEOUT", "timeout", ""),
    ("SSL_CERT_FILE", "cert", ""),
)
"""uv's variable, pip's setting, and what separates several values in the variable."""


def pip_configuration(sources: Sources) -> dict[str, str]:
    """What the pip of this Python is configured with, by the name of the setting; empty where there is no pip."""
    return parse_pip_configuration(_pip_listing(sys.executable, frozenset(sources.environ.items())))


@functools.cache
def _pip_listing(python: str, environ: frozenset[tuple[str, str]]) -> str:
    """What `pip config list` prints; asked once, as starting pip takes longer than resolving a stack from a cache."""
    command = [python, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False)
    return listed.stdout if listed.returncode == 0 else ""


def parse_pip_configuration(listing: str) -> dict[str, str]:
    """The settings in the output of `pip config list`: the environment's beat `install.*`, those beat `global.*`."""
    ranks = ("global", "install", ":env:")
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        key, equals, value = line.partition("=")
        section, dot, name = key.rpartition(".")
        if not (equals and dot) or section not in ranks:
            continue
        rank = ranks.index(section)
        if rank >= found.get(name, (0, ""))[0]:
            # pip prints a Python literal.
            found[name] = (rank, str(ast.literal_eval(value)))
    return {name: value for name, (_, value) in found.items()}
