"""What a person may choose about a build, checked before anything is built."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flagbench.checkout import commit_time
from flagbench.errors import FlagbenchError
from flagbench.images import find_reference
from flagbench.locks.urls import check_url

DEFAULT_EPOCH = 315_532_800
"""1980-01-01T00:00:00Z, the earliest time that a zip file, hence a wheel, can hold; the Dockerfiles' own default."""

# The end is that of the octal field of a tar header.
_EPOCH_RANGE = (DEFAULT_EPOCH, 8**11 - 1)
_PLATFORM = re.compile(r"[a-z0-9]+/[a-z0-9_]+(/[a-z0-9]+)?")


@dataclass(frozen=True)
class BuildOptions:
    """How to build; none of it but `base`, `platform`, `epoch` and the templates can change what is built."""

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
    epoch: int = DEFAULT_EPOCH
    """Seconds since 1970."""
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
    epoch: str | None = None,
    allow_unlocked: bool = False,
    template: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> BuildOptions:
    """The options as typed, checked; an empty text counts as not given.

    Raises FlagbenchError (usage) for what cannot be meant. What is in the files is checked when they are
    read, by `make_inputs`.
    """
    return BuildOptions(
        base=_image(base),
        pip_source=tuple(check_url(url, "--pip-source") for url in pip_source if url),
        apt_source=_apt_source(apt_source) if apt_source else None,
        ca_bundle=_existing(ca_bundle, "--ca-bundle", folder=False),
        wheelhouse=_existing(wheelhouse, "--wheelhouse", folder=True),
        platform=_matching(platform, _PLATFORM, "--platform", "os/architecture, like linux/amd64"),
        no_cache=no_cache,
        epoch=_epoch(epoch, environment),
        allow_unlocked=allow_unlocked,
        template=_existing(template, "--template", folder=False),
    )


def _apt_source(source: str) -> str | Path:
    if "://" in source:
        return check_url(source, "--apt-source")
    return _existing(source, "--apt-source", folder=False) or Path(source)


def _image(base: str | None) -> str | None:
    """A reference, or an image's id or the beginning of it, which reads as a reference too."""
    if base and find_reference(base) is None:
        raise FlagbenchError(
            f"--base cannot be {base!r}", remedy="write one like registry.example/base:1 or sha256:..."
        )
    return base or None


def _matching(value: str | None, pattern: re.Pattern[str], option: str, form: str) -> str | None:
    if not value:
        return None
    if pattern.fullmatch(value) is None:
        raise FlagbenchError(f"{option} cannot be {value!r}", remedy=f"write {form}")
    return value


def _existing(value: str | None, option: str, *, folder: bool) -> Path | None:
    if not value:
        return None
    try:
        path = Path(value).expanduser()
        there = path.is_dir() if folder else path.is_file()
    except (OSError, RuntimeError):  # a name that is too long, the home of nobody
        there = False
    if not there:
        raise FlagbenchError(
            f"{option} names no {'folder' if folder else 'file'}: {value!r}",
            remedy=f"name one that exists, or leave {option} out",
        )
    return path.absolute()


def _epoch(value: str | None, environment: Mapping[str, str]) -> int:
    """The time of the image's files: the option, else SOURCE_DATE_EPOCH, else a constant of ours."""
    option = "--epoch" if value else "SOURCE_DATE_EPOCH"
    text = value or environment.get("SOURCE_DATE_EPOCH") or ""
    if not text:
        return DEFAULT_EPOCH
    if option == "--epoch" and text == "commit":
        return commit_time()
    first, last = _EPOCH_RANGE
    if not re.fullmatch(r"[0-9]{1,12}", text) or not first <= int(text) <= last:
        raise FlagbenchError(
            f"{option} cannot be {text!r}",
            remedy=f"write whole seconds since 1970 from {first} (the year 1980) on, or `--epoch commit`",
        )
    return int(text)
