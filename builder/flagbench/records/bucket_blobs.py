"""Keeps the objects of a store in a bucket of an S3 server.

The requests are made by `flagbench_core.s3`, which images use, too. Here its errors become those of a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from flagbench.records.blobs import INDEX, INDEX_BYTES, Blob, Health, ListingDenied, StoreError, Unread, damaged
from flagbench.system.files import reason
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import Address, Bucket, Profile, S3Error, get_file, put_file, sha256_of
from flagbench_core.s3.client import CONNECTIONS


class BucketBlobs:
    """Objects below a prefix of a bucket; the server is AWS_ENDPOINT_URL, else Amazon's."""

    readers = CONNECTIONS
    """Objects that are worth reading at a time: one for each connection."""

    def __init__(self, address: Address) -> None:
        self.bucket = Bucket(address)

    @property
    def url(self) -> str:
        """The address of the store, such as s3://bucket/prefix."""
        return self.bucket.url

    def location(self, key: str) -> str:
        """Return the object's URL."""
        return self.bucket.location(key)

    @cached_property
    def profile(self) -> Profile:
        """What this kind of server promises. The first use may ask the server."""
        with store_errors():
            return self.bucket.profile

    @property
    def one_winner(self) -> bool:
        """Whether this kind of server promises that one of several simultaneous puts of a key wins."""
        return self.profile.one_winner

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Store an object; see Blobs.put_if_absent."""
        with store_errors():
            return self.bucket.put_if_absent(key, content)

    def get(self, key: str, limit: int) -> bytes:
        """Return the bytes of an object, checked; see Blobs.get."""
        try:
            return self.bucket.get(key, limit)
        except S3Error as error:
            if error.missing:
                raise damaged(self.location(key), "does not exist") from error
            if error.damaged:
                raise damaged(self.location(key), error.damage) from error
            raise Unread(error.message, remedy=error.remedy, code=ExitCode.DATA) from error

    def put_file(self, key: str, path: Path, sha256: str) -> bool:
        """Upload a file, in parts if it is large; see Blobs.put_file."""
        try:
            if sha256_of(path) != sha256:
                raise StoreError(f"{path} does not have the sha256 that its name has", remedy="remove the file")
            with store_errors():
                return put_file(self.bucket, key, path, sha256, content_type="application/gzip")
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {reason(error)}", remedy="make it readable for you") from error

    def get_file(self, key: str, path: Path, *, size: int, sha256: str) -> None:
        """Download an object, in parts; see Blobs.get_file."""
        try:
            get_file(self.bucket, key, path, size=size, sha256=sha256)
        except S3Error as error:
            if error.damaged or error.missing:
                raise StoreError(error.message, remedy=error.remedy, code=ExitCode.DATA) from error
            raise Unread(error.message, remedy=error.remedy, code=ExitCode.DATA) from error
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written: {reason(error)}", remedy="free some space, or name another folder"
            ) from error

    def list(self, prefix: str) -> Iterator[Blob]:
        """Yield the objects whose key begins with `prefix`; see Blobs.list.

        Raises ListingDenied if the user's access key may not list.
        """
        try:
            for listed in self.bucket.list(prefix):
                stamp = f"{listed.size}-{listed.etag}"
                yield Blob(listed.key, listed.size, stamp)
        except S3Error as error:
            code = _code_without_measurement(error)
            if error.denied:
                raise ListingDenied(error.message, remedy=error.remedy, code=code) from error
            raise StoreError(error.message, remedy=error.remedy, code=code) from error

    def delete(self, key: str) -> None:
        """Delete an object."""
        with store_errors():
            self.bucket.delete(key)

    def clear(self, prefix: str) -> None:
        """Delete all objects below a prefix."""
        blobs = list(
            self.list(prefix)
        )  # all of them first: a listing may skip objects if others are deleted meanwhile
        for blob in blobs:
            self.delete(blob.key)

    def read_index(self) -> bytes:
        """Return the cached listing; see Blobs.read_index."""
        try:
            content, _ = self.bucket.read(INDEX, INDEX_BYTES)
        except S3Error:
            return b""
        return content

    def write_index(self, content: bytes) -> None:
        """Replace the cached listing, the only object that is ever overwritten; see Blobs.write_index."""
        with suppress(S3Error):  # such as that of a key that may only read
            self.bucket.put(INDEX, content)

    def health(self) -> Health:
        """Return whether objects could be put now, as far as the server says that without a write."""
        location = self.url
        try:
            location = f"{self.url} at {self.bucket.endpoint}"
            keeps_versions = self.bucket.keeps_versions
            next(self.list("results/"), None)  # for its errors
        except ListingDenied:
            return Health(True, f"{location}: this key may not list; whether it may write is not known")
        except S3Error as error:
            return Health(False, error.message, error.remedy, code=_code_without_measurement(error))
        except StoreError as error:
            return Health(False, error.message, error.remedy, code=error.code)
        if keeps_versions:
            unsafe = self.bucket.unsafe_error("a record")
            return Health(False, unsafe.message, unsafe.remedy)
        caveat = ""
        if not self.profile.one_winner:
            caveat = "; two writers of one key at the same time may overwrite each other"
        elif not self.profile.known:
            caveat = "; whether it keeps what a store needs is not known before `flagbench store doctor` has tried it"
        return Health(True, f"{location} ({self.profile.title}){caveat}")


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn an S3Error into a StoreError: USAGE if the user's settings are wrong, else NOT_STORED."""
    try:
        yield
    except S3Error as error:
        code = ExitCode.NOT_STORED
        if error.usage:
            code = ExitCode.USAGE
        raise StoreError(error.message, remedy=error.remedy, code=code) from error


@contextmanager
def request_errors() -> Iterator[None]:
    """Turn an S3Error into a StoreError where no measurement could be lost: ENGINE for the network, else USAGE."""
    try:
        yield
    except S3Error as error:
        raise StoreError(error.message, remedy=error.remedy, code=_code_without_measurement(error)) from error


def _code_without_measurement(error: S3Error) -> ExitCode:
    """Return the exit code for a request by which nothing was to be stored."""
    if error.network:
        return ExitCode.ENGINE
    return ExitCode.USAGE
