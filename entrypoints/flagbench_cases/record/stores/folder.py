"""A store in a folder: a record with a checksum beside it, and bundles, whose names have theirs."""

import errno
import hashlib
import os
import shutil
import tempfile
from typing import Any, Dict, Optional
from urllib.parse import unquote, urlsplit

from flagbench_cases.record.stores import layout
from flagbench_cases.record.stores.store import Bundle, not_stored
from flagbench_cases.shared import output
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.redaction import redact

# A hard link is not possible across file systems, and some have none at all.
_COPIED = (*output.NO_LINKS, errno.EXDEV, errno.EACCES)


class FolderStore:
    """Records and bundles under one folder, which the first of them creates."""

    meant_for: Optional[str] = None

    def __init__(self, root: str) -> None:
        self.root = root
        self.name = root

    def check(self, node: int) -> None:
        """Nothing: a folder is created when it is needed."""

    def put_record(self, record: Dict[str, Any], line: str) -> str:
        """Write a record and its checksum; returns the path of the record. The checksum is written first, so that a
        record never exists without one.

        Raises CaseError (14) if the record cannot be written or already exists.
        """
        folder, name = os.path.split(os.path.join(self.root, layout.record_key(record)))
        sha256 = hashlib.sha256((line + "\n").encode("utf-8")).hexdigest()
        checksum = layout.checksum_text(sha256, name)
        output.write_file(folder, layout.checksum_name(name), checksum.rstrip("\n"))
        return output.write_file(folder, name, line)

    def put_bundle(self, record_id: str, bundle: Bundle) -> str:
        """Link or copy a bundle into the folder; returns its path. Raises CaseError (14)."""
        path = os.path.join(self.root, layout.bundle_key(record_id, bundle.node, bundle.sha256))
        try:
            place(bundle.path, path)
        except OSError as error:
            raise not_stored(
                "the bundle could not be written to %s (%s)" % (path, error.strerror or error),
                "use a writable folder with free space; the record may still be on stdout",
            ) from None
        return path


def place(source: str, path: str) -> None:
    """Give a complete file another name, whole or not at all; a file with that name has the same content.

    Raises OSError.
    """
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    try:
        os.link(source, path)
        return
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _COPIED:
            raise
    handle, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
    try:
        with os.fdopen(handle, "wb") as target, open(source, "rb") as file:
            shutil.copyfileobj(file, target, 2**20)
            target.flush()
            os.fsync(target.fileno())
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def store_folder(url: str) -> str:
    """The folder of a file:// store. Raises UsageError for any other URL."""
    path = url  # a plain path is used unchanged: '%20' and '#' are part of the name
    if "://" in url or url.lower().startswith("file:"):
        try:
            parts = urlsplit(url)
        except ValueError:
            raise _neither(url) from None
        local = parts.netloc in ("", "localhost") and parts.path.startswith("/")
        if parts.scheme != "file" or not local or parts.query or parts.fragment:
            raise _neither(url)
        path = unquote(parts.path, errors="surrogateescape")
    if not path or "\0" in path:
        raise _neither(url)
    return os.path.abspath(path)


def _neither(url: str) -> UsageError:
    return UsageError(
        "--store %s is neither a folder nor a bucket" % redact(url), "use file:///FOLDER or s3://BUCKET/PREFIX"
    )
