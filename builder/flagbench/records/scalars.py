"""The types and patterns of single values in a record."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

RECORD_ID = "[0-9A-Za-z][0-9A-Za-z._-]{7,159}"
"""No path separator matches, so an id is never a path."""
SHORT_ID = "[0-9a-f]{8}"
"""The random digits that an id of a run ends with, after a hyphen: a listing shows them, and commands accept them."""

# `\Z` and not `$`, which also matches before a final newline.
RecordId = Annotated[str, Meta(pattern=rf"^{RECORD_ID}\Z")]
RUN_ID = "[0-9A-Za-z][0-9A-Za-z._-]{0,127}"
RunId = Annotated[str, Meta(pattern=rf"^{RUN_ID}\Z")]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]*\Z")]
Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Time = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\Z")]
Scalar = str | int | float | bool
Number = int | float
Count = Annotated[int, Meta(ge=0)]
MOST_RANKS = 100_000
PositiveCount = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
"""A number that is not negative."""
Fraction = Annotated[float, Meta(ge=0, le=1)] | Annotated[int, Meta(ge=0, le=1)]
