"""The child process that fetches prepared folders from a bucket, `python -m flagbench_cases.prepare.fetch FOLDER`.

First the indexes are read and checked, then the sizes of all objects, then the room on the disk; only then a file is
read. What is in the cache is not fetched again, and an interrupted download is resumed.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any, Dict

from flagbench_cases.prepare import cache, child, index
from flagbench_cases.prepare.bucket import (
    RemoteFolder,
    bucket_errors,
    check_objects,
    find,
    upload_again,
    upload_first,
)
from flagbench_cases.prepare.meter import Meter
from flagbench_cases.prepare.writer import FULL
from flagbench_cases.shared.errors import DataError
from flagbench_cases.shared.files import INDEX, Reading
from flagbench_cases.shared.s3 import get_file


def work(plan: Dict[str, Any], meter: Meter, results: Dict[str, Any]) -> None:
    """Fetch the kinds in `plan["sources"]`, by kind: {"url", "optional"}; only look where `plan["survey"]`.

    An optional one that is not there is left out of the results. Raises CaseError.
    """
    case = plan["case"]
    cache.check_owner()
    found: Dict[str, RemoteFolder] = {}
    for kind, source in plan["sources"].items():
        folder = find(source["url"], case, kind, source["optional"])
        if folder is not None:
            found[kind] = folder
        elif not source["optional"]:
            raise DataError(
                "%s has no prepared %s of %s" % (source["url"], kind, case), upload_first(case, source["url"])
            )
    targets = {kind: cache.folder_of(case, kind, folder.content) for kind, folder in found.items()}
    if not plan["survey"]:
        fetch_all(case, found, targets, meter)
    for kind, folder in found.items():
        results[kind] = {
            "url": folder.url,
            "folder": targets[kind],
            "digest": index.digest_of(folder.files),
            "bytes": index.total_bytes(folder.index),
            "complete": cache.is_complete(targets[kind], folder.content, folder.files),
        }


def fetch_all(case: str, found: Dict[str, RemoteFolder], targets: Dict[str, str], meter: Meter) -> None:
    """Fetch folders that the cache does not have completely, after checking all of them. Raises CaseError."""
    wanted = [
        kind for kind, folder in found.items() if not cache.is_complete(targets[kind], folder.content, folder.files)
    ]
    need = 0
    for kind in wanted:
        missing = cache.missing(targets[kind], found[kind].files)
        check_objects(found[kind], sorted(missing), case)
        need += sum(missing.values())
    for kind in wanted:
        cache.make(targets[kind])
    if wanted:
        cache.check_room(need)
    for kind in wanted:
        meter.subject = kind
        fetch(case, found[kind], targets[kind], meter)
        meter.end_phase()


def fetch(case: str, folder: RemoteFolder, target: str, meter: Meter) -> None:
    """Fetch one folder, unless another process does so meanwhile. Raises CaseError."""

    def waiting() -> None:
        meter.say("%s: another process is fetching %s; waiting for it" % (meter.subject, folder.url))

    with cache.locked(target, waiting):
        if cache.is_complete(target, folder.content, folder.files):
            return
        reading = Reading("fetch", index.total_bytes(folder.index), meter)
        try:
            _forget_index(target)
            for name in sorted(folder.files):
                _fetch_file(case, folder, name, Path(target), reading)
            cache.finish(target, folder.content)
        except OSError as error:
            raise DataError("%s cannot be written (%s)" % (target, error.strerror or error), _remedy(error)) from None


def _fetch_file(case: str, folder: RemoteFolder, name: str, target: Path, reading: Reading) -> None:
    facts = folder.files[name]
    with bucket_errors(upload_again(case, folder.bucket, folder.base)):
        get_file(
            folder.bucket,
            folder.key(name),
            target / name,
            size=facts["bytes"],
            sha256=facts["sha256"],
            show=reading.add,
        )


def _forget_index(target: str) -> None:
    """A folder that lacks a file is not complete, whatever index it has."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(target, INDEX))


def _remedy(error: OSError) -> str:
    if error.errno in FULL:
        return "free space there and run again, which resumes, or set %s to a folder on another disk" % cache.VARIABLE
    return "set %s to a folder where you may write" % cache.VARIABLE


if __name__ == "__main__":
    sys.exit(child.serve(sys.argv[1], work))
