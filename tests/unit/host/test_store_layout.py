"""Both sides store a record in the same place, by manifests/store-v1.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from flagbench.stores import FolderBlobs, Store
from flagbench_cases.shared import output


def test_what_an_image_stores_is_what_the_host_would_have_stored(
    tmp_path: Path, make_record: Callable[..., bytes]
) -> None:
    line = make_record().decode()
    image, host = tmp_path / "image", Store(FolderBlobs(tmp_path / "host"))
    output.store(str(image), json.loads(line), line)
    host.put(line.encode() + b"\n")
    stored, expected = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.json*")}
        for root in (image, tmp_path / "host")
    )
    assert stored == expected
    assert len(stored) == 2
    (listed,) = Store(FolderBlobs(image)).list()
    assert (listed.record_id, listed.error) == ("20260101T120000Z-0001", None)
