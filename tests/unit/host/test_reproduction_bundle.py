"""The bundle of a reproduction: no byte of it changes unnoticed, and nothing in a hostile one leaves its folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundles import archive as packed
from bundles import bundle as raw_bundle
from bundles import member
from catalogs import CATALOG
from flagbench._version import __version__
from flagbench.checkout import commit
from flagbench.cli.reproduce_verdict import series_verdict
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.record.model import Builder
from flagbench.reproduce import archive, contents
from flagbench.reproduce.bundle import DamagedBundle, Heading, check_target, opened, write_bundle
from flagbench.reproduce.manifest import MANIFEST, SUMS, entries_of, sums_of
from flagbench.reproduce.signature import check_signature, sign
from flagbench.stores.series import with_records
from flagbench.stores.series_document import Request, Run, SeriesDocument
from honest import Pace, honest_events, honest_record

from .conftest import REPLAY, Flagbench

CLAIM = CATALOG.claims["distilbert/a100-1x8-fp32"]
CASE = CATALOG.cases["distilbert"]
RAW = raw_bundle({"steps": b"1 2 3\n"}, record_id="record-of-mine-1", run_id="mine-1", node=0)
STEP = 97
Files = dict[str, bytes]


def record(**changes: Any) -> bytes:
    """The record of the one run."""
    made = json.loads(REPLAY.read_bytes())
    made.update(record_id="record-of-mine-1", run_id="mine-1")
    made["bundle"] = {"node": 0, "sha256": hashlib.sha256(RAW).hexdigest(), "bytes": len(RAW)}
    return json.dumps({**made, **changes}).encode() + b"\n"


def bundle_files(content: bytes) -> Files:
    """The files of a sound bundle of one run."""
    raw = json.loads(content)
    run = Run(
        *(1, "mine-1", 0, "ok", 0, raw["record_id"]),
        sha256=hashlib.sha256(content).hexdigest(),
        created_at=raw["created_at"],
        config_digest=raw["config_digest"],
        started_at="2026-01-01T11:53:30Z",
        seconds=400.0,
    )
    series = SeriesDocument(
        *("mine", "mine", "user", "given", "0123456789abcdef", Builder("0.1.0")),
        request=Request(("reproduce", CLAIM.id), "distilbert", "a100-cuda11.6", "docker"),
        requested=1,
        runs=(run,),
        started_at="2026-01-01T11:53:00Z",
        ended_at="2026-01-01T12:01:00Z",
        looks=(1,),
    )
    _, result = series_verdict(with_records(series, lambda _: content), CLAIM, CASE)
    return {
        contents.CLAIM: contents.to_json(contents.claim_document(CLAIM)),
        contents.VERDICT: contents.to_json(result.to_dict()),
        contents.REPRODUCTION: contents.to_json({"claim": CLAIM.id}),
        contents.series_path("mine"): series.to_json(),
        contents.record_path(raw["record_id"]): content,
        contents.raw_path(raw["record_id"], "node-0.tar.gz"): RAW,
        contents.LOG: b"flagbench: done\n",
    }


def written(target: Path, files: Files, verdict: str = "REPRODUCED", **options: Any) -> str:
    heading = Heading(CLAIM.id, verdict, "2026-01-01T12:02:00Z", Builder(__version__, commit()))
    return write_bundle(target, {**files}, heading, **options)


@pytest.fixture(scope="module")
def files() -> Files:
    return bundle_files(record())


@pytest.fixture
def folder(tmp_path: Path, files: Files) -> Path:
    """A sound bundle, unpacked."""
    written(tmp_path / "bundle", files)
    return tmp_path / "bundle"


@pytest.fixture
def file(tmp_path: Path, files: Files) -> Path:
    """A sound bundle as one file."""
    written(tmp_path / "bundle.tar.gz", files)
    return tmp_path / "bundle.tar.gz"


def is_damaged(path: Path) -> bool:
    try:
        with opened(path) as found:
            contents.read_contents(found.folder, found.manifest)
    except DamagedBundle:
        return True
    return False


def flip(path: Path, place: int) -> Callable[[], object]:
    """Change one bit of a file; returns what changes it back."""
    before = path.read_bytes()
    changed = bytearray(before)
    changed[place] ^= 1 << place % 8
    path.write_bytes(changed)
    return lambda: path.write_bytes(before)


def test_equal_files_make_equal_bytes_that_other_tools_unpack(tmp_path: Path, files: Files) -> None:
    digests = {written(tmp_path / name, files) for name in ("a.tar.gz", "b.tgz", "folder")}
    assert len(digests) == 1
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tgz").read_bytes()
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        names = tar.getnames()
        assert {info.mtime for info in tar} == {0}
    assert names == sorted([*files, MANIFEST, SUMS])
    assert hashlib.sha256((tmp_path / "folder" / MANIFEST).read_bytes()).hexdigest() in digests


def test_a_changed_byte_of_the_file_is_found_wherever_it_is(file: Path) -> None:
    assert not is_damaged(file)
    size = file.stat().st_size
    for place in {*range(60), *range(0, size, STEP), *range(size - 12, size)}:
        undo = flip(file, place)
        assert is_damaged(file), place
        undo()
    assert not is_damaged(file)


def test_a_changed_byte_of_any_file_is_found(folder: Path) -> None:
    assert not is_damaged(folder)
    for name, path in archive.files_below(folder):
        size = path.stat().st_size
        for place in {*range(0, size, STEP), size - 1}:
            undo = flip(path, place)
            assert is_damaged(folder), (name, place)
            undo()
    assert not is_damaged(folder)


@pytest.mark.parametrize(
    "damage", ["more", "less", "longer", "empty", "link", "pipe", "no manifest", "two signatures"]
)
def test_no_file_more_less_or_other(folder: Path, damage: str) -> None:
    log = folder / contents.LOG
    if damage == "more":
        (folder / "records" / "x.json").write_bytes(b"")
    elif damage == "longer":
        log.write_bytes(log.read_bytes() + b" ")
    elif damage == "empty":
        log.write_bytes(b"")
    elif damage == "two signatures":
        for name in ("minisig", "sigstore.json"):
            (folder / f"{MANIFEST}.{name}").write_bytes(b"x")
        (folder / SUMS).write_bytes(sums_of(folder))
    else:
        (folder / MANIFEST if damage == "no manifest" else log).unlink()
        if damage == "link":
            log.symlink_to(folder / contents.CLAIM)
        elif damage == "pipe":
            os.mkfifo(log)
    assert is_damaged(folder)


def test_it_may_be_packed_again_but_not_changed(tmp_path: Path, folder: Path, flagbench: Flagbench) -> None:
    again = tmp_path / "again.tar.gz"
    for changed in (None, contents.LOG, MANIFEST, SUMS):
        if changed is not None:
            flip(folder / changed, 5)
        with tarfile.open(again, "w:gz") as tar:
            tar.add(folder, arcname=".") if changed == "x" else [
                tar.add(path, arcname=name) for name, path in archive.files_below(folder)
            ]
        assert flagbench("bundle verify", str(again)).code == (0 if changed is None else 3)


HOSTILE = {
    "above": [member("../above")],
    "absolute": [member("/tmp/absolute")],
    "link": [member("a", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
    "link, then through it": [member("a", type=tarfile.SYMTYPE, linkname="/tmp"), member("a/b")],
    "hard link": [member("a"), member("b", type=tarfile.LNKTYPE, linkname="a")],
    "device": [member("a", type=tarfile.CHRTYPE)],
    "pipe": [member("a", type=tarfile.FIFOTYPE)],
    "twice": [member("a", b"1"), member("a", b"2")],
    "file and folder": [member("a", b"1"), member("a/b", b"2")],
    "escape": [member("a\x1b[2J")],
    "nothing": [],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused(tmp_path: Path, name: str) -> None:
    path, inside = tmp_path / "hostile.tar.gz", tmp_path / "inside"
    path.write_bytes(packed(HOSTILE[name]))
    assert is_damaged(path)
    inside.mkdir()
    try:
        archive.unpack(path, inside)
    except archive.BundleError:
        pass
    assert sorted(os.listdir(tmp_path)) == ["hostile.tar.gz", "inside"]
    assert all(stat.S_ISREG(os.lstat(found).st_mode) for _, found in archive.files_below(inside))


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "ALWAYS", 2**16)
    monkeypatch.setattr(archive, "MOST_FILES", 50)
    path = tmp_path / "bomb.tar.gz"
    for members in ([member("zeros", bytes(2**23))], [member(f"f{number}") for number in range(51)]):
        path.write_bytes(packed(members))
        inside = tmp_path / f"inside{len(members)}"
        inside.mkdir()
        with pytest.raises(archive.BundleError, match="more than"):
            archive.unpack(path, inside)
        assert sum(found.stat().st_size for _, found in archive.files_below(inside)) < 2**23


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", gzip.compress(b"no tar"), archive._START, archive._START + bytes(32)],
    ids=["empty", "zip", "no tar", "header", "cut off"],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b.tar.gz").write_bytes(content)
    assert is_damaged(tmp_path / "b.tar.gz")


def test_something_after_the_end_is_found_in_a_repacked_one_too(tmp_path: Path, file: Path) -> None:
    plain = packed([member(name, path.read_bytes()) for name, path in _unpacked(file, tmp_path / "u")])
    (tmp_path / "sound.tar.gz").write_bytes(plain)
    assert not is_damaged(tmp_path / "sound.tar.gz")
    for more in (b"\0", gzip.compress(b""), b"x"):
        (tmp_path / "more.tar.gz").write_bytes(plain + more)
        assert is_damaged(tmp_path / "more.tar.gz")


def _unpacked(file: Path, folder: Path) -> list[tuple[str, Path]]:
    folder.mkdir()
    archive.unpack(file, folder)
    return list(archive.files_below(folder))


def test_verify_computes_the_verdict_again(file: Path, flagbench: Flagbench) -> None:
    answer = flagbench("bundle verify --json", str(file)).json
    assert (answer["ok"], answer["problems"], answer["notes"]) == (True, [], [])
    assert (answer["verdict"]["verdict"], answer["signature"]["state"]) == ("REPRODUCED", "not signed")
    assert flagbench("bundle verify", str(file), "--digest", answer["manifest_sha256"]).code == 0
    assert flagbench("bundle verify", str(file), "--digest", "0" * 64).code == ExitCode.INVALID
    assert flagbench("bundle verify", str(file), "--digest", "short").code == ExitCode.USAGE


def changed(files: Files, name: str, edit: Callable[[Any], object]) -> Files:
    document = json.loads(files[name])
    edit(document)
    return {**files, name: contents.to_json(document)}


RECORD = contents.record_path("record-of-mine-1")
FORGED: dict[str, tuple[Callable[[Files], Files], str, ExitCode]] = {
    "verdict": (
        lambda files: changed(files, contents.VERDICT, lambda found: found.update(verdict="ABOVE")),
        "ABOVE",
        ExitCode.INVALID,
    ),
    "reason": (
        lambda files: changed(files, contents.VERDICT, lambda found: found.update(reason="trust me")),
        "REPRODUCED",
        ExitCode.INVALID,
    ),
    "record": (lambda files: {**files, RECORD: record(argv=["--other"])}, "REPRODUCED", ExitCode.INVALID),
    "record gone": (
        lambda files: {name: content for name, content in files.items() if name != RECORD},
        "REPRODUCED",
        ExitCode.DATA,
    ),
    "claim": (
        lambda files: changed(files, contents.CLAIM, lambda found: found.update(id="distilbert/a100-1x8-fp32-bs96")),
        "REPRODUCED",
        ExitCode.DATA,
    ),
    "raw events": (
        lambda files: {**files, contents.raw_path("record-of-mine-1", "node-0.tar.gz"): raw_bundle(node=0)},
        "REPRODUCED",
        ExitCode.DATA,
    ),
    "claim of another type": (
        lambda files: changed(files, contents.CLAIM, lambda found: found.update(id=[{}])),
        "REPRODUCED",
        ExitCode.DATA,
    ),
    "heading": (lambda files: files, "ABOVE", ExitCode.DATA),
    "not JSON": (lambda files: {**files, contents.VERDICT: b"{"}, "REPRODUCED", ExitCode.DATA),
    "list": (lambda files: {**files, contents.REPRODUCTION: b"[]"}, "REPRODUCED", ExitCode.DATA),
    "no series": (
        lambda files: {name: content for name, content in files.items() if "series/" not in name},
        "REPRODUCED",
        ExitCode.DATA,
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_was_changed_before_it_was_summed_up_contradicts_itself(
    tmp_path: Path, files: Files, flagbench: Flagbench, name: str
) -> None:
    edit, verdict, code = FORGED[name]
    written(tmp_path / "b.tar.gz", edit(files), verdict)
    assert flagbench("bundle verify", str(tmp_path / "b.tar.gz")).code == code


def test_a_record_that_is_not_that_of_its_raw_events_does_not_hold(tmp_path: Path, flagbench: Flagbench) -> None:
    ids: dict[str, Any] = {"record_id": "record-of-mine-1", "run_id": "mine-1", "node": 0}
    raw = raw_bundle(honest_events(CLAIM, Pace(seed=7), count=130), **ids)
    named = {"node": 0, "sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw)}
    for made, code in ((record(bundle=named), ExitCode.INVALID), (honest(bundle=named), ExitCode.OK)):
        files = {**bundle_files(made), contents.raw_path("record-of-mine-1", "node-0.tar.gz"): raw}
        path = tmp_path / f"{code}.tar.gz"
        written(path, files)
        done = flagbench("bundle verify", str(path))
        assert done.code == code
        assert ("is not that of its raw events" in done.err) is (code is ExitCode.INVALID)


def honest(**changes: Any) -> bytes:
    """The record of the raw events of a run at a pace of its own."""
    made = honest_record(CLAIM, Pace(seed=7), count=130, record_id="record-of-mine-1", run_id="mine-1")
    return json.dumps({**made, **changes}).encode() + b"\n"


def test_a_changed_claim_is_said_and_the_present_one_decides(
    tmp_path: Path, files: Files, flagbench: Flagbench
) -> None:
    def edit(claim: Any) -> None:
        claim["metrics"][0]["value"] = 1

    written(tmp_path / "b.tar.gz", changed(files, contents.CLAIM, edit))
    answer = flagbench("bundle verify --json", str(tmp_path / "b.tar.gz")).json
    assert "metrics[0].value" in answer["notes"][0]
    assert answer["verdict"]["verdict"] == "REPRODUCED"


@pytest.mark.parametrize("name", ["missing.tar.gz", "a/b.tar.gz", "nul\0.tar.gz", "x" * 300])
def test_what_is_not_there_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(FlagbenchError) as error, opened(tmp_path / name):
        pass
    assert error.value.code == ExitCode.DATA


def test_nothing_is_written_over_and_nothing_is_left_behind(tmp_path: Path, files: Files) -> None:
    taken, full = tmp_path / "taken.tar.gz", tmp_path / "full"
    taken.write_bytes(b"mine")
    full.mkdir()
    (full / "mine").touch()
    for target in (taken, full, taken / "below", tmp_path / "x\0.tgz", tmp_path / ("x" * 300)):
        with pytest.raises(FlagbenchError) as error:
            check_target(target)
        assert error.value.code == ExitCode.USAGE
    for target in (taken, full):
        with pytest.raises(FlagbenchError) as error:
            written(target, files)
        assert error.value.code == ExitCode.NOT_STORED
    assert (sorted(os.listdir(tmp_path)), taken.read_bytes()) == (["full", "taken.tar.gz"], b"mine")


def test_a_full_disk_leaves_no_bundle(small_disk: Path, files: Files) -> None:
    with pytest.raises(FlagbenchError) as error:
        written(small_disk / "b.tar.gz", files)
    assert (error.value.code, os.listdir(small_disk)) == (ExitCode.NOT_STORED, [])


SIGNER = """#!/usr/bin/env python3
import hashlib, pathlib, sys
words = sys.argv[1:]
def value(*names):
    return next((words[i + 1] for i, word in enumerate(words) if word in names), "")
