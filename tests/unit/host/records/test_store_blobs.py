"""A store needs nothing of a place but `Blobs`: flat keys without folders, modification times or an index suffice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from flagbench.records.blobs import Blob, Blobs, Health
from flagbench.records.series import SeriesWriter, load_series
from flagbench.records.store import Store

from .test_series import DAY, planned


class ObjectBlobs:
    """Objects under flat keys with an ETag, as a bucket has them."""

    url = "memory://bucket"
    readers = 4

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.index = b""

    def location(self, key: str) -> str:
        return f"{self.url}/{key}"

    def put_if_absent(self, key: str, content: bytes) -> bool:
        return self.objects.setdefault(key, content) == content

    def get(self, key: str, limit: int) -> bytes:
        return self.objects[key]

    def list(self, prefix: str) -> Iterator[Blob]:
        for key, content in self.objects.items():
            if key.startswith(prefix):
                yield Blob(key, len(content), hashlib.sha256(content).hexdigest())

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def clear(self, prefix: str) -> None:
        for blob in [*self.list(prefix)]:
            self.delete(blob.key)

    def read_index(self) -> bytes:
        return self.index

    def write_index(self, content: bytes) -> None:
        self.index = content

    def health(self) -> Health:
        return Health(True, self.url)


def test_records_are_kept_found_listed_and_removed(make_record: Callable[..., bytes]) -> None:
    blobs: Blobs = ObjectBlobs()
    store = Store(blobs)
    contents = {
        name: make_record(record_id=name, stack=stack) for name, stack in (("record-a", "cpu"), ("record-b", "x"))
    }
    for content in contents.values():
        stored = store.put(content)
        assert store.put(content) == stored
    blobs.put_if_absent("results/v1/notes.txt", b"no place of a record")
    assert {name: store.get(name) for name in store.find("record-")} == contents
    assert [entry.record_id for entry in store.list(stack="x")] == ["record-b"]
    (newest, older) = store.list()
    assert (newest.location, older.error) == (stored.location, None)
    assert store.read(older) == contents["record-a"]
    store.remove(newest)
    assert store.find("") == ["record-a"]
    assert store.url == store.health().detail


def test_a_series_needs_no_more() -> None:
    store = Store(ObjectBlobs())
    writer = SeriesWriter(store, planned(count=2))
    writer.begin()
    writer.add(
        replace(writer.series.runs[0], state="failed", exit_code=4, started_at=f"{DAY}T12:01:00Z", seconds=1.0)
    )
    assert [run.state for run in load_series(store, "mine").runs] == ["failed", "missing"]
    writer.finish(f"{DAY}T12:02:00Z")
    assert [run.state for run in load_series(store, "mine").runs] == ["failed", "not_run"]
    assert [blob.key for blob in store.blobs.list("")] == ["series/mine.json"]
