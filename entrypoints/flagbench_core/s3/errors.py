"""The error of all operations on a bucket: its message, its remedy, and the answer of the server."""

from __future__ import annotations

from http import HTTPStatus

_MISSING = {"NoSuchKey", "404", "NotFound"}
_TAKEN = {"PreconditionFailed", "FileAlreadyExists"}


class S3Error(Exception):
    """An operation on a bucket failed."""

    def __init__(
        self,
        message: str,
        remedy: str,
        *,
        code: str = "",
        status: int | None = None,
        usage: bool = False,
        damage: str = "",
        network: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code
        """S3's error code; empty if the server did not answer."""
        self.status = status
        """The HTTP status of the answer; None if the server did not answer."""
        self.usage = usage
        """Whether the address, the settings or a missing library are at fault, and not the server or the network."""
        self.damage = damage
        """How an object differs from what was put, as a clause after its address; empty for other errors."""
        self.network = network
        """Whether the network or the server failed, so that the same request may succeed later."""

    @property
    def damaged(self) -> bool:
        """Whether an object has other bytes than it was put with."""
        return bool(self.damage)

    @property
    def missing(self) -> bool:
        """Whether there is no such object."""
        return self.code in _MISSING

    @property
    def no_bucket(self) -> bool:
        """Whether there is no such bucket."""
        return self.code == "NoSuchBucket"

    @property
    def taken(self) -> bool:
        """Whether a create-only put found an object under its key."""
        return self.code in _TAKEN or self.status == HTTPStatus.PRECONDITION_FAILED

    @property
    def denied(self) -> bool:
        """Whether the key may not do this."""
        return self.code in ("AccessDenied", "403")
