"""A place for images in memory, for tests of what is done with any place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flagbench.oci.model import Blob, Change, Progress, Put, digest_of


def quiet(count: int) -> None:
    """Progress that nobody sees."""


class MemoryPlace:
    """A repository in memory, which may copy from others of its kind and list referrers."""

    def __init__(self, url: str = "memory.example/x", *, lists: bool = False) -> None:
        self.url = url
        self.lists = lists
        self.public = False
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[bytes, str]] = {}
        self.others: dict[str, MemoryPlace] = {}
        self.before_manifest: Callable[[], None] = lambda: None

    def has_blob(self, digest: str) -> bool:
        return digest in self.blobs

    def put_blob(self, blob: Blob, show: Progress) -> Put:
        digest = blob.descriptor.digest
        if digest in self.blobs:
            return "present"
        for origin in blob.origins:
            if origin in self.others and digest in self.others[origin].blobs:
                self.blobs[digest] = self.others[origin].blobs[digest]
                return "copied"
        content = blob.path(show).read_bytes()
        assert (digest_of(content), len(content)) == (digest, blob.descriptor.size)
        self.blobs[digest] = content
        show(len(content))
        return "uploaded"

    def read_blob(self, digest: str) -> Iterator[bytes]:
        yield self.blobs[digest]

    def put_manifest(self, content: bytes, media_type: str, references: tuple[str, ...]) -> bool:
        self.before_manifest()
        for reference in (digest_of(content), *references):
            self.manifests[reference] = content, media_type
        return self.lists

    def update_manifest(self, tag: str, media_type: str, change: Change) -> None:
        while (content := change(self.manifests.get(tag, (None, ""))[0])) is not None:
            self.put_manifest(content, media_type, (tag,))

    def read_manifest(self, reference: str) -> tuple[bytes, str] | None:
        return self.manifests.get(reference)
