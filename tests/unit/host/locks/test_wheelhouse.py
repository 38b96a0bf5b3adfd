"""A wheelhouse: what is kept and fetched, what a failed fetch leaves behind, and what a build is given of it."""

import dataclasses
import fcntl
import hashlib
import os
from functools import partial
from types import SimpleNamespace

import pytest

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks import wheelhouse
from flagbench.locks.fetch import diagnosed
from flagbench.locks.model import Lock, LockEntry, Unresolved
from flagbench.locks.packages import check_wheelhouse
from flagbench.locks.sources import Sources
from flagbench.locks.wheelhouse import fill_wheelhouse

FILES = {
    "flash-attn": ("flash_attn-2.7.3.tar.gz", b"source"),
    "numpy": ("numpy-2.2.6-cp310-cp310-manylinux_2_28_x86_64.whl", b"numpy"),
    "py-cpuinfo": ("py_cpuinfo-9.0.0-py3-none-any.whl", b"cpuinfo"),
    "torch": ("torch-2.6.0+cu118-cp310-cp310-linux_x86_64.whl", b"torch"),
}
NUMPY = FILES["numpy"][0]


def entry(name, version):
    return LockEntry(name, version, ("sha256:" + hashlib.sha256(FILES[name][1]).hexdigest(),))


ENTRIES = (entry("flash-attn", "2.7.3"), entry("numpy", "2.2.6"), entry("py-cpuinfo", "9.0.0"))
LOCK = Lock("a100-cuda11.8", "3.10", None, None, "sha256:" + "0" * 64, ENTRIES)
OPEN = dataclasses.replace(LOCK, unresolved=(Unresolved("torch", "2.6.0+cu118", reason="no network"),))


@pytest.fixture
def index(monkeypatch):
    """An index whose files a test may change; `asked` lists what was fetched, and how."""
    index = SimpleNamespace(files=dict(FILES), asked=[])

    def fetch(how, stack, wanted, folder, *_):
        index.asked.append((how, wanted.name))
        name, content = index.files[wanted.name]
        if isinstance(content, BaseException):
            raise content
        (folder / name).write_bytes(content)

    monkeypatch.setattr(wheelhouse, "fetch_wheel", partial(fetch, "wheel"))
    monkeypatch.setattr(wheelhouse, "fetch_source", partial(fetch, "source"))
    return index


@pytest.fixture
def filled(make_stack, index, tmp_path):
    """Fills the wheelhouse `house`, from the index."""

    def filled(lock=LOCK, folder=tmp_path / "house", **options):
        index.asked.clear()
        return fill_wheelhouse(
            make_stack(), lock, folder, sources=Sources(), tables={}, report=lambda _: None, **options
        )

    return filled


@pytest.fixture
def house(tmp_path):
    (tmp_path / "house").mkdir()
    return tmp_path / "house"


def test_what_is_missing_or_damaged_is_fetched(filled, index, tmp_path):
    files = filled()
    assert sorted(index.asked) == [("source", "flash-attn"), ("wheel", "numpy"), ("wheel", "py-cpuinfo")]
    assert [(file.name, file.fetched, file.locked) for file in files] == [
        ("flash-attn", True, True),
        ("numpy", True, True),
        ("py-cpuinfo", True, True),
    ]
    assert (files[1].sha256, files[1].size) == (hashlib.sha256(b"numpy").hexdigest(), 5)
    house = tmp_path / "house"
    assert {path.name for path in house.iterdir()} == {file.file for file in files}
    assert [file.fetched for file in filled()] == [False, False, False]
    (house / NUMPY).write_bytes(b"num")
    filled()
    assert index.asked == [("wheel", "numpy")]
    assert (house / NUMPY).read_bytes() == b"numpy"


def test_what_others_left_stays_and_what_a_killed_run_left_goes(filled, house):
    other = house / "numpy-2.2.6-cp312-cp312-manylinux_2_28_x86_64.whl"
    other.write_bytes(b"numpy for another Python")
    (house / "notes.txt").write_text("mine")
    (house / ".flagbench-abc" / "file").mkdir(parents=True)
    filled()
    assert other.read_bytes() == b"numpy for another Python"
    assert len(list(house.iterdir())) == 5


def test_another_file_than_the_locked_one_never_enters(filled, index, house):
    index.files["numpy"] = (NUMPY, b"evil")
    with pytest.raises(FlagbenchError, match=NUMPY) as caught:
        filled()
    assert caught.value.code is ExitCode.DATA
    assert not (house / NUMPY).exists()


def test_a_failure_keeps_what_was_fetched_and_leaves_nothing_half_done(filled, index, house):
    index.files["py-cpuinfo"] = ("x", OSError(28, "No space left on device"))
    with pytest.raises(FlagbenchError, match="No space left"):
        filled()
    before = {path.name for path in house.iterdir()}
    assert not [name for name in before if name.startswith(".")]
    index.files = dict(FILES)
    assert {file.file for file in filled() if not file.fetched} == before


def test_unresolved_packages_are_fetched_on_request_alone_and_each_time(filled, index, tmp_path):
    """Nothing says that the file which is there is the right one."""
    with pytest.raises(FlagbenchError) as caught:
        filled(OPEN)
    assert "torch==2.6.0+cu118" in caught.value.message
    assert "--allow-unlocked" in caught.value.remedy
    assert index.asked == []
    assert not (tmp_path / "house").exists()
    (torch,) = (file for file in filled(OPEN, allow_unlocked=True) if file.name == "torch")
    assert not torch.locked
    filled(OPEN, allow_unlocked=True)
    assert index.asked == [("wheel", "torch")]


