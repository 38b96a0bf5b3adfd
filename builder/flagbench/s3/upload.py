"""A file to a bucket: a large one in parts, of which an interrupted upload leaves those that were sent.

A key names its content (it contains a sha256), because the end of an upload in parts may overwrite on servers that
refuse an overwriting put: two writers of one key then write the same bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flagbench.s3.bucket import Bucket
from flagbench.s3.errors import S3Error
from flagbench.s3.parts import PART_BYTES, Show, md5, part_bytes
from flagbench.s3.threads import run_all

_ATTEMPTS = 3
"""Of an upload that another writer of the same file ends."""


def put_file(
    bucket: Bucket,
    key: str,
    path: Path,
    sha256: str,
    *,
    content_type: str = "application/octet-stream",
    show: Show = lambda count: None,
    **more: Any,
) -> bool:
    """Keep a file under a key that contains its sha256. Whether it was sent: False where it was there already.

    A large one is sent in parts; parts that an earlier, interrupted upload has sent are not sent again. `more`:
    further arguments of boto3's put_object and create_multipart_upload, such as ACL.

    Raises S3Error, of which `damaged` where other bytes are there, and OSError where the file cannot be read.
    """
    if sha256 not in key:
        raise ValueError(f"the key {key!r} does not name its content")
    size = path.stat().st_size
    there = _is_there(bucket, key, size, sha256)
    if there:
        show(size)
        return False
    if size <= PART_BYTES:
        return _put_whole(bucket, key, path.read_bytes(), sha256, content_type, show, more)
    upload = _Upload(bucket, key, path, size, sha256, content_type, more)
    for attempt in range(_ATTEMPTS):
        try:
            upload.send(show if attempt == 0 else lambda count: None)
        except S3Error as error:
            # Put together already: by us, and the answer was lost, or by another writer of the same file.
            if error.code != "NoSuchUpload" or attempt == _ATTEMPTS - 1:
                raise
        if _is_there(bucket, key, size, sha256) is not False:
            return True
    raise S3Error(f"{bucket.location(key)} was uploaded and is not there", "upload it again")


def _is_there(bucket: Bucket, key: str, size: int, sha256: str) -> bool | None:
    """Whether an object is there; None where the key may not ask."""
    try:
        head = bucket.head(key)
    except S3Error as error:
        if error.denied:
            return None
        raise
    if head is None:
        return False
    if (head.size, head.sha256) != (size, sha256):
        raise S3Error(
            f"{bucket.location(key)} is there with other bytes, or without the sha256 of these in its metadata",
            "remove it, then upload it again",
            damaged=True,
        )
    return True


def _put_whole(
    bucket: Bucket, key: str, content: bytes, sha256: str, content_type: str, show: Show, more: dict[str, Any]
) -> bool:
    sent = bucket.create(key, content, content_type, **more) is not None
    # Taken: by our own put, whose answer was lost, or by another writer, and the key names the content.
    if not sent and _is_there(bucket, key, len(content), sha256) is False:
        raise S3Error(f"{bucket.location(key)} was removed while it was uploaded", "upload it again")
    show(len(content))
    return sent


class _Upload:
    """An upload in parts, new or resumed."""

    def __init__(
        self, bucket: Bucket, key: str, path: Path, size: int, sha256: str, content_type: str, more: dict[str, Any]
    ) -> None:
        self.bucket, self.key, self.path, self.size = bucket, key, path, size
        self.part = part_bytes(size)
        self.count = -(-size // self.part)
        self.begin = {"ContentType": content_type, "Metadata": {"sha256": sha256}, **more}
        self.etags: dict[int, str] = {}

    def send(self, show: Show) -> None:
        """Send what is missing, and put the parts together."""
        name = self.bucket.name(self.key)
        identity, there = self._resumed() or (self._begun(), {})
        lock = threading.Lock()

        def send_part(number: int) -> None:
            with self.path.open("rb") as file:
                file.seek((number - 1) * self.part)
                content = file.read(self.part)
            etag = there.get((number, len(content)))
            # The signature has a sum of the content, so a server needs no other one to check what it receives.
            if etag is None or etag.lower() != md5(content).hex():
                answer = self.bucket.ask(
                    "upload_part",
                    Key=name,
                    UploadId=identity,
                    PartNumber=number,
                    Body=content,
                    what=f"part {number} of {self.bucket.location(self.key)} was not confirmed as stored",
                )
                etag = answer["ETag"].strip('"')
            with lock:
                self.etags[number] = etag
                show(len(content))

        def task(number: int) -> Callable[[], None]:
            return lambda: send_part(number)

        run_all(task(number) for number in range(1, self.count + 1))
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in sorted(self.etags.items())]
        self.bucket.ask(
            "complete_multipart_upload",
            Key=name,
            UploadId=identity,
            MultipartUpload={"Parts": parts},
            what=f"{self.bucket.location(self.key)} was not confirmed as stored",
        )

    def _begun(self) -> str:
        what = f"{self.bucket.location(self.key)} was not stored"
        return str(
            self.bucket.ask("create_multipart_upload", Key=self.bucket.name(self.key), what=what, **self.begin)[
                "UploadId"
            ]
        )

    def _resumed(self) -> tuple[str, dict[tuple[int, int], str]] | None:
        """The last upload of this key that was not ended, with the ETag of each part by number and size; else None.

        A key that may not list uploads starts over.
        """
        name = self.bucket.name(self.key)
        with suppress(S3Error):
            found = self.bucket.ask("list_multipart_uploads", Prefix=name).get("Uploads", ())
            mine = [upload for upload in found if upload["Key"] == name]
            if mine:
                identity = max(mine, key=lambda upload: upload["Initiated"])["UploadId"]
                return identity, dict(self._parts(name, identity))
        return None

    def _parts(self, name: str, identity: str) -> Iterable[tuple[tuple[int, int], str]]:
        marker = 0
        while True:
            page = self.bucket.ask("list_parts", Key=name, UploadId=identity, PartNumberMarker=marker)
            for part in page.get("Parts", ()):
                yield (part["PartNumber"], part["Size"]), part["ETag"].strip('"')
            if not page.get("IsTruncated"):
                return
            marker = page["NextPartNumberMarker"]
