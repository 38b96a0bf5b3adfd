"""Ways to run a case's image or its entrypoint, one adapter a file or a package."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchResult:
    """Outcome of a launch: the record as the image printed it, and the exit code."""

    record: bytes
    """Empty on other nodes than node 0, which print none."""
    exit_code: int