if "--help" in words:
    print("--tlog-upload --insecure-ignore-tlog")
    sys.exit()
key = value("-s", "-p", "-P", "--key")
text = pathlib.Path(key).read_text() if pathlib.Path(key).is_file() else key
file = value("-m") or words[-1]
total = hashlib.sha256(text.encode() + pathlib.Path(file).read_bytes()).hexdigest()
target = pathlib.Path(value("-x", "--bundle"))
log = {"sign-blob": "--tlog-upload=false", "verify-blob": "--insecure-ignore-tlog=true"}.get(words[0])
if log is not None and log not in words:
    sys.exit("would be published")
if words[0] in ("-S", "sign-blob"):
    target.write_text(total)
elif target.read_text() != total:
    sys.exit("wrong signature")
"""


@pytest.fixture
def signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for minisign and cosign, with one key for signing and checking; returns its file."""
    for name in ("minisign", "cosign"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(SIGNER)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "key").write_text("secret")
    return tmp_path / "key"


@pytest.mark.parametrize("tool", ["minisign", "cosign"])
def test_a_signature_is_checked_with_the_key(
    tmp_path: Path, files: Files, flagbench: Flagbench, signer: Path, tool: Any
) -> None:
    target, other = tmp_path / "b.tar.gz", tmp_path / "other"
    other.write_text("other")
    written(target, files, sign=lambda manifest: sign(tool, signer, manifest))
    states = {}
    for key in (None, signer, other):
        ended = flagbench("bundle verify --json", str(target), *([] if key is None else ["--key", str(key)]))
        states[key] = (ended.code, json.loads(ended.out)["signature"]["state"])
    assert states == {
        None: (0, "signature not checked"),
        signer: (0, "signature valid"),
        other: (ExitCode.INVALID, "signature INVALID"),
    }
    found = tmp_path / "unpacked"
    _unpacked(target, found)
    flip(next(found.glob(f"{MANIFEST}.*")), 0)
    assert is_damaged(found)


