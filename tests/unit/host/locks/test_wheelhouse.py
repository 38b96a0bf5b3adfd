"""A wheelhouse: what is kept, what is fetched, and what an interrupted or dishonest fetch leaves behind."""

import dataclasses
import fcntl
import hashlib
import os

import pytest
from packaging.version import Version

from flagbench.catalog.load import load_catalog
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks import Lock, LockEntry, Unresolved, wheelhouse
from flagbench.locks.fetch import diagnosed
from flagbench.locks.packages import pin_of
from flagbench.locks.sources import Sources
from flagbench.locks.wheelhouse import fill_wheelhouse

FILES = {
    "numpy": ("numpy-2.2.6-cp310-cp310-manylinux_2_28_x86_64.whl", b"numpy"),
    "py-cpuinfo": ("py_cpuinfo-9.0.0-py3-none-any.whl", b"cpuinfo"),
    "flash-attn": ("flash_attn-2.7.3.tar.gz", b"source"),
    "torch": ("torch-2.6.0+cu118-cp310-cp310-linux_x86_64.whl", b"torch"),
}


def sha256(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def entry(name, version):
    return LockEntry(name, version, (sha256(FILES[name][1]),))


@pytest.fixture(scope="module")
def stack():
    stack = load_catalog().stacks["a100-cuda11.8"]
    compiled = tuple(package for package in stack.build.compiled if package.name == "flash-attn")
    return dataclasses.replace(stack, build=dataclasses.replace(stack.build, compiled=compiled))


@pytest.fixture
def lock(stack):
    entries = (entry("flash-attn", "2.7.3"), entry("numpy", "2.2.6"), entry("py-cpuinfo", "9.0.0"))
    return Lock(stack.name, "3.10", None, None, sha256(b""), entries)


@pytest.fixture
def index(monkeypatch):
    """An index whose files a test may change; `asked` lists what was fetched, and how."""

    class Index:
        def __init__(self):
            self.files = dict(FILES)
            self.asked = []

        def fetch(self, how, wanted, folder):
            self.asked.append((how, wanted.name))
            name, content = self.files[wanted.name]
            if isinstance(content, BaseException):
                raise content
            (folder / name).write_bytes(content)

    index = Index()
    monkeypatch.setattr(wheelhouse, "fetch_wheel", lambda s, e, folder, _: index.fetch("wheel", e, folder))
    monkeypatch.setattr(wheelhouse, "fetch_source", lambda s, e, folder, _s, _t: index.fetch("source", e, folder))
    return index


def filled(stack, lock, folder, **options):
    return fill_wheelhouse(
        stack, lock, folder, sources=Sources(environ={}), tables={}, report=lambda _: None, **options
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_an_empty_house_is_filled(stack, lock, index, tmp_path):
    files = filled(stack, lock, tmp_path / "new" / "house")
    assert sorted(index.asked) == [("source", "flash-attn"), ("wheel", "numpy"), ("wheel", "py-cpuinfo")]
    assert [(file.name, file.fetched, file.locked) for file in files] == [
        ("flash-attn", True, True),
        ("numpy", True, True),
        ("py-cpuinfo", True, True),
    ]
    assert files[1].sha256 == hashlib.sha256(b"numpy").hexdigest()
    assert files[1].size == 5
    assert names(tmp_path / "new" / "house") == sorted(FILES[file.name][0] for file in files)


def test_what_is_there_and_right_is_kept(stack, lock, index, tmp_path):
    filled(stack, lock, tmp_path)
    index.asked.clear()
    assert [file.fetched for file in filled(stack, lock, tmp_path)] == [False, False, False]
    assert index.asked == []


def test_a_damaged_file_is_fetched_again(stack, lock, index, tmp_path):
    filled(stack, lock, tmp_path)
    index.asked.clear()
    (tmp_path / FILES["numpy"][0]).write_bytes(b"num")
    filled(stack, lock, tmp_path)
    assert index.asked == [("wheel", "numpy")]
    assert (tmp_path / FILES["numpy"][0]).read_bytes() == b"numpy"


def test_files_of_another_stack_stay(stack, lock, index, tmp_path):
    other = tmp_path / "numpy-2.2.6-cp312-cp312-manylinux_2_28_x86_64.whl"
    other.write_bytes(b"numpy for another Python")
    (tmp_path / "notes.txt").write_text("mine")
    filled(stack, lock, tmp_path)
    assert other.read_bytes() == b"numpy for another Python"
    assert len(names(tmp_path)) == 5


def test_what_a_killed_run_left_is_cleared_away(stack, lock, index, tmp_path):
    (tmp_path / ".flagbench-abc" / "file").mkdir(parents=True)
    filled(stack, lock, tmp_path)
    assert not (tmp_path / ".flagbench-abc").exists()


def test_another_file_than_the_locked_one_never_enters(stack, lock, index, tmp_path):
    index.files["numpy"] = (FILES["numpy"][0], b"evil")
    with pytest.raises(FlagbenchError) as caught:
        filled(stack, lock, tmp_path)
    assert "numpy" in str(caught.value)
    assert caught.value.code is ExitCode.DATA
    assert FILES["numpy"][0] not in names(tmp_path)


def test_a_failure_keeps_what_was_fetched_and_leaves_nothing_half_done(stack, lock, index, tmp_path):
    index.files["py-cpuinfo"] = ("x", OSError(28, "No space left on device"))
    with pytest.raises(FlagbenchError) as caught:
        filled(stack, lock, tmp_path)
    assert "No space left" in str(caught.value)
    assert not [name for name in names(tmp_path) if name.startswith(".")]
    index.files = dict(FILES)
    before = set(names(tmp_path))
    assert {FILES[f.name][0] for f in filled(stack, lock, tmp_path) if not f.fetched} == before


def test_unresolved_packages_are_refused(stack, lock, index, tmp_path):
    lock = dataclasses.replace(lock, unresolved=(Unresolved("torch", "2.6.0+cu118", reason="no network"),))
    with pytest.raises(FlagbenchError) as caught:
        filled(stack, lock, tmp_path / "house")
    assert "torch==2.6.0+cu118" in str(caught.value)
    assert "--allow-unlocked" in caught.value.remedy
    assert index.asked == []
    assert not (tmp_path / "house").exists()


def test_unresolved_packages_are_fetched_on_request_and_said_to_be_unlocked(stack, lock, index, tmp_path):
    lock = dataclasses.replace(lock, unresolved=(Unresolved("torch", "2.6.0+cu118", reason="no network"),))
    files = {file.name: file for file in filled(stack, lock, tmp_path, allow_unlocked=True)}
    assert not files["torch"].locked
    assert files["torch"].sha256 == hashlib.sha256(b"torch").hexdigest()
    index.asked.clear()
    # Nothing says that the file which is there is the right one.
    filled(stack, lock, tmp_path, allow_unlocked=True)
    assert index.asked == [("wheel", "torch")]


def test_two_runs_do_not_fill_one_house(stack, lock, index, tmp_path):
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(FlagbenchError) as caught:
            filled(stack, lock, tmp_path)
        assert str(tmp_path) in str(caught.value)
    finally:
        os.close(held)


def test_a_house_that_cannot_be_made(stack, lock, index, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FlagbenchError) as caught:
        filled(stack, lock, tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)


@pytest.mark.parametrize(
    ("file", "pin"),
    [
        ("flash_attn-2.5.9.post1.tar.gz", ("flash-attn", "2.5.9.post1")),
        ("torch-2.6.0+cu118-cp310-cp310-linux_x86_64.whl", ("torch", "2.6.0+cu118")),
        ("py_cpuinfo-9.0.0-py3-none-any.whl", ("py-cpuinfo", "9.0.0")),
        ("old-name-1.0.zip", ("old-name", "1.0")),
        ("README", None),
        ("nothing.whl", None),
    ],
)
def test_pins_in_file_names(file, pin):
    assert pin_of(file) == (pin and (pin[0], Version(pin[1])))


# pip's words for every failed connection, whatever the reason.
RETRYING = (
    "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken "
    "by '{}': /simple/numpy/\nERROR: No matching distribution found for numpy==2.2.6"
)


@pytest.mark.parametrize(
    ("said", "cause", "code"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full", ExitCode.USAGE),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "another file", ExitCode.DATA),
        (
            "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]'))\n"
            "ERROR: No matching distribution found for numpy==2.2.6",
            "certificate is not trusted",
            ExitCode.ENGINE,
        ),
        (
            RETRYING.format(
                "NewConnectionError('<pip._vendor.urllib3.connection.HTTPConnection object at 0x7f4c>: "
                "Failed to establish a new connection: [Errno 111] Connection refused')"
            ),
            "could not be reached",
            ExitCode.ENGINE,
        ),
        (
            RETRYING.format(
                "NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f4c>: "
                "Failed to establish a new connection: [Errno -2] Name or service not known')"
            ),
            "could not be reached",
            ExitCode.ENGINE,
        ),
        (
            RETRYING.format(
                "ProxyError('Cannot connect to proxy.', "
                "NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f4c>: "
                "Failed to establish a new connection: [Errno 111] Connection refused'))"
            ),
            "could not be reached",
            ExitCode.ENGINE,
        ),
        (
            "pip._vendor.urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead(9 bytes read)')",
            "connection ended",
            ExitCode.ENGINE,
        ),
        ("ERROR: No matching distribution found for numpy==2.2.6", "no index has it", ExitCode.ENGINE),
        ("/usr/bin/python3: No module named pip", "has no pip", ExitCode.USAGE),
        ("HTTP Error 418: I'm a teapot", "HTTP Error 418", ExitCode.ENGINE),
        ("HTTP Error 401: Unauthorized", "wants an account", ExitCode.ENGINE),
        ("HTTP Error 407", "wants an account", ExitCode.ENGINE),
        (
            "WARNING: 401 Error, Credentials not correct for http://127.0.0.1:8000/simple/numpy/\n"
            "ERROR: No matching distribution found for numpy==2.2.6",
            "wants an account",
            ExitCode.ENGINE,
        ),
        ("HTTP status client error (403 Forbidden) for url (https://h/k.whl)", "wants an account", ExitCode.ENGINE),
        ("sha256 4014031403 of numpy-2.2.6", "sha256 4014031403", ExitCode.ENGINE),
        ("no route to https://user:planted@mirror.example/simple/", "no route to https://", ExitCode.ENGINE),
        ("", "nothing was said", ExitCode.ENGINE),
    ],
)
def test_failures_are_told_by_their_cause(said, cause, code):
    error = diagnosed(entry("numpy", "2.2.6"), said)
    assert cause in error.message
    assert "planted" not in error.message
    assert error.message.startswith("numpy==2.2.6 could not be fetched")
    assert error.code is code
    assert error.remedy
