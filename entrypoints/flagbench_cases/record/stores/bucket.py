"""A store in a bucket of an S3 server, where a record is one create-only put; the work is done by `shared.s3`."""

from pathlib import Path
from typing import Any, Dict, Optional

from flagbench_cases.record.stores import layout
from flagbench_cases.record.stores.store import Bundle, not_stored
from flagbench_cases.shared.errors import CaseError, UsageError
from flagbench_cases.shared.s3 import Bucket, S3Error, parse_address, put_file


class BucketStore:
    """Records and bundles below a prefix of a bucket; the server is AWS_ENDPOINT_URL, else Amazon's."""

    def __init__(self, url: str) -> None:
        try:
            self._bucket = Bucket(parse_address(url))
        except S3Error as error:
            raise UsageError("--store: %s" % error.message, error.remedy) from None
        self.name = self._bucket.url
        self.meant_for: Optional[str] = self._bucket.url

    def check(self, node: int) -> None:
        """Find out, without writing, whether the bucket can be reached and never overwrites. Raises UsageError."""
        try:
            if self._bucket.keeps_versions:
                raise self._bucket.unsafe("a record")
            try:
                next(self._bucket.list("results/"), None)
            except S3Error as error:
                if not error.denied:  # a key that may only write, and ask for versions, is enough
                    raise
        except S3Error as error:
            raise UsageError("the store cannot be used: %s" % error.message, error.remedy) from None

    def put_record(self, record: Dict[str, Any], line: str) -> str:
        """Store a record, unless another one has its id; returns its URL. Raises CaseError (14)."""
        key = layout.record_key(record)
        try:
            stored = self._bucket.put_if_absent(key, (line + "\n").encode("utf-8"))
        except S3Error as error:
            raise _failed(error) from None
        if not stored:
            raise not_stored(
                "another record is already stored as %s" % self._bucket.location(key),
                "compare the two: a record's id is made once, and stored records never change",
            )
        return self._bucket.location(key)

    def put_bundle(self, record_id: str, bundle: Bundle) -> str:
        """Upload a bundle, in parts if it is large; returns its URL. Raises CaseError (14)."""
        key = layout.bundle_key(record_id, bundle.node, bundle.sha256)
        try:
            put_file(self._bucket, key, Path(bundle.path), bundle.sha256, content_type="application/gzip")
        except S3Error as error:
            raise _failed(error) from None
        except OSError as error:
            raise not_stored("the bundle cannot be read (%s)" % (error.strerror or error), "run again") from None
        return self._bucket.location(key)


def _failed(error: S3Error) -> CaseError:
    return not_stored(error.message, error.remedy)
