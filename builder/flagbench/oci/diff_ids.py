"""The diff id of a compressed layer, once it was seen, in the user's cache: it cannot change."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from flagbench.files import write_atomically
from flagbench.oci.manifest import Layer
from flagbench.user_cache import cache_folder


def seen_diff_id(layer: Layer) -> str | None:
    """`sha256:<64 hex>` of the layer's uncompressed tar; None if this machine never read it."""
    with suppress(OSError, UnicodeDecodeError):
        return _file(layer).read_text(encoding="ascii")
    return None


def remember_diff_id(layer: Layer, diff_id: str) -> None:
    """Keep what a layer's diff id is; without the cache it is read again the next time."""
    with suppress(OSError):
        _file(layer).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_file(layer), diff_id.encode())


def _file(layer: Layer) -> Path:
    return cache_folder() / "layers" / layer.digest.removeprefix("sha256:")
