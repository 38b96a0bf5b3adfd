"""Prepared folders in a bucket: below a prefix, `KIND/prepared.json` and its files as `KIND/files/SHA256`.

The index is put last and never overwritten unless asked: it is the commit point, so that readers see a folder whole
or not at all. A file's key is its content, so several versions of a folder share what they have in common, and what
is there is not sent or fetched again.
"""

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional

from flagbench_cases.prepare import cache
from flagbench_cases.prepare.prepared_folder import (
    MAX_INDEX_BYTES,
    PreparedFolder,
    check_use,
    parse_index,
)
from flagbench_cases.prepare.progress import Progress
from flagbench_cases.shared.errors import CaseError, DataError, UsageError
from flagbench_cases.shared.files import INDEX, Reading
from flagbench_core.exit_codes import ExitCode
from flagbench_core.s3 import Bucket, S3Error, get_file, parse_address, put_file


class RemoteFolder(NamedTuple):
    """A prepared folder in a bucket."""

    bucket: Bucket
    base: str
    """What its keys begin with, below the prefix: `data/`; empty if the address names the folder itself."""
    content: bytes
    """`prepared.json`, byte for byte."""
    files: Dict[str, Dict[str, Any]]
    """As listed in `prepared.json` ({"bytes": ..., "sha256": ...})."""
    target: str
    """Its folder in the cache."""

    @property
    def complete(self) -> bool:
        """Whether the cache has it."""
        return cache.is_complete(self.target, self.files)


def is_address(text: Optional[str]) -> bool:
    """Whether a text is meant as the address of a bucket."""
    return text is not None and text.lower().startswith("s3:")


def open_bucket(url: str) -> Bucket:
    """The bucket at an address. Raises CaseError (usage)."""
    with bucket_errors():
        return Bucket(parse_address(url))


def fetch(plan: Dict[str, Any], progress: Progress, results: Dict[str, Any]) -> None:
    """Fetch the kinds in `plan["sources"]`, by kind: {"url", "optional"}; only look where `plan["survey"]`.

    All indexes are read before anything is fetched. An optional kind that is not there is left out of the results.
    Raises CaseError.
    """
    case, found = plan["case"], {}
    with bucket_errors(_upload_again(case)):
        for kind, source in plan["sources"].items():
            folder = find(open_bucket(source["url"]), case, kind, source["optional"])
            if folder is not None:
                found[kind] = folder
            elif not source["optional"]:
                raise DataError("%s has no prepared %s of %s" % (source["url"], kind, case), _upload_again(case))
        for kind, folder in found.items():
            if not plan["survey"] and not folder.complete:
                progress.begin(kind)
                _fill_cache(folder, found, progress)
    for kind, folder in found.items():
        url = _address(folder.bucket, folder.base)
        results[kind] = {"url": url, "folder": folder.target, "complete": folder.complete}


def find(bucket: Bucket, case: str, kind: str, optional: bool = False) -> Optional[RemoteFolder]:
    """The prepared folder of a kind below an address, or at it; None if it is absent.

    A server tells a key that may not list that a missing object is forbidden. An `optional` folder is then taken for
    missing. Raises S3Error, and DataError for an index that is damaged or of another case.
    """
    denied: Optional[S3Error] = None
    for base in (kind + "/", ""):
        try:
            content = bucket.get(base + INDEX, MAX_INDEX_BYTES)
        except S3Error as error:
            if not (error.missing or error.denied):
                raise
            denied = error if error.denied else denied
            continue
        where = bucket.location(base + INDEX)
        index = parse_index(content, where, case, kind)
        if base or index["kind"] == kind:  # else the address is that of a folder of the other kind
            check_use(index, where, case, kind)
            return RemoteFolder(bucket, base, content, index["files"], cache.folder_of(case, kind, content))
    if denied is not None and not optional:
        raise denied
    return None


def _fill_cache(folder: RemoteFolder, found: Dict[str, RemoteFolder], progress: Progress) -> None:
    """Fetch the files of a folder that the cache does not have; one process at a time, for which others wait.

    There must be room for all folders that are `found`. Raises S3Error and CaseError.
    """

    def waiting() -> None:
        progress.say("another process is fetching the same data; waiting for it")

    with cache.locked(folder.target, waiting):
        if folder.complete:  # another process has fetched it meanwhile
            return
        cache.check_room(sum(sum(cache.missing(each.target, each.files).values()) for each in found.values()))
        reading = Reading("fetch", sum(cache.missing(folder.target, folder.files).values()), progress)
        try:
            for name, facts in sorted(folder.files.items()):
                key, path = _file_key(folder.base, facts), Path(folder.target, name)
                size, sha256 = facts["bytes"], facts["sha256"]
                get_file(folder.bucket, key, path, size=size, sha256=sha256, show=reading.add)
            cache.finish(folder.target, folder.content)
        except OSError as error:
            words = "%s cannot be written (%s)" % (folder.target, error.strerror or error)
            raise DataError(words, "free space there, or set %s to another folder" % cache.VARIABLE) from None


def upload(plan: Dict[str, Any], folders: Dict[str, PreparedFolder], progress: Progress) -> Dict[str, str]:
    """Upload prepared folders, by kind, each file under its sha256 and the index last; returns their addresses.

    Raises CaseError, before anything is sent if the bucket has another folder of a kind, unless `plan["force"]`, or
    cannot refuse to overwrite one; OSError if a file cannot be read.
    """
    bucket, force = open_bucket(plan["to"]), plan["force"]
    with bucket_errors():
        for kind, folder in folders.items():
            _check_target(bucket, kind, _index_of(folder), force)
        for kind, folder in folders.items():
            progress.begin(kind)
            reading = Reading("upload", sum(facts["bytes"] for facts in folder.files.values()), progress)
            for name, facts in sorted(folder.files.items()):
                key, path = _file_key(kind + "/", facts), Path(folder.path(name))
                if not put_file(bucket, key, path, facts["sha256"], show=reading.add):
                    reading.add(facts["bytes"])
            key, content = "%s/%s" % (kind, INDEX), _index_of(folder)
            if force:
                bucket.put(key, content)
            elif not bucket.put_if_absent(key, content):
                raise _taken(bucket, kind)
    return {kind: _address(bucket, kind + "/") for kind in folders}


def _check_target(bucket: Bucket, kind: str, content: bytes, force: bool) -> None:
    """Raise UsageError if the bucket has another folder of this kind, S3Error if it may overwrite one unasked."""
    key = "%s/%s" % (kind, INDEX)
    if bucket.keeps_versions:
        raise bucket.unsafe(key)
    try:
        if not force and bucket.read(key, len(content))[0] != content:
            raise _taken(bucket, kind)
    except S3Error as error:
        if not (error.missing or error.denied):
            raise


def _index_of(folder: PreparedFolder) -> bytes:
    with open(os.path.join(folder.folder, INDEX), "rb") as file:
        return file.read()


def _taken(bucket: Bucket, kind: str) -> UsageError:
    return UsageError(
        "%s has other prepared %s" % (bucket.url, kind), "use another prefix, or replace what is there with --force"
    )


def _file_key(base: str, facts: Dict[str, Any]) -> str:
    """The key of a file."""
    return "%sfiles/%s" % (base, facts["sha256"])


def _address(bucket: Bucket, base: str) -> str:
    """The address of a folder in a bucket."""
    return dataclasses.replace(bucket.address, prefix=bucket.name(base)).url


def _upload_again(case: str) -> str:
    """The remedy for an object that is missing or damaged."""
    return "remove the object if it is there, and upload the folder: flagbench prepare %s -o OUT --to URL" % case


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
