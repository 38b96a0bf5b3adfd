"""Prepared folders in a bucket: below a prefix, `KIND/prepared.json` and its files as `KIND/files/SHA256`.

The index is put last and never overwritten unless asked: it is the commit point, so that readers see a folder whole
or not at all. A file's key is its content, so several versions of a folder share what they have in common, and what
is there is not sent again.
"""

import contextlib
import dataclasses
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from flagbench_cases.prepare import index
from flagbench_cases.shared.errors import CaseError, DataError, ExitCode
from flagbench_cases.shared.files import INDEX
from flagbench_cases.shared.s3 import Bucket, S3Error, parse_address

FILES = "files/"


class RemoteFolder(NamedTuple):
    """A prepared folder in a bucket."""

    bucket: Bucket
    base: str
    """What its keys begin with, below the prefix: `data/`; empty if the address names the folder itself."""
    content: bytes
    """`prepared.json`, byte for byte."""
    index: Dict[str, Any]

    @property
    def url(self) -> str:
        """Its address, with the kind of server where that was given."""
        return address_of(self.bucket, self.base)

    @property
    def files(self) -> Dict[str, Dict[str, Any]]:
        """Its files as listed in `prepared.json` ({"bytes": ..., "sha256": ...})."""
        return dict(self.index["files"])

    def key(self, name: str) -> str:
        """The key of a file."""
        return file_key(self.base, self.files[name]["sha256"])


def is_address(text: Optional[str]) -> bool:
    """Whether a text is meant as the address of a bucket."""
    return text is not None and text.lower().startswith("s3:")


def address_of(bucket: Bucket, base: str) -> str:
    """The address of a folder in a bucket."""
    return dataclasses.replace(bucket.address, prefix=bucket.name(base)).url


def file_key(base: str, sha256: str) -> str:
    """The key of a file with this content."""
    return "%s%s%s" % (base, FILES, sha256)


def open_bucket(url: str) -> Bucket:
    """The bucket at an address. Raises CaseError (usage)."""
    with bucket_errors():
        return Bucket(parse_address(url))


def find(url: str, case: str, kind: str, optional: bool = False) -> Optional[RemoteFolder]:
    """The prepared folder of a kind below an address, or at it; None if it is absent.

    A server answers a key that may not list with the same error for a missing object and a forbidden one. An
    `optional` folder is then taken for missing.

    Raises CaseError: data (3) for one that is damaged or of another case, network (15) if the bucket cannot be read.
    """
    bucket = open_bucket(url)
    denied: Optional[S3Error] = None
    for base in (kind + "/", ""):
        with bucket_errors(upload_again(case)):
            try:
                content = bucket.get(base + INDEX, index.MAX_BYTES)
            except S3Error as error:
                if error.denied and not _may_list(bucket, base):
                    denied = denied or error
                elif not error.missing:
                    raise
                continue
        where = bucket.location(base + INDEX)
        found = index.parse(content, where, case, kind)
        if not base and found["kind"] != kind:
            continue  # the address is that of a folder of the other kind
        index.check_use(found, where, case, kind)
        return RemoteFolder(bucket, base, content, found)
    if denied is not None and not optional:
        with bucket_errors():
            raise denied
    return None


def _may_list(bucket: Bucket, base: str) -> bool:
    """Whether the key may list a folder. Raises S3Error if the bucket cannot be read."""
    try:
        next(bucket.list(base), None)
    except S3Error as error:
        if error.denied:
            return False
        raise
    return True


def check_objects(folder: RemoteFolder, names: List[str], case: str) -> None:
    """Raise CaseError (data) if the object of a file is missing or has another size. Reads no object."""
    remedy = upload_again(case)
    for name in names:
        size, key = folder.files[name]["bytes"], folder.key(name)
        with bucket_errors():
            head = folder.bucket.head(key)
        where = "%s (%s)" % (folder.bucket.location(key), name)
        if head is None:
            raise DataError("%s does not exist" % where, remedy)
        if head.size != size:
            raise DataError("%s has %d bytes, not %d: it was changed or damaged" % (where, head.size, size), remedy)


def upload_first(case: str, url: str) -> str:
    """The remedy for a folder that is missing from a bucket."""
    return "give the address that was used as prepare --to, or upload it: flagbench prepare %s -o OUT --to %s" % (
        case,
        url,
    )


def upload_again(case: str) -> str:
    """The remedy for an object that is missing from a bucket, or damaged there."""
    return "remove that object if it is there, then upload the folder again: flagbench prepare %s -o OUT --to URL" % (
        case
    )


@contextlib.contextmanager
def bucket_errors(remedy: Optional[str] = None) -> Iterator[None]:
    """Turns an S3Error into a CaseError: usage (2) also for no such bucket, data (3) for a missing or changed object.

    Anything else is the network (15).

    Args:
        remedy: the one for a missing or changed object; None keeps that of the S3Error.
    """
    try:
        yield
    except S3Error as error:
        code = ExitCode.ENGINE
        if error.usage or error.no_bucket:
            code = ExitCode.USAGE
        elif error.damaged or error.missing or error.taken:
            code = ExitCode.DATA
        own = code is not ExitCode.DATA or remedy is None
        raise CaseError(error.message, error.remedy if own else str(remedy), code) from error
