"""The format of a lock: one spelling, read strictly."""

import dataclasses
import hashlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flagbench.catalog.load import load_catalog
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks import Lock, LockEntry, Unresolved, canonical, is_stale, lock_path, parse_lock, read_lock
from flagbench.locks.model import inputs_digest
from flagbench.locks.write import write_lock

A, B, C = ("sha256:" + digit * 64 for digit in "abc")
LOCK = Lock(
    stack="a100-cuda11.8",
    python="3.10",
    base_image="host:5000/cuda:11.8.0-devel",
    base_digest=None,
    inputs=A,
    entries=(LockEntry("flash-attn", "2.7.3", (C,)), LockEntry("numpy", "2.2.6", (A, B))),
    unresolved=(Unresolved("torch", "2.6.0+cu118", reason="https://example.org/cu118 could not be reached"),),
)
TEXT = f"""\
# Made by `flagbench lock a100-cuda11.8`. Do not edit.
# stack: a100-cuda11.8
# python: 3.10
# base: host:5000/cuda:11.8.0-devel@unresolved
# inputs: {A}
flash-attn==2.7.3 \\
    --hash={C}
numpy==2.2.6 \\
    --hash={A} \\
    --hash={B}
# unresolved: torch==2.6.0+cu118 (https://example.org/cu118 could not be reached)
"""


@pytest.fixture(scope="module")
def stack():
    return load_catalog().stacks["cpu"]


def test_text_is_the_documented_file():
    assert LOCK.text == TEXT
    assert LOCK.digest == "sha256:" + hashlib.sha256(TEXT.encode()).hexdigest()


def test_reading_gives_back_what_was_written():
    assert parse_lock(TEXT, "here") == LOCK


def test_a_stack_without_public_base():
    lock = dataclasses.replace(LOCK, base_image=None, base_digest=B)
    assert f"\n# base: none@{B}\n" in lock.text
    assert parse_lock(lock.text, "here") == lock


def test_requirement_files():
    assert LOCK.hashed_requirements() == f"flash-attn==2.7.3 \\\n    --hash={C}\n" + LOCK.hashed_requirements(
        exclude=["Flash_Attn"]
    )
    assert LOCK.hashed_requirements(exclude=["flash-attn"]) == f"numpy==2.2.6 \\\n    --hash={A} \\\n    --hash={B}\n"
    assert LOCK.unhashed_requirements() == "torch==2.6.0+cu118\n"
    assert LOCK.unhashed_requirements(exclude=["torch"]) == ""


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("Do not edit.", "Do edit.", 1),
        ("lock a100-cuda11.8", "lock cpu", 1),
        ("# stack: a100-cuda11.8", "# stack: A100", 2),
        ("# python: 3.10", "# python: 3.10; x", 3),
        ("# python: 3.10\n", "", 3),
        ("@unresolved", "@latest", 4),
        ("host:5000", "host 5000", 4),
        ("host:5000", "$(id)", 4),
        (f"# inputs: {A}", "# inputs: sha256:abc", 5),
        ("flash-attn==", "Flash_Attn==", 6),
        ("flash-attn==2.7.3 \\", "flash-attn==2.7.3", 6),
        ("flash-attn==2.7.3", "flash-attn>=2.7.3", 6),
        ("flash-attn==2.7.3", "flash-attn==2.7.3;os", 6),
        ("flash-attn==2.7.3", "--index-url=https://evil.example", 6),
        (f"    --hash={C}\n", "", 7),
        (f"    --hash={C}", f"--hash={C}", 7),
        (f"--hash={C}", "--hash=md5:" + "c" * 32, 7),
        (f"--hash={C}", f"--hash={C.upper()}", 7),
        (f"{A} \\\n", f"{A}\n", 10),
        ("numpy==2.2.6", "abc==2.2.6", 8),
        ("numpy==2.2.6", "flash-attn==2.7.4", 8),
        ("# unresolved: torch", "# unresolved: numpy", 11),
        ("reached)", "reached", 11),
        ("(https", "https", 11),
        ("reached)\n", "reached)\n\n", 12),
        ("reached)\n", "reached)\ntorch==1\n", 12),
        ("could not", "could\rnot", 11),
    ],
)
def test_a_malformed_line_is_named(old, new, line):
    assert old in TEXT
    with pytest.raises(FlagbenchError) as caught:
        parse_lock(TEXT.replace(old, new, 1), "images/locks/x.txt")
    assert caught.value.message.startswith(f"images/locks/x.txt:{line}: ")
    # `flagbench lock` alone would keep what it can of this file, hence ends here too.
    assert "flagbench lock STACK --upgrade" in caught.value.remedy
    assert caught.value.code is ExitCode.USAGE


@pytest.mark.parametrize("cut", range(0, len(TEXT) - 1, 7))
def test_a_truncated_lock_is_refused(cut):
    # A cut between two packages leaves a valid, shorter list; a lock is written whole, so that none is ever seen.
    if TEXT[:cut].endswith(f"{C}\n") or TEXT[:cut].endswith(f"{B}\n"):
        cut -= 1
    with pytest.raises(FlagbenchError):
        parse_lock(TEXT[:cut], "x")


