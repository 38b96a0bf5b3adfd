"""Where packages come from: what pip and uv are configured with on this machine, and the options that override it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from flagbench.files import expanded
from flagbench.locks.certificates import certificates
from flagbench.locks.urls import WEB, check_url

_INDEXES = (*WEB, "file")
"""Unlike an image's build, `lock` and `wheels` see the folders of this machine."""
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
