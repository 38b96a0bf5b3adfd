"""What is remembered of earlier pushes: only ever a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench.oci.known import Known, KnownImage
from flagbench.oci.model import Descriptor, digest_of

ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64
LAYER = Descriptor("application/vnd.oci.image.layer.v1.tar+gzip", TWO, 5)
CONFIG = '{"a": 1}'
IMAGE = KnownImage("{}", "application/vnd.oci.image.manifest.v1+json", CONFIG)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    known = Known(tmp_path)
    known.remember_layer(ONE, "gzip", LAYER)
    known.remember_normal(ONE, 7, TWO)
    assert Known(tmp_path).layer(ONE, "gzip") == LAYER
    assert known.layer(ONE, "zstd") is None
    assert (known.normal(ONE, 7), known.normal(TWO, 7), known.normal(ONE, 8)) == (TWO, TWO, None)


def test_an_image_is_known_by_where_it_was_pushed_last(tmp_path: Path) -> None:
    known, own = Known(tmp_path), digest_of(CONFIG.encode())
    for host in "ab":
        known.remember_image(own, "gzip", IMAGE, f"{host}.example/x@{IMAGE.digest}")
    assert known.pushed_as(own) == f"b.example/x@{IMAGE.digest}"
    known.remember_image(ONE, "gzip", IMAGE, f"a.example/x@{IMAGE.digest}")
    assert known.pushed_as(ONE) is None, "that of the engine is another image: it was not loaded back"


def test_a_blob_is_looked_for_where_it_was_put_last(tmp_path: Path) -> None:
    known = Known(tmp_path)
    for number in range(30):
        known.remember_origin(ONE, f"r.example/{number}")
    assert known.origins(ONE)[:2] == ("r.example/29", "r.example/28")
    assert len(known.origins(ONE)) < 30


@pytest.mark.parametrize("damage", ["empty", "flipped", "moved", "text", "folder"])
def test_a_damaged_entry_is_none(damage: str, tmp_path: Path) -> None:
    known = Known(tmp_path)
    known.remember_layer(ONE, "gzip", LAYER)
    (file,) = (tmp_path / "layers").iterdir()
    content = file.read_bytes()
    if damage == "moved":
        file.rename(file.with_name(file.name.replace("1" * 64, "3" * 64)))
        assert known.layer("sha256:" + "3" * 64, "gzip") is None
    elif damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes({"empty": b"", "flipped": content.replace(b"5", b"6"), "text": b"\xff\xfe\n{"}[damage])
    assert known.layer(ONE, "gzip") is None
    known.remember_layer(ONE, "gzip", LAYER)
    assert (known.layer(ONE, "gzip") == LAYER) is (damage != "folder")


def test_what_cannot_be_written_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    known = Known(tmp_path / "file")
    known.remember_layer(ONE, "gzip", LAYER)
    assert known.layer(ONE, "gzip") is None
