"""The options of a build, checked before anything is built."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from flagbench.errors import FlagbenchError
from flagbench.files import expanded
from flagbench.image_reference import find_reference

# What ends a line, a word or a text of a configuration file, or begins a variable.
_UNSAFE = re.compile(r"[\s\"'\\<>^`{|}]")
_PLATFORM = re.compile(r"[a-z0-9]+/[a-z0-9_]+(/[a-z0-9]+)?")


@dataclass(frozen=True)
class BuildOptions:
    """How to build; only `base`, `platform` and `template` change what is built."""

    base: str | None = None
    """A reference or the id of a local image, instead of the lock's base."""
    pip_source: tuple[str, ...] = ()
    """URLs of package indexes: the first instead of the default one, more instead of the stack's own extra ones.
    They may hold credentials."""
    apt_source: str | Path | None = None
    """URL of a distribution's archive, or a file of sources lines, instead of the base's own sources."""
    ca_bundle: Path | None = None
    wheelhouse: Path | None = None
    platform: str | None = None
    """`os/architecture`, the stack's with or without a variant; None: the stack's."""
    no_cache: bool = False
    allow_unlocked: bool = False
    template: Path | None = None


def make_options(
    *,
    base: str | None = None,
    pip_source: Sequence[str] = (),
    apt_source: str | None = None,
    ca_bundle: str | None = None,
    wheelhouse: str | None = None,
    platform: str | None = None,
    no_cache: bool = False,
    allow_unlocked: bool = False,
    template: str | None = None,
) -> BuildOptions:
    """The options as typed, checked; an empty text counts as not given.

    Raises FlagbenchError (usage) for an invalid value. The content of files is checked when they are read, by
    `make_inputs`.
    """
    # An image's id, or the beginning of one, reads as a reference too.
    if base and find_reference(base) is None:
        raise FlagbenchError(
            f"--base cannot be {base!r}", remedy="write one like registry.example/base:1 or sha256:..."
        )
    if platform and _PLATFORM.fullmatch(platform) is None:
        raise FlagbenchError(f"--platform cannot be {platform!r}", remedy="write os/architecture, like linux/amd64")
    return BuildOptions(
        base=base or None,
        pip_source=tuple(_checked_url(url, "--pip-source") for url in pip_source if url),
        apt_source=_apt_source(apt_source),
        ca_bundle=_existing(ca_bundle, "--ca-bundle"),
        wheelhouse=_existing(wheelhouse, "--wheelhouse", folder=True),
        platform=platform or None,
        no_cache=no_cache,
        allow_unlocked=allow_unlocked,
        template=_existing(template, "--template"),
    )


def _apt_source(source: str | None) -> str | Path | None:
    if source and "://" in source:
        return _checked_url(source, "--apt-source")
    return _existing(source, "--apt-source")


def _checked_url(url: str, option: str) -> str:
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


def _existing(value: str | None, option: str, *, folder: bool = False) -> Path | None:
    """The absolute path of an existing file, or of a folder."""
    if not value:
        return None
    try:
        path = expanded(value)
        exists = path.is_dir() if folder else path.is_file()
    except OSError:  # a name that is too long
        exists = False
    if not exists:
        raise FlagbenchError(
            f"{option} names no {'folder' if folder else 'file'}: {value!r}",
            remedy=f"name one that exists, or leave {option} out",
        )
    return path.absolute()
