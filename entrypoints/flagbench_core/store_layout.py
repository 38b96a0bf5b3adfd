"""The address of a store, and the keys of its records, bundles and series below its folder or its prefix."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

RECORD = "results/v1/case={case}/stack={stack}/{day}/{record_id}.json"
BUNDLE = "bundles/{record_id}/node-{node}-{sha256}.tar.gz"
SERIES = "series/{series_id}.json"
SERIES_PART = "series/{series_id}/{part}.json"
"""A part of a series that has not ended."""
CHECKSUM = "{name}.sha256"
"""In a folder, the file beside a record."""
CHECKSUM_TEXT = "{sha256}  {name}\n"
"""Its content, as `sha256sum -c` reads it."""
ADDRESS_SUFFIX = ".meant-for"
"""Ends the name of the file beside a record or a bundle that waits: it has the address of the store."""


class AddressError(ValueError):
    """Why an address names no folder."""

    def __init__(self, why: str, remedy: str = "use file:///FOLDER or s3://BUCKET/PREFIX") -> None:
        super().__init__(why)
        self.remedy = remedy


def folder_of(address: str) -> str:
    """The folder that the address of a store names: file:///PATH, or a path, in which nothing is decoded.

    Raises AddressError.
    """
    path = address
    if "://" in address or address.lower().startswith("file:"):
        try:
            parts = urlsplit(address)
        except ValueError as error:
            raise AddressError(f"it is not a URL: {error}") from error
        if parts.scheme != "file":
            raise AddressError("there is no such kind of store")
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            remedy = f"write three slashes: file:///{parts.netloc}{parts.path}"
            raise AddressError("it names a host, not a folder here", remedy)
        if parts.query or parts.fragment:
            raise AddressError("a file URL has no query and no fragment", "write %3F for ? and %23 for #")
        path = unquote(parts.path, errors="surrogateescape")
    if not path or "\0" in path:
        raise AddressError("a folder's name cannot be empty or contain a NUL")
    return path
