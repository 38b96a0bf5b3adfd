"""What a store does with the results of a run, and the errors that it raises."""

from typing import Any, Dict, NamedTuple, Optional, Protocol

from flagbench_cases.shared.errors import CaseError, ExitCode


class Bundle(NamedTuple):
    """A bundle of evidence, written to a file."""

    path: str
    node: int
    sha256: str
    bytes: int


class Store(Protocol):
    """One place for the results of a run."""

    name: str
    """For messages, without credentials."""
    meant_for: Optional[str]
    """What is noted beside results that wait to be stored here; None: they need not wait."""

    def check(self, node: int) -> None:
        """Find out, without writing, whether results of this node can be stored. Raises UsageError."""

    def put_record(self, record: Dict[str, Any], line: str) -> str:
        """Store a record, never in the place of another one; returns where it is. Raises CaseError (14)."""

    def put_bundle(self, record_id: str, bundle: Bundle) -> str:
        """Store a bundle; returns where it is. Raises CaseError (14)."""


def not_stored(message: str, remedy: str) -> CaseError:
    """The error for something that a store did not take."""
    return CaseError(message, remedy, ExitCode.NOT_STORED)
