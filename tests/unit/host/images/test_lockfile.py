"""The format of a lock: uv's pylock.toml with a table of ours, read strictly, and the requirements made from it."""

import dataclasses

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.lockfile import (
    Lock,
    Unresolved,
    explain_staleness,
    inputs_digest,
    load_lock,
    lock_path,
    read_lock,
    read_toolkit,
    requirements_file,
    select_packages,
    write_lock,
)
from flagbench.manifests.load import load_catalog
from flagbench_core.exit_codes import ExitCode
from packages import lock_entry

A, B, C = ("sha256:" + digit * 64 for digit in "abc")
REASON = "https://example.org/cu118 could not be reached"


@pytest.fixture(scope="module")
def stack():
    return load_catalog().stacks["a100-cuda11.8"]


def on_base(stack, image):
    return dataclasses.replace(stack, base=dataclasses.replace(stack.base, image=image))


@pytest.fixture
def lock(stack):
    return Lock(
        stack=stack.name,
        python=stack.python,
        base_image=stack.base_image,
        base_digest=None,
        inputs=inputs_digest(stack),
        entries=(lock_entry("flash-attn", "2.7.3", C), lock_entry("numpy", "2.2.6", A, B)),
        unresolved=(Unresolved("torch", "2.6.0+cu118", reason=REASON),),
        toolkit=read_toolkit(stack),
    )


def changed(stack, **build):
    return dataclasses.replace(stack, build=dataclasses.replace(stack.build, **build))


def test_a_lock_is_read_as_it_was_written(lock, stack, tmp_path):
    assert write_lock(lock, tmp_path)
    assert read_lock(stack, tmp_path) == lock
    pinned = dataclasses.replace(lock, base_digest=B, unresolved=())
    assert write_lock(pinned, tmp_path)
    assert read_lock(stack, tmp_path) == pinned
    assert not write_lock(read_lock(stack, tmp_path), tmp_path), "unchanged"
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["pylock.a100-cuda11-8.toml"]


def test_what_pip_cannot_take_along_is_in_comments(lock, stack):
    assert requirements_file(stack, lock).splitlines()[6:] == [
        "numpy==2.2.6 \\",
        f"    --hash={A} \\",
        f"    --hash={B}",
        "# to compile: flash-attn==2.7.3",
        f"# unresolved: torch==2.6.0+cu118 ({REASON})",
    ]


def test_a_part_for_one_step_of_a_build(lock):
    part = select_packages(lock, {"numpy", "torch"})
    assert part.hashed_requirements() == f"numpy==2.2.6 \\\n    --hash={A} \\\n    --hash={B}\n"
    assert part.unhashed_requirements() == "torch==2.6.0+cu118\n"


def test_the_digest_is_of_what_is_locked(lock):
    plain = dataclasses.replace(lock.entries[0], table="another address")
    assert dataclasses.replace(lock, entries=(plain, lock.entries[1])).digest == lock.digest
    assert dataclasses.replace(lock, base_digest=B).digest != lock.digest
    assert dataclasses.replace(lock, unresolved=()).digest != lock.digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[tool.flagbench]", "[tool.other]"),
        ("inputs = ", "base-digest = 'latest'\ninputs = "),
        ('"flash-attn"', '"flash-attn\\n--index-url=https://evil.example"'),
        ('"2.7.3"', '"2.7.3;os"'),
        (f'sha256 = "{C[7:]}"', f'md5 = "{C[7:]}"'),
        ("[[packages]]", "[[ packages ]]"),
        ("could not", "could\\nnot"),
    ],
)
def test_a_lock_that_was_edited_is_refused(old, new, lock, stack, tmp_path):
    write_lock(lock, tmp_path)
    path = lock_path(stack.name, tmp_path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(FlagbenchError, match=str(path)) as caught:
        load_lock(stack, tmp_path)
    assert caught.value.code is ExitCode.USAGE


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_without_a_lock_the_command_that_makes_one_is_named(content, stack, tmp_path):
    if content is not None:
        (tmp_path / "locks").mkdir()
        lock_path(stack.name, tmp_path).write_bytes(content)
    with pytest.raises(FlagbenchError, match=str(lock_path(stack.name, tmp_path))) as caught:
        read_lock(stack, tmp_path)
    assert f"flagbench lock {stack.name}" in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: dataclasses.replace(s, python="3.12"), "Python"),
        (lambda s: changed(s, packages=(*s.build.packages, "x==1")), "packages"),
        (lambda s: changed(s, indexes=()), "indexes"),
        (lambda s: on_base(s, "debian:13"), "debian:13"),
        (lambda s: on_base(s, f"{s.base_image}@{B}"), B),
        (lambda s: changed(s, toolkit=dataclasses.replace(s.build.toolkit, image=f"devel@{B}")), f"devel@{B}"),
        (lambda s: changed(s, toolkit=None), "toolkit"),
    ],
)
def test_a_stale_lock_names_what_changed(change, named, lock, stack):
    assert named in explain_staleness(lock, change(stack))


def test_what_decides_nothing_makes_no_lock_stale(lock, stack):
    same = changed(stack, packages=tuple(reversed(stack.build.packages)), left_out={}, env={"A": "b"}, apt=("git",))
    assert explain_staleness(lock, dataclasses.replace(same, title="New", aliases=())) is None
    pinned = on_base(stack, f"{stack.base_image}@{B}")
    assert explain_staleness(dataclasses.replace(lock, base_digest=B), pinned) is None