def test_signing_fails_without_the_tool_or_its_success(
    tmp_path: Path, files: Files, signer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin" / "minisign").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(FlagbenchError) as error:
        written(tmp_path / "b.tar.gz", files, sign=lambda manifest: sign("minisign", signer, manifest))
    assert (error.value.code, (tmp_path / "b.tar.gz").exists()) == (ExitCode.NOT_STORED, False)
    written(tmp_path / "folder", files, sign=lambda manifest: sign("cosign", signer, manifest))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FlagbenchError) as error:
        check_signature(tmp_path / "folder", str(signer))
    assert error.value.code == ExitCode.USAGE


def test_a_manifest_that_names_files_twice_or_outside_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    for edit in (
        {"files": [*manifest["files"], manifest["files"][0]]},
        {"files": [*manifest["files"], {**manifest["files"][0], "path": "../x"}]},
        {"schema": "reproduction/v2"},
    ):
        (folder / MANIFEST).write_text(json.dumps({**manifest, **edit}))
        (folder / SUMS).write_bytes(sums_of(folder))
        assert is_damaged(folder)


def test_a_copied_folder_is_the_same_bundle(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    assert entries_of(folder) == entries_of(tmp_path / "copy")
    assert not is_damaged(tmp_path / "copy")
    assert io.BytesIO(sums_of(folder)).readline().split()[1] == MANIFEST.encode()
