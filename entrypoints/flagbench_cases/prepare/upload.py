"""The child process that uploads prepared folders to a bucket, `python -m flagbench_cases.prepare.upload FOLDER`.

Files first, each under a key with its sha256, then the index, which is the commit point. Files that are there already
are not sent again.
"""

import os
import sys
from pathlib import Path
from typing import Any, Dict

from flagbench_cases.prepare import child, prepared_folder
from flagbench_cases.prepare.bucket import (
    address_of,
    bucket_errors,
    file_key,
    open_bucket,
)
from flagbench_cases.prepare.job import as_json, kinds_in
from flagbench_cases.prepare.meter import Meter
from flagbench_cases.prepare.prepared_folder import PreparedFolder
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.files import INDEX, Reading
from flagbench_cases.shared.s3 import Bucket, S3Error, put_file


def work(plan: Dict[str, Any], meter: Meter, results: Dict[str, Any]) -> None:
    """Upload prepared folders; adds their facts by kind. Raises CaseError."""
    bucket = open_bucket(plan["to"])
    opened = {}
    for kind in plan["kinds"] or kinds_in(plan["out"]):
        meter.subject = kind
        # What was converted by this command has just been read for its checksums.
        thorough = not plan["kinds"]
        opened[kind] = prepared_folder.open_folder(plan["out"], plan["case"], kind, thorough=thorough, report=meter)
        meter.end_phase()
    for kind, folder in opened.items():
        check_target(bucket, kind, _index_of(folder), plan["force"])
    for kind, folder in opened.items():
        meter.subject = kind
        upload(bucket, folder, plan["force"], meter)
        results[kind] = dict(as_json(folder), url=address_of(bucket, kind + "/"))
        meter.end_phase()


def check_target(bucket: Bucket, kind: str, content: bytes, force: bool) -> None:
    """Raise CaseError, before anything is sent, if the bucket has another folder of this kind there, unless `force`,
    or if it cannot refuse to overwrite one."""
    key = "%s/%s" % (kind, INDEX)
    with bucket_errors():
        if bucket.keeps_versions:
            raise bucket.unsafe(key)
        if force:
            return
        try:
            found, _ = bucket.read(key, len(content))
        except S3Error as error:
            if error.missing or error.denied:
                return
            raise
    if found != content:
        raise _taken(bucket, kind)


def upload(bucket: Bucket, folder: PreparedFolder, force: bool, meter: Meter) -> None:
    """Upload one folder. Raises CaseError, and OSError if a file cannot be read."""
    base, content = folder.kind + "/", _index_of(folder)
    reading = Reading("upload", sum(facts["bytes"] for facts in folder.files.values()), meter)
    with bucket_errors():
        for name, facts in sorted(folder.files.items()):
            put_file(
                bucket,
                file_key(base, facts["sha256"]),
                Path(folder.path(name)),
                facts["sha256"],
                show=reading.add,
            )
        if force:
            bucket.put(base + INDEX, content)
            return
        committed = bucket.put_if_absent(base + INDEX, content)
    if not committed:
        raise _taken(bucket, folder.kind)


def _index_of(folder: PreparedFolder) -> bytes:
    with open(os.path.join(folder.folder, INDEX), "rb") as file:
        return file.read()


def _taken(bucket: Bucket, kind: str) -> UsageError:
    return UsageError(
        "%s has other prepared %s" % (bucket.url, kind), "use another prefix, or replace what is there with --force"
    )


def kept(plan: Dict[str, Any], results: Dict[str, Any]) -> str:
    """What a failure leaves, for its remedy."""
    return "; run it again without sources to upload the rest"


if __name__ == "__main__":
    sys.exit(child.serve(sys.argv[1], work, kept))
