"""A bundle is checked before it is believed: padding is stripped, and hostile archives are refused within limits."""

from __future__ import annotations

import gzip
import hashlib
import resource
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from bundles import FILES, archive, bundle, manifest, member
from flagbench.stores import bundle_check
from flagbench.stores.bundle_check import BundleError, check_bundle

NAMED = member("MANIFEST.json", manifest(FILES))
SOUND = [member(name, content) for name, content in FILES.items()]
EMPTY = member("MANIFEST.json", manifest({}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "node-0.tar.gz"


@pytest.mark.parametrize("padding", [0, 1, 700_000])
@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_sound_bundle_ends_where_its_padding_begins(file: Path, padding: int, format: int) -> None:
    content = archive([*SOUND, member("a" * 200 + "/long", b"x"), member("folder", type=tarfile.DIRTYPE)], format)
    named = manifest({**FILES, "a" * 200 + "/long": b"x"}, run_id="run-1", node=3)
    content = archive([*SOUND, member("a" * 200 + "/long", b"x"), member("MANIFEST.json", named)], format)
    file.write_bytes(content + bytes(padding))
    checked = check_bundle(file)
    assert (checked.size, checked.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert (checked.manifest.run_id, checked.manifest.node, checked.manifest.record_id) == ("run-1", 3, None)


def old_sparse() -> bytes:
    """A header that says that a map of a sparse file follows."""
    header = bytearray(member("a", type=tarfile.GNUTYPE_SPARSE)[0].tobuf(tarfile.GNU_FORMAT))
    header[482] = 1
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 0x20 + sum(header[156:512]))
    return bytes(header)


HOSTILE = {
    "empty": b"",
    "zeros": bytes(5000),
    "no gzip": b"#!/bin/sh\n" * 100,
    "no tar": gzip.compress(b"not a tar" * 1000),
    "cut off": bundle()[:-20],
    "a sum of gzip": bundle()[:-5] + b"\xff" + bundle()[-4:],
    "something behind it": bundle() + b"more",
    "something behind its padding": bundle() + bytes(3000) + b"more",
    "another stream": bundle() + bundle(),
    "something behind its archive": gzip.compress(gzip.decompress(bundle()) + b"hidden" * 100),
    "no manifest": archive(SOUND),
    "two manifests": archive([*SOUND, NAMED, NAMED]),
    "no json": archive([*SOUND, member("MANIFEST.json", b"{")]),
    "no manifest's json": archive([*SOUND, member("MANIFEST.json", b'{"files": 3}')]),
    "deep json": archive([*SOUND, member("MANIFEST.json", b'{"files": ' + b"[" * 100_000)]),
    "a file too many": archive([*SOUND, member("more", b"x"), NAMED]),
    "a file too few": archive([*SOUND[1:], NAMED]),
    "other bytes": archive([member(SOUND[0][0].name, b"!" + FILES[SOUND[0][0].name][1:]), *SOUND[1:], NAMED]),
    "twice the same": archive([*SOUND, SOUND[0], NAMED]),
    **{
        f"the name {name!r}": archive([member(name, b"x"), member("MANIFEST.json", manifest({name: b"x"}))])
        for name in ("../up", "/etc/passwd", "a/../b", "./a", "a\nb", "a\\b", "a//b", "x" * 2000)
    },
    "a link": archive([member("a", type=tarfile.SYMTYPE, linkname="/etc/passwd"), EMPTY]),
    "a hard link": archive([member("a", type=tarfile.LNKTYPE, linkname="MANIFEST.json"), EMPTY]),
    "a device": archive([member("a", type=tarfile.CHRTYPE), EMPTY]),
    "a pipe": archive([member("a", type=tarfile.FIFOTYPE), EMPTY]),
    "a sparse file": archive(
        [
            member(
                "a",
                b"0\n" + bytes(510),
                pax_headers={
                    "GNU.sparse.major": "1",
                    "GNU.sparse.minor": "0",
                    "GNU.sparse.name": "a",
                    "GNU.sparse.realsize": str(2**60),
                },
            ),
            EMPTY,
        ]
    ),
    "a length that is not there": archive([member("a", pax_headers={"size": str(2**60)}), EMPTY]),
    "a negative length": archive([member("a", pax_headers={"size": "-512"}), EMPTY]),
    "a huge header": archive([member("a", pax_headers={"comment": "x" * 2**20}), EMPTY]),
    "a sparse file of the old kind, and its end": gzip.compress(old_sparse()),
    "a map of a sparse file": gzip.compress(old_sparse() + bytes(504) + b"\1" + bytes(7)),
    "the headers of all members": archive([*SOUND, NAMED], pax_headers={"comment": "x"}),
    "a huge manifest": archive([member("MANIFEST.json", bytes(bundle_check.MANIFEST_BYTES + 1))]),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_what_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(BundleError) as caught:
        check_bundle(file)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_a_bomb_is_refused_before_it_has_gone_off(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_check, "ALWAYS", 2**24)
    file.write_bytes(archive([member("zeros", bytes(2**25)), EMPTY]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BundleError, match="unpacks to more"):
        check_bundle(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024, "it was not held in memory"


def sparse_map(count: int) -> bytes:
    """The map of a sparse file in the newest kind, with so many numbers."""
    names = {"major": "1", "minor": "0", "name": "a", "realsize": "1"}
    content = b"%d\n" % (count // 2) + b"1\n" * count
    return archive([member("a", content, pax_headers={f"GNU.sparse.{name}": names[name] for name in names}), EMPTY])


def headers(count: int) -> bytes:
    """Members, each with a header of its own as large as is taken."""
    comment = {"comment": "\U0001f600" * 4000}
    return archive([member(f"folder-{n}", type=tarfile.DIRTYPE, pax_headers=comment) for n in range(count)])


@pytest.mark.parametrize("content", [sparse_map(500_000), headers(500)], ids=["map", "headers"])
def test_memory_does_not_grow_with_what_a_header_says(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(BundleError):
            check_bundle(file)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


def test_names_are_not_longer_than_a_manifest(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_check, "MANIFEST_BYTES", 10_000)
    file.write_bytes(archive([member(f"{number:01000}") for number in range(11)]))
    with pytest.raises(BundleError, match="names"):
        check_bundle(file)


def test_many_files_are_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_check, "MOST_FILES", 100)
    file.write_bytes(archive([member(f"folder-{number}", type=tarfile.DIRTYPE) for number in range(101)]))
    with pytest.raises(BundleError, match="100"):
        check_bundle(file)
