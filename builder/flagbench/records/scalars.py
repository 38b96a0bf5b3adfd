"""The types and patterns of single values in records and series. They become rules of the JSON Schemas."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

RECORD_ID = "[0-9A-Za-z][0-9A-Za-z._-]{7,159}"
"""The pattern of a record's id. It matches no path separator, so an id is never a path."""
SHORT_ID = "[0-9a-f]{8}"
"""The pattern of the random digits at the end of a record's id, after a hyphen.

Listings show these digits, and commands accept them in place of the id."""

# The patterns end with `\Z` instead of `$`, which also matches before a final newline.
RecordId = Annotated[str, Meta(pattern=rf"^{RECORD_ID}\Z")]
RUN_ID = "[0-9A-Za-z][0-9A-Za-z._-]{0,127}"
"""The pattern of a run's id."""
RunId = Annotated[str, Meta(pattern=rf"^{RUN_ID}\Z")]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*\Z")]
"""A name of a case, a stack or a launcher."""
Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
"""A sha256, such as that of a configuration."""
Time = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\Z")]
"""A time in UTC, such as 2026-01-31T12:00:00Z."""
Scalar = str | int | float | bool
"""The value of a condition."""
Number = int | float
Count = Annotated[int, Meta(ge=0)]
"""An integer that is not negative."""
MOST_RANKS = 100_000
"""The most ranks of a record. The limit bounds the memory that reading a small document can take."""
PositiveCount = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
"""A number that is not negative."""
Fraction = Annotated[float, Meta(ge=0, le=1)] | Annotated[int, Meta(ge=0, le=1)]
"""A number from 0 to 1."""
