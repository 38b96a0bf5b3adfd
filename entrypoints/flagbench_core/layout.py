"""Where a store keeps records, bundles, series and uploads: names below its folder or its prefix."""

from __future__ import annotations

RECORD = "results/v1/case={case}/stack={stack}/{day}/{record_id}.json"
BUNDLE = "bundles/{record_id}/node-{node}-{sha256}.tar.gz"
SERIES = "series/{series_id}.json"
SERIES_PART = "series/{series_id}/{part}.json"
"""A part of a series that has not ended."""
INBOX_RECORD = "inbox/{run_id}/record.json"
"""What the holder of a ticket uploads."""
INBOX_BUNDLE = "inbox/{run_id}/node-{node}.tar.gz"
CHECKSUM = "{name}.sha256"
"""In a folder, the file beside a record."""
CHECKSUM_TEXT = "{sha256}  {name}\n"
"""Its content, as `sha256sum -c` reads it."""