WORDS = st.text("abz09", min_size=1, max_size=3)
NAMES = st.lists(WORDS, min_size=1, max_size=3).map("-".join)
VERSIONS = st.sampled_from(["0", "1.2.3", "2.13.0+cpu", "2.5.9.post1", "1!2.0rc1", "1.12.0a0+bd13bc6", "2026.10.18"])
HASHES = st.sets(st.sampled_from([A, B, C]), min_size=1)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(NAMES, st.tuples(VERSIONS, HASHES, st.booleans()), max_size=8))
def test_every_lock_is_read_as_it_was_written(packages):
    entries = sorted(packages.items())
    lock = dataclasses.replace(
        LOCK,
        entries=tuple(LockEntry(n, v, tuple(sorted(h))) for n, (v, h, known) in entries if known),
        unresolved=tuple(Unresolved(n, v, reason="why (not)") for n, (v, _, known) in entries if not known),
    )
    assert parse_lock(lock.text, "x") == lock


def test_canonical_names():
    assert canonical("Flash_Attn.X--y") == "flash-attn-x-y"


def locked(stack, **changes):
    fields = {
        "stack": stack.name,
        "python": stack.python,
        "base_image": stack.base_image,
        "base_digest": None,
        "inputs": inputs_digest(stack),
        "entries": (LockEntry("numpy", "2.4.6", (A,)),),
    }
    return Lock(**{**fields, **changes})


def test_a_lock_that_fits_is_read(stack, tmp_path):
    assert write_lock(locked(stack), tmp_path)
    assert read_lock(stack, tmp_path) == locked(stack)


def test_a_missing_lock_says_how_to_make_it(stack, tmp_path):
    with pytest.raises(FlagbenchError, match="has no lock") as caught:
        read_lock(stack, tmp_path)
    assert "flagbench lock cpu" in caught.value.remedy


def test_a_lock_that_is_no_text(stack, tmp_path):
    write_lock(locked(stack), tmp_path)
    lock_path("cpu", tmp_path).write_bytes(b"\xff\xfe")
    with pytest.raises(FlagbenchError, match="cannot be read") as caught:
        read_lock(stack, tmp_path)
    assert "flagbench lock STACK --upgrade" in caught.value.remedy


def changed(stack, **build):
    return dataclasses.replace(stack, build=dataclasses.replace(stack.build, **build))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: dataclasses.replace(s, python="3.12"), "for Python 3.11, the manifest says 3.12"),
        (lambda s: dataclasses.replace(s, base_image="debian:13"), "the manifest says debian:13"),
        (lambda s: dataclasses.replace(s, base_image=None), "the manifest says none"),
        (lambda s: dataclasses.replace(s, platform="linux/arm64"), "packages, platform or indexes"),
        (lambda s: changed(s, packages=(*s.build.packages, "x==1")), "packages, platform or indexes"),
        (lambda s: changed(s, from_base=("torch",)), "packages, platform or indexes"),
        (lambda s: changed(s, indexes=()), "packages, platform or indexes"),
        (lambda s: dataclasses.replace(s, name="other"), "it is the lock of cpu, not of other"),
    ],
)
def test_a_stale_lock_names_what_changed(stack, change, why):
    assert why in is_stale(locked(stack), change(stack))


def test_what_decides_nothing_makes_no_lock_stale(stack):
    same = changed(stack, packages=tuple(reversed(stack.build.packages)), left_out={}, env={"A": "b"}, apt=("git",))
    assert is_stale(locked(stack), dataclasses.replace(same, title="New", aliases=())) is None


def test_a_stale_lock_is_an_error_that_says_how_to_renew_it(stack, tmp_path):
    write_lock(locked(stack, python="3.12"), tmp_path)
    with pytest.raises(FlagbenchError, match="stale") as caught:
        read_lock(stack, tmp_path)
    assert caught.value.code is ExitCode.USAGE
    assert "flagbench lock cpu" in caught.value.remedy


def test_writing_the_same_again_changes_nothing(stack, tmp_path):
    assert write_lock(locked(stack), tmp_path)
    before = lock_path("cpu", tmp_path).stat()
    assert not write_lock(locked(stack), tmp_path)
    assert lock_path("cpu", tmp_path).stat().st_mtime_ns == before.st_mtime_ns
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["cpu.txt"]


def test_what_a_lock_may_not_hold_is_never_written(stack, tmp_path):
    evil = locked(stack, entries=(LockEntry("numpy", "1\n--index-url=https://evil.example", (A,)),))
    with pytest.raises(FlagbenchError, match="the new lock of cpu:"):
        write_lock(evil, tmp_path)
    assert not lock_path("cpu", tmp_path).exists()


def test_a_failed_write_keeps_the_old_lock(stack, tmp_path, monkeypatch):
    write_lock(locked(stack), tmp_path)
    monkeypatch.setattr(os, "fchmod", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(FlagbenchError, match="No space left"):
        write_lock(locked(stack, base_digest=B), tmp_path)
    assert read_lock(stack, tmp_path) == locked(stack)
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["cpu.txt"]
