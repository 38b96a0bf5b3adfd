"""Addresses of packages: what may be one, and whose account goes with which."""

from __future__ import annotations

import base64
import netrc
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from flagbench.errors import FlagbenchError

WEB = ("http", "https")
_PORTS = {"http": 80, "https": 443}
# What ends a line, a word or a text of a configuration file, or begins a variable.
_UNSAFE = re.compile(r"[\s\"'\\<>^`{|}]")
_INDEX_NAME = re.compile(r"[A-Za-z0-9_.-]+=(?=[A-Za-z][A-Za-z0-9+.-]*://)")

Origin = tuple[str, str, int]
"""Scheme, host and port: an account is for one of these, and never leaves it."""


def check_url(url: str, option: str, schemes: Iterable[str] = WEB) -> str:
    """A URL that is safe in a line of a configuration file. Raises FlagbenchError (usage).

    The URL may hold credentials, so no message repeats it.
    """
    usable = url.isprintable() and url.isascii() and not _UNSAFE.search(url)
    if usable:
        try:
            parts = urlsplit(url)
            named = bool(parts.hostname) and (parts.port or 1) > 0
            usable = parts.scheme in schemes and (named or parts.scheme == "file")
        except ValueError:
            usable = False
    if not usable:
        raise FlagbenchError(
            f"{option} is not a URL of {' or '.join(schemes)}",
            remedy="write it like https://mirror.example/simple; percent-encode what a URL cannot hold",
        )
    return url


def origin(url: str) -> Origin | None:
    """What an account of this address is for; None where there is no host to have one."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and port else None


def without_account(url: str) -> str:
    """The address without the user and the password in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def index_urls(environment: Mapping[str, str]) -> list[str]:
    """The indexes that an environment names to uv, the default one first; their URLs may hold accounts."""
    urls = [*environment.get("UV_DEFAULT_INDEX", "").split(), *environment.get("UV_INDEX", "").split()]
    return [_INDEX_NAME.sub("", url, count=1) for url in urls]


class Accounts:
    """The accounts of the indexes that uv is configured with, each sent to its own origin alone."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment` is uv's, see `sources.uv_environment`; what its indexes do not say, netrc may, as for uv."""
        self._headers: dict[Origin, str] = {}
        self._environment = environment
        for url in [*index_urls(environment), *environment.get("UV_FIND_LINKS", "").split(",")]:
            self.learn(url.strip())

    def learn(self, url: str) -> None:
        """Keep the account that stands in an address; the first of an origin counts."""
        where = origin(url)
        parts = urlsplit(url) if where else None
        if where and parts and parts.username is not None:
            self._headers.setdefault(where, _basic(unquote(parts.username), unquote(parts.password or "")))

    def header(self, url: str) -> str | None:
        """The Authorization header of a request to an address."""
        where = origin(url)
        if where is None:
            return None
        return self._headers.get(where) or self._from_netrc(where[1])

    def _from_netrc(self, host: str) -> str | None:
        path = Path(self._environment.get("NETRC") or "~/.netrc").expanduser()
        try:
            found = netrc.netrc(str(path)).authenticators(host)
        except (OSError, netrc.NetrcParseError, RuntimeError):
            # None there, none that can be read: then the index is asked without, and says so itself.
            return None
        return _basic(found[0], found[2] or "") if found else None


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
