"""Both sides store a record in the same place, by manifests/store-v1.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flagbench.stores import FolderBlobs, Store
from flagbench.stores.layout import Place, parse_key, prefix
from flagbench_cases.shared import output

MakeRecord = Callable[..., bytes]


def test_what_an_image_stores_is_what_the_host_would_have_stored(tmp_path: Path, make_record: MakeRecord) -> None:
    line = make_record().decode()
    output.store(str(tmp_path / "image"), json.loads(line), line)
    Store(FolderBlobs(tmp_path / "host")).put(line.encode() + b"\n")
    image, host = (
        {path.relative_to(tmp_path / side): path.read_bytes() for path in (tmp_path / side).rglob("*.json*")}
        for side in ("image", "host")
    )
    assert image == host
    assert len(image) == 2


def test_the_host_lists_what_an_image_stored(tmp_path: Path, make_record: MakeRecord) -> None:
    store = Store(FolderBlobs(tmp_path))
    store.put(make_record(record_id="by-the-host"))
    assert [entry.record_id for entry in store.list()] == ["by-the-host"]
    line = make_record(record_id="by-an-image", created_at="2026-01-02T00:00:00Z").decode()
    output.store(str(tmp_path), json.loads(line), line)
    assert [entry.record_id for entry in store.list()] == ["by-an-image", "by-the-host"]


def test_a_key_is_read_back() -> None:
    place = Place("glm", "a100-cuda11.6", "2026-01-31", "record-1")
    assert parse_key(place.key) == place
    assert place.key == "results/v1/case=glm/stack=a100-cuda11.6/2026-01-31/record-1.json"


@pytest.mark.parametrize("key", ["results/v1/record-1.json", "results/v2/case=a/stack=b/2026-01-31/c.json", ""])
def test_other_keys_are_not_of_the_layout(key: str) -> None:
    assert parse_key(key) is None


def test_a_prefix_is_a_folder() -> None:
    assert prefix() == "results/v1/"
    assert prefix(case="glm") == "results/v1/case=glm/"
    assert prefix(case="glm", stack="cpu") == "results/v1/case=glm/stack=cpu/"
    assert prefix(stack="cpu") == "results/v1/"
