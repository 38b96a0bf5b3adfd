"""The format of a lock: pylock.toml, read strictly, and the requirements file that stands for it."""

import dataclasses
import hashlib
from pathlib import Path

import msgspec.toml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.pylock import Pylock, is_valid_pylock_path

from flagbench.catalog.load import load_catalog
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.files import existing_lock, is_stale, load_lock, lock_path, read_lock, write_lock
from flagbench.locks.model import Lock, LockEntry, Unresolved, inputs_digest, part_of
from flagbench.locks.pylock import dump_pylock, parse_pylock
from flagbench.render.roots import shipped_images

A, B, C = ("sha256:" + digit * 64 for digit in "abc")
NUMPY = ("numpy-2.2.6-cp310-cp310-manylinux_2_17_x86_64.whl", "numpy-2.2.6-cp310-cp310-manylinux_2_28_x86_64.whl")
LOCK = Lock(
    stack="a100-cuda11.8",
    python="3.10",
    base_image="host:5000/cuda:11.8.0-devel",
    base_digest=None,
    inputs=A,
    entries=(
        LockEntry("flash-attn", "2.7.3", (C,), ("flash_attn-2.7.3.tar.gz",)),
        LockEntry("numpy", "2.2.6", (A, B), NUMPY),
    ),
    unresolved=(Unresolved("torch", "2.6.0+cu118", reason="https://example.org/cu118 could not be reached"),),
)
TEXT = dump_pylock(LOCK)
REQUIREMENTS = f"""\
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


def test_it_is_a_file_of_the_standard():
    assert is_valid_pylock_path(lock_path(LOCK.stack, Path("images")))
    pylock = Pylock.from_dict(msgspec.toml.decode(TEXT))
    assert [str(package.version) for package in pylock.packages] == ["2.7.3", "2.2.6"]
    assert pylock.packages[0].sdist.filename == "flash_attn-2.7.3.tar.gz"
    assert "3.10.4" in pylock.requires_python


def test_the_digest_is_that_of_the_requirements_file():
    """So that a lock keeps its digest, and images their records, when the format of the file changes."""
    assert LOCK.requirements == REQUIREMENTS
    assert LOCK.digest == "sha256:" + hashlib.sha256(REQUIREMENTS.encode()).hexdigest()
    part = part_of(LOCK, {"numpy", "torch"})
    assert part.hashed_requirements() == f"numpy==2.2.6 \\\n    --hash={A} \\\n    --hash={B}\n"
    assert part.unhashed_requirements() == "torch==2.6.0+cu118\n"
    assert part_of(LOCK, {"numpy"}).unhashed_requirements() == ""


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("lock-version", "lock_version", "lock-version"),
        ("lock-version", "= lock", "line 2"),
        ('"==3.10.*"', '">=3.10"', "requires-python"),
        ("[tool.flagbench]", "[tool.other]", "tool.flagbench"),
        ('stack = "a', 'stack = "$a', "tool.flagbench.stack"),
        ("host:5000", "host 5000", "tool.flagbench.base.image"),
        ("host:5000", "$(id)", "tool.flagbench.base.image"),
        ("11.8.0-devel", f"11.8.0-devel@{B}", "tool.flagbench.base.image"),
        ("[tool.flagbench.base]", "[tool.flagbench.base]\ndigest = 'latest'", "tool.flagbench.base.digest"),
        (f'inputs = "{A}"', 'inputs = "sha256:abc"', "tool.flagbench.inputs"),
        (f'inputs = "{A}"', "", "tool.flagbench"),
        (f'inputs = "{A}"', "inputs = 1", "tool.flagbench"),
        ('"flash-attn"', '"Flash_Attn"', "packages[0].name"),
        ('"2.7.3"', '"2.7.3;os"', "packages[0].version"),
        ('"2.7.3"', '"2.7.4"', "packages[0].sdist"),
        ('version = "2.7.3"\n', "", "flash-attn"),
        ('version = "2.7.3"\n', 'version = "2.7.3"\nmarker = "os_name == \'nt\'"\n', "flash-attn"),
        (f'sha256 = "{C[7:]}"', f'sha512 = "{C[7:]}"', "flash_attn-2.7.3.tar.gz"),
        (f'sha256 = "{C[7:]}"', 'sha256 = "abc"', "flash-attn"),
        (f'sha256 = "{C[7:]}"', "", "packages[0].sdist"),
        ('name = "torch"', 'name = "numpy"', "numpy"),
        ('name = "torch"', 'name = "--index-url"', "--index-url"),
        ("could not", "could\\nnot", "tool.flagbench.unresolved.reason"),
    ],
)
def test_a_malformed_value_is_named(old, new, named):
    assert old in TEXT
    with pytest.raises(FlagbenchError) as caught:
        parse_pylock(TEXT.replace(old, new, 1), "pylock.x.toml")
    assert caught.value.message.startswith("pylock.x.toml: ")
    assert named in caught.value.message
    assert caught.value.code is ExitCode.USAGE


NAMES = st.lists(st.text("abz09", min_size=1, max_size=3), min_size=1, max_size=3).map("-".join)
VERSIONS = st.sampled_from(["0", "1.2.3", "2.13.0+cpu", "2.5.9.post1", "1!2.0rc1", "1.12.0a0+bd13bc6", "2026.10.18"])
HASHES = st.sets(st.sampled_from([A, B, C]))


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(NAMES, st.tuples(VERSIONS, HASHES), max_size=8),
    st.sampled_from([None, "debian", "host:5000/cuda:11.8.0-devel"]),
    st.sampled_from([None, B]),
)
def test_every_lock_is_read_as_it_was_written(packages, base, digest):
    pins = [(name, version, sorted(hashes)) for name, (version, hashes) in sorted(packages.items())]
    lock = dataclasses.replace(
        LOCK,
        base_image=base,
        base_digest=digest,
        entries=tuple(LockEntry(n, v, tuple(h), wheels(n, v, len(h))) for n, v, h in pins if h),
        unresolved=tuple(Unresolved(n, v, reason="why (not)") for n, v, h in pins if not h),
    )
    assert parse_pylock(dump_pylock(lock), "x") == lock


def wheels(name, version, count):
    """Names of wheels of one package."""
    return tuple(f"{name.replace('-', '_')}-{version}-cp3{number}-none-any.whl" for number in range(count))


def locked(stack, **changes):
    fields = {
        "stack": stack.name,
        "python": stack.python,
        "base_image": stack.base_image,
        "base_digest": None,
        "inputs": inputs_digest(stack),
        "entries": (LockEntry("numpy", "2.2.6", (A,), NUMPY[:1]),),
    }
    return Lock(**{**fields, **changes})


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"stale"])
def test_a_lock_that_cannot_be_used_says_how_to_make_another(content, stack, tmp_path):
    if content == b"stale":
        write_lock(locked(stack, python="3.12"), tmp_path)
    elif content:
        (tmp_path / "locks").mkdir()
        lock_path("cpu", tmp_path).write_bytes(content)
    with pytest.raises(FlagbenchError, match=str(lock_path("cpu", tmp_path))) as caught:
        read_lock(stack, tmp_path)
    assert "flagbench lock" in caught.value.remedy
    assert caught.value.code is ExitCode.USAGE


def test_a_lock_of_the_old_format_is_read_with_a_notice(tmp_path, capsys):
    old = tmp_path / "locks" / f"{LOCK.stack}.txt"
    old.parent.mkdir()
    old.write_text(REQUIREMENTS)
    lock = load_lock(LOCK.stack, tmp_path)
    assert (lock.requirements, lock.digest) == (REQUIREMENTS, LOCK.digest)
    assert str(old) in capsys.readouterr().err
    assert existing_lock(LOCK.stack, tmp_path) == old
    write_lock(LOCK, tmp_path)
    assert load_lock(LOCK.stack, tmp_path) == LOCK
    assert existing_lock(LOCK.stack, tmp_path) == lock_path(LOCK.stack, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"), [(("", ""), "{}: fits its manifest"), (("python: 3.", "python: 3.9"), "the lock {} is stale")]
)
def test_a_check_names_the_file_of_the_old_format(change, said, manifests, monkeypatch, flagbench):
    old = manifests.parent / "images" / "locks" / "cpu.txt"
    old.parent.mkdir(parents=True)
    old.write_text(load_lock("cpu", shipped_images()).requirements.replace(*change))
    monkeypatch.setenv("FLAGBENCH_MANIFESTS", str(manifests))
    ended = flagbench("lock cpu --check")
    assert said.format(old) in ended.out + ended.err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# inputs", "# input"),
        ("flash-attn==2.7.3", "--index-url=https://evil.example"),
        ("flash-attn==2.7.3", "flash-attn>=2.7.3"),
        (f"    --hash={C}\n", ""),
        ("# unresolved", "torch==1\n# unresolved"),
        ("host:5000", "$(id)"),
    ],
)
def test_a_malformed_lock_of_the_old_format(old, new, tmp_path):
    path = tmp_path / "locks" / f"{LOCK.stack}.txt"
    path.parent.mkdir()
    path.write_text(REQUIREMENTS.replace(old, new, 1))
    with pytest.raises(FlagbenchError, match=str(path)):
        load_lock(LOCK.stack, tmp_path)


def changed(stack, **build):
    return dataclasses.replace(stack, build=dataclasses.replace(stack.build, **build))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: dataclasses.replace(s, python="3.12"), "3.12"),
        (lambda s: dataclasses.replace(s, base_image="debian:13"), "debian:13"),
        (lambda s: dataclasses.replace(s, base_image=f"{s.base_image}@{B}"), B),
        (lambda s: dataclasses.replace(s, base_image=None), "none"),
        (lambda s: dataclasses.replace(s, platform="linux/arm64"), "platform"),
        (lambda s: changed(s, packages=(*s.build.packages, "x==1")), "packages"),
        (lambda s: changed(s, from_base=("torch",)), "packages"),
        (lambda s: changed(s, indexes=()), "indexes"),
        (lambda s: dataclasses.replace(s, name="other"), "other"),
    ],
)
def test_a_stale_lock_names_what_changed(stack, change, named):
    assert named in is_stale(locked(stack), change(stack))


def test_what_decides_nothing_makes_no_lock_stale(stack):
    same = changed(stack, packages=tuple(reversed(stack.build.packages)), left_out={}, env={"A": "b"}, apt=("git",))
    assert is_stale(locked(stack), dataclasses.replace(same, title="New", aliases=())) is None
    pinned = dataclasses.replace(stack, base_image=f"{stack.base_image}@{B}")
    assert is_stale(locked(stack, base_digest=B), pinned) is None


def test_a_base_in_a_manifest_is_an_image_reference(stack):
    with pytest.raises(FlagbenchError) as caught:
        is_stale(locked(stack), dataclasses.replace(stack, base_image="$(id)"))
    assert "'$(id)'" in caught.value.message
    assert str(stack.path) in caught.value.remedy


def test_writing_the_same_again_changes_nothing(stack, tmp_path):
    assert write_lock(locked(stack), tmp_path)
    before = lock_path("cpu", tmp_path).stat()
    assert not write_lock(locked(stack), tmp_path)
    assert lock_path("cpu", tmp_path).stat().st_mtime_ns == before.st_mtime_ns
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["pylock.cpu.toml"]


@pytest.mark.parametrize(
    "entries",
    [
        [LockEntry("numpy", "1\n--index-url=https://evil.example", (A,), NUMPY[:1])],
        [LockEntry("numpy", "2.2.6", (A,))],
        [LockEntry("numpy", "2.2.6", (A,), ("scipy-2.2.6-py3-none-any.whl",))],
        [LockEntry("numpy", "2.2.6", (A,), NUMPY[:1]), LOCK.entries[0]],
        [LockEntry("numpy", "2.2.6", (A,), NUMPY[:1])] * 2,
    ],
)
def test_what_a_lock_may_not_hold_is_never_written(entries, stack, tmp_path):
    with pytest.raises(FlagbenchError, match="numpy"):
        write_lock(locked(stack, entries=tuple(entries)), tmp_path)
    assert not lock_path("cpu", tmp_path).exists()


def test_a_failed_write_keeps_the_old_lock(stack, small_disk):
    write_lock(locked(stack), small_disk)
    many = tuple(
        LockEntry(f"p{number:04}", "1", (A,), (f"p{number:04}-1-py3-none-any.whl",)) for number in range(999)
    )
    with pytest.raises(FlagbenchError, match=str(lock_path("cpu", small_disk))):
        write_lock(locked(stack, entries=many), small_disk)
    assert read_lock(stack, small_disk) == locked(stack)
    assert [path.name for path in (small_disk / "locks").iterdir()] == ["pylock.cpu.toml"]