def test_a_house_that_is_being_filled_or_cannot_be_made(filled, house, tmp_path):
    held = os.open(house, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(FlagbenchError, match=f"another `flagbench wheels` is filling {house}"):
            filled()
    finally:
        os.close(held)
    (tmp_path / "file").write_text("x")
    with pytest.raises(FlagbenchError, match=f"{tmp_path / 'file'} cannot be created"):
        filled(folder=tmp_path / "file")


PINS = {
    "flash_attn-2.5.9.post1.tar.gz": ("flash-attn", "2.5.9.post1"),
    "torch-2.6.0+cu118-cp310-cp310-linux_x86_64.whl": ("torch", "2.6.0+cu118"),
    "py_cpuinfo-9.0.0-py3-none-any.whl": ("py-cpuinfo", "9.0"),
    "Old-Name-1.0.zip": ("old-name", "1.0"),
}


def test_a_build_is_given_only_what_the_lock_names(house):
    """By the names of files where the hash is unknown; every file with a locked hash where it is known."""
    for name in (*PINS, "README", "nothing.whl", "nothing-x.tar.gz", "other-1.0-py3-none-any.whl", FILES["numpy"][0]):
        (house / name).write_bytes(b"numpy")
    unresolved = tuple(Unresolved(name, version, reason="no network") for name, version in PINS.values())
    lock = dataclasses.replace(LOCK, entries=ENTRIES[1:2], unresolved=unresolved)
    assert {path.name for path in check_wheelhouse(house, lock)} == {*PINS, NUMPY}


def test_what_is_missing_and_what_is_another_file_is_named_up_to_a_few(house):
    (house / NUMPY).write_bytes(b"another")
    missing = tuple(LockEntry(f"package-{number}", "1.0", ENTRIES[0].hashes) for number in range(19))
    lock = dataclasses.replace(OPEN, entries=(ENTRIES[1], *missing))
    with pytest.raises(FlagbenchError) as refused:
        check_wheelhouse(house, lock)
    assert refused.value.message.endswith(f"package-7==1.0 and 12 more; not the locked files: {NUMPY}")
    assert refused.value.remedy == f"fill it with `flagbench wheels {LOCK.stack} -o {house}`"


def test_a_wheelhouse_that_cannot_be_read(tmp_path):
    with pytest.raises(FlagbenchError, match=str(tmp_path / "none")) as refused:
        check_wheelhouse(tmp_path / "none", LOCK)
    assert refused.value.code is ExitCode.USAGE


NOT_FOUND = "ERROR: No matching distribution found for numpy==2.2.6"
# pip's words for every failed connection, whatever the reason.
RETRYING = (
    "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken "
    "by '{}': /simple/numpy/\n" + NOT_FOUND
)
FAILED = "NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f4c>: Failed to ...: {}')"


@pytest.mark.parametrize(
    ("said", "cause", "code"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full", ExitCode.USAGE),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "another file", ExitCode.DATA),
        (
            f"SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]'))\n{NOT_FOUND}",
            "certificate is not trusted",
            ExitCode.ENGINE,
        ),
        (RETRYING.format(FAILED.format("[Errno 111] Connection refused")), "could not be reached", ExitCode.ENGINE),
        (RETRYING.format(FAILED.format("[Errno -2] Name or service")), "could not be reached", ExitCode.ENGINE),
        (RETRYING.format("ProxyError('Cannot connect to proxy.')"), "could not be reached", ExitCode.ENGINE),
        (
            "pip._vendor.urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead(9 bytes read)')",
            "connection ended",
            ExitCode.ENGINE,
        ),
        (NOT_FOUND, "no index has it", ExitCode.ENGINE),
        ("/usr/bin/python3: No module named pip", "has no pip", ExitCode.USAGE),
        ("HTTP Error 418: I'm a teapot", "HTTP Error 418", ExitCode.ENGINE),
        ("HTTP Error 401: Unauthorized", "wants an account", ExitCode.ENGINE),
        ("HTTP Error 407", "wants an account", ExitCode.ENGINE),
        (
            f"WARNING: 401 Error, Credentials not correct for http://127.0.0.1:8000/simple/numpy/\n{NOT_FOUND}",
            "wants an account",
            ExitCode.ENGINE,
        ),
        ("HTTP status client error (403 Forbidden) for url (https://h/k.whl)", "wants an account", ExitCode.ENGINE),
        ("sha256 4014031403 of numpy-2.2.6", "sha256 4014031403", ExitCode.ENGINE),
        ("no route to https://user:planted@mirror.example/simple/", "no route to https://", ExitCode.ENGINE),
        ("", "no reason was given", ExitCode.ENGINE),
    ],
)
def test_failures_are_told_by_their_cause(said, cause, code):
    error = diagnosed(entry("numpy", "2.2.6"), said)
    assert cause in error.message
    assert "planted" not in error.message
    assert error.message.startswith("numpy==2.2.6 could not be fetched")
    assert error.code is code
    assert error.remedy
