"""What is in a bundle: `manifest.json` names every file with its size and sha256, and `SHA256SUMS` names that."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from flagbench.record.model import Builder
from flagbench.record.scalars import Count, Time
from flagbench.reproduce.archive import MOST_FILES, files_below
from flagbench.stores.bundle_check import BundleError, is_plain
from flagbench.terminal import brief

VERSION = "reproduction/v1"
MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
SIGNATURES = {"minisign": f"{MANIFEST}.minisig", "cosign": f"{MANIFEST}.sigstore.json"}
"""The file of a detached signature of the manifest, by the tool that makes it."""
MANIFEST_BYTES = 4 * 2**20
_SIGNATURE_BYTES = 2**20
_CHUNK = 2**20

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a bundle."""

    path: str
    size: Count
    """Bytes."""
    sha256: Sha256


class Manifest(Struct, frozen=True):
    """The manifest of a bundle."""

    claim: str
    verdict: str
    """The verdict on the whole, in one word."""
    created_at: Time
    flagbench: Builder
    files: Annotated[tuple[Entry, ...], Meta(max_length=MOST_FILES)]
    """All of them but the manifest, its sums and its signature, sorted by path."""

    def to_json(self) -> bytes:
        """The bytes of the file."""
        document: dict[str, Any] = {"schema": VERSION, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def entries_of(folder: Path) -> tuple[Entry, ...]:
    """Every file below a folder, sorted by path. Raises OSError."""
    return tuple(Entry(name, path.stat().st_size, digest_of(path)) for name, path in sorted(files_below(folder)))


def digest_of(path: Path) -> str:
    """The sha256 of a file, as hexadecimal digits. Raises OSError."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(partial(file.read, _CHUNK), b""):
            found.update(chunk)
    return found.hexdigest()


def sums_of(folder: Path) -> bytes:
    """The content of SHA256SUMS, as `sha256sum -c` reads it: the manifest, and its signature if there is one."""
    names = [name for name in (MANIFEST, *SIGNATURES.values()) if (folder / name).is_file()]
    return "".join(f"{digest_of(folder / name)}  {name}\n" for name in names).encode()


def signature_of(folder: Path) -> tuple[str, Path] | None:
    """The tool that signed the manifest, and its signature; None if it is not signed."""
    found = [(tool, folder / name) for tool, name in SIGNATURES.items() if (folder / name).exists()]
    return found[0] if found else None


def check_files(folder: Path) -> Manifest:
    """The manifest of an unpacked bundle, once every file is as it says, and none is more or less.

    Raises BundleError, and OSError where something cannot be read.
    """
    found = dict(files_below(folder))
    for name in (MANIFEST, SUMS):
        if name not in found:
            raise BundleError(f"it has no {name}")
    signatures = sorted(found.keys() & set(SIGNATURES.values()))
    if len(signatures) > 1:
        raise BundleError(f"it has several signatures: {', '.join(signatures)}")
    for name, limit in ((MANIFEST, MANIFEST_BYTES), *((name, _SIGNATURE_BYTES) for name in signatures)):
        if (size := found[name].stat().st_size) > limit:
            raise BundleError(f"its {name} has {size:,} bytes, more than the {limit:,} allowed")
    expected = sums_of(folder)
    if found[SUMS].stat().st_size != len(expected) or found[SUMS].read_bytes() != expected:
        raise BundleError(f"{' and '.join((MANIFEST, *signatures))} are not as {SUMS} says")
    manifest = _parsed(found[MANIFEST].read_bytes())
    for name in (MANIFEST, SUMS, *signatures):
        del found[name]
    named = {entry.path: entry for entry in manifest.files}
    if len(named) != len(manifest.files):
        raise BundleError(f"its {MANIFEST} names a file twice")
    for name in sorted(found.keys() | named.keys()):
        if name not in named:
            raise BundleError(f"{brief(name)!r} in it is not in its {MANIFEST}")
        if name not in found:
            raise BundleError(f"{brief(name)!r} of its {MANIFEST} is missing")
        size, digest = found[name].stat().st_size, named[name].sha256
        if size != named[name].size:
            raise BundleError(
                f"{brief(name)!r} in it has {size:,} bytes, not the {named[name].size:,} of its manifest"
            )
        if (other := digest_of(found[name])) != digest:
            raise BundleError(f"{brief(name)!r} in it has changed: its sha256 is {other}, not {digest}")
    return manifest


def _parsed(content: bytes) -> Manifest:
    try:
        version = msgspec.json.decode(content, type=_Schema).schema
        if version != VERSION:
            raise BundleError(f"its {MANIFEST} is {brief(str(version))}; this flagbench reads {VERSION}")
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BundleError(f"its {MANIFEST} cannot be read: {brief(str(error))}") from error
    for entry in manifest.files:
        if not is_plain(entry.path) or entry.path in (MANIFEST, SUMS, *SIGNATURES.values()):
            raise BundleError(f"its {MANIFEST} names {brief(entry.path)!r}, which is no file of a bundle")
    return manifest


class _Schema(Struct):
    schema: Any = None
