"""The child process that fetches prepared folders from a bucket, `python -m flagbench_cases.prepare.fetch FOLDER`.

First the indexes are read and checked, then the sizes of all objects, then the room on the disk; only then a file is
read. Files that are in the cache are not fetched again.
"""

import contextlib
import sys
from pathlib import Path
from typing import Any, Dict, List

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
from flagbench_cases.shared.files import Reading
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
            "complete": cache.is_complete(targets[kind], folder.files),
        }


def fetch_all(case: str, found: Dict[str, RemoteFolder], targets: Dict[str, str], meter: Meter) -> None:
    """Fetch folders that the cache does not have completely, after checking all of them. Raises CaseError.

    One process at a time does so; others wait until it has finished.
    """

    def waiting() -> None:
        meter.say("another process is fetching the same data; waiting for it")

    def wanted() -> List[str]:
        return [kind for kind in sorted(found) if not cache.is_complete(targets[kind], found[kind].files)]

    for kind in wanted():
        check_objects(found[kind], sorted(cache.missing(targets[kind], found[kind].files)), case)
    with contextlib.ExitStack() as locks:
        for kind in wanted():  # sorted: every process takes the locks in the same order
            cache.make(targets[kind])
            locks.enter_context(cache.locked(targets[kind], waiting))
        incomplete = wanted()
        for kind in incomplete:
            cache.remove_leftovers(targets[kind])
        missing = (cache.missing(targets[kind], found[kind].files) for kind in incomplete)
        cache.check_room(sum(sum(sizes.values()) for sizes in missing))
        for kind in incomplete:
            meter.subject = kind
            fetch(case, found[kind], targets[kind], meter)
            meter.end_phase()


def fetch(case: str, folder: RemoteFolder, target: str, meter: Meter) -> None:
    """Fetch one folder; files that are there are read for their checksums. Raises CaseError."""
    reading = Reading("fetch", index.total_bytes(folder.index), meter)
    try:
        for name, facts in sorted(folder.files.items()):
            with bucket_errors(upload_again(case)):
                get_file(
                    folder.bucket,
                    folder.key(name),
                    Path(target, name),
                    size=facts["bytes"],
                    sha256=facts["sha256"],
                    show=reading.add,
                )
        cache.finish(target, folder.content)
    except OSError as error:
        raise DataError("%s cannot be written (%s)" % (target, error.strerror or error), _remedy(error)) from None


def _remedy(error: OSError) -> str:
    if error.errno in FULL:
        return "free space there and run again, or set %s to a folder on another disk" % cache.VARIABLE
    return "set %s to a folder where you may write" % cache.VARIABLE


if __name__ == "__main__":
    sys.exit(child.serve(sys.argv[1], work))
