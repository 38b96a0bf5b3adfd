"""Stores a run's record and bundles, the archives of its raw evidence, in a folder or in a bucket."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Protocol

from flagbench_cases.shared import files, output
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.redaction import redact
from flagbench_core import store_layout
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import Bucket, S3Error, parse_address, put_file

STORE_VARIABLE = "FLAGBENCH_STORE"
"""The environment variable with the address of the store, used if --store is not given."""


class Bundle(NamedTuple):
    """A bundle of a node's evidence, written to a file."""

    path: str
    node: int
    """The number of the node, from 0."""
    sha256: str
    bytes: int
    """The size of the file."""


class Store(Protocol):
    """A place for the results of a run."""

    name: str
    """The address as messages show it, without credentials."""
    meant_for: str | None
    """The address that is written next to results that wait for this store; None if results never have to wait."""

    def check(self) -> None:
        """Check before the run that results can be stored. Raises CaseError: ENGINE (ENGINE), else USAGE."""

    def put_record(self, record: dict[str, Any], line: str) -> str:
        """Store a record without replacing another one; returns its path or URL. Raises CaseError (NOT_STORED)."""

    def put_bundle(self, record_id: str, bundle: Bundle) -> str:
        """Store a bundle; returns its path or URL. Raises CaseError (NOT_STORED)."""


class FolderStore:
    """Records, each with a checksum file, and bundles, whose names contain their checksums, in one folder."""

    meant_for: str | None = None

    def __init__(self, root: str) -> None:
        self.root = root
        self.name = root

    def check(self) -> None:
        """Create the folder if necessary, and find out whether it can be written to. Raises UsageError."""
        output.check_folder("the store", self.root)

    def put_record(self, record: dict[str, Any], line: str) -> str:
        """Write a record and its checksum; returns the path of the record. The checksum is written first, so that a
        record never exists without one.

        Raises CaseError (NOT_STORED) if the record cannot be written or already exists.
        """
        folder, name = os.path.split(os.path.join(self.root, record_key(record)))
        sha256 = hashlib.sha256((line + "\n").encode("utf-8")).hexdigest()
        checksum = store_layout.CHECKSUM_TEXT.format(sha256=sha256, name=name)
        output.write_file(folder, store_layout.CHECKSUM.format(name=name), checksum.rstrip("\n"))
        return output.write_file(folder, name, line)

    def put_bundle(self, record_id: str, bundle: Bundle) -> str:
        """Copy a bundle into the folder; returns its path. Raises CaseError (NOT_STORED)."""
        return copy_bundle(bundle, os.path.join(self.root, bundle_key(record_id, bundle)))


class BucketStore:
    """Records and bundles below a prefix of a bucket; the server is AWS_ENDPOINT_URL, else Amazon's."""

    def __init__(self, url: str) -> None:
        with _raising(UsageError, "--store: "):
            self._bucket = Bucket(parse_address(url))
        self.name = self._bucket.url
        self.meant_for: str | None = self._bucket.url

    def check(self) -> None:
        """Find out whether this key may write to the bucket, and whether the bucket never replaces an object.

        Raises CaseError: ENGINE (ENGINE), else USAGE.
        """
        try:
            self._bucket.check_keeps()
        except S3Error as error:
            message = f"--store: {error.message}"
            if error.network:
                raise CaseError(message, error.remedy, ExitCode.ENGINE) from None
            raise UsageError(message, error.remedy) from None

    def put_record(self, record: dict[str, Any], line: str) -> str:
        """Store a record, unless another one has its id; returns its URL. Raises CaseError (NOT_STORED)."""
        key = record_key(record)
        with _raising(_not_stored):
            if self._bucket.put_if_absent(key, (line + "\n").encode("utf-8")):
                return self._bucket.location(key)
        raise _not_stored(
            f"another record is already stored as {self._bucket.location(key)}",
            "compare the two: a record's id is made once, and stored records never change",
        )

    def put_bundle(self, record_id: str, bundle: Bundle) -> str:
        """Upload a bundle, in parts if it is large; returns its URL. Raises CaseError (NOT_STORED)."""
        key = bundle_key(record_id, bundle)
        with _raising(_not_stored):
            put_file(self._bucket, key, Path(bundle.path), bundle.sha256, content_type="application/gzip")
        return self._bucket.location(key)


def open_store(url: str | None) -> Store | None:
    """Return the store with the address `url`, or else that in FLAGBENCH_STORE; None if neither is set.

    Does not use the network. Raises UsageError.
    """
    if url is None:
        url = os.environ.get(STORE_VARIABLE)
        if not url:
            return None
    if url.lower().startswith("s3:"):
        return BucketStore(url)
    try:
        return FolderStore(os.path.abspath(store_layout.folder_of(url)))
    except store_layout.AddressError as error:
        raise UsageError(f"--store {redact(url)} cannot be used: {error}", redact(error.remedy)) from None


def record_key(record: dict[str, Any]) -> str:
    """Return the key of a record in a store."""
    names = {name: record[name] for name in ("case", "stack", "record_id")}
    return store_layout.RECORD.format(day=record["created_at"][:10], **names)


def bundle_key(record_id: str, bundle: Bundle) -> str:
    """Return the key of a node's bundle in a store.

    It contains the checksum, because an upload in parts replaces an object with the same key when it completes.
    """
    return store_layout.BUNDLE.format(record_id=record_id, node=bundle.node, sha256=bundle.sha256)


def copy_bundle(bundle: Bundle, path: str) -> str:
    """Copy a bundle to a file atomically; returns the path. Raises CaseError (NOT_STORED)."""
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name}.part")
    try:
        os.makedirs(folder, exist_ok=True)
        shutil.copyfile(bundle.path, part)
        files.sync(part)
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise _not_stored(
            f"the bundle could not be written to {path} ({error.strerror or error})",
            "use a writable folder with free space; the record may still be on stdout",
        ) from None
    return path


def _not_stored(message: str, remedy: str) -> CaseError:
    return CaseError(message, remedy, ExitCode.NOT_STORED)


@contextlib.contextmanager
def _raising(kind: Callable[[str, str], CaseError], begin: str = "") -> Iterator[None]:
    """Raise an error made by `kind` instead of an error of a bucket or of a file to upload.

    `kind` takes the message, which starts with `begin`, and the remedy.
    """
    try:
        yield
    except S3Error as error:
        raise kind(begin + error.message, error.remedy) from None
    except OSError as error:
        raise kind(f"{begin}a file cannot be read ({error.strerror or error})", "run again") from None
