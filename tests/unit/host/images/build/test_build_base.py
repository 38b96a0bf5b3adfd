"""Which base is built on, that it is locked, and what identifies it."""

from dataclasses import replace

import pytest

from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.images.build import BaseImage, require_locked, resolve_base
from flagbench.images.build_options import BuildOptions
from flagbench.images.docker import ImageInfo
from flagbench_core.exit_codes import ExitCode

ID = "sha256:" + "b" * 64
DIGEST = "sha256:" + "d" * 64
OTHER = "sha256:" + "e" * 64
IMAGE = ImageInfo(ID, {}, (), (), "linux/amd64")
BY_ID = "localhost/flagbench/base:bbbbbbbbbbbb"


@pytest.fixture
def stack(mini):
    """The stack `mini`, on debian:bookworm-slim."""
    return mini.stacks["mini"]


@pytest.fixture
def resolve(stack, mini_lock, engine):
    """The base of a build with the image `known` in the engine."""

    def resolve(base, known=IMAGE, lock=None, stack=stack, **options):
        engine.images[base] = known
        options = BuildOptions(base=base, **options)
        return resolve_base(stack, lock or mini_lock(), options, engine, Progress(quiet=True))

    return resolve


@pytest.mark.parametrize(
    ("options", "lock", "refused"),
    [
        (BuildOptions(), {"unresolved": "torch"}, "the digest of debian:bookworm-slim, torch==1.0"),
        (BuildOptions(base="debian"), {"unresolved": "torch"}, "torch==1.0"),
        (BuildOptions(), {}, "the digest of debian:bookworm-slim"),
        (BuildOptions(allow_unlocked=True), {"unresolved": "torch"}, None),
        (BuildOptions(base="debian"), {}, None),
        (BuildOptions(), {"base_digest": DIGEST}, None),
    ],
)
def test_what_is_neither_locked_nor_allowed_is_refused_by_name(options, lock, refused, mini_lock, stack):
    if refused is None:
        require_locked(stack, mini_lock(**lock), options)
        return
    with pytest.raises(FlagbenchError) as caught:
        require_locked(stack, mini_lock(**lock), options)
    assert caught.value.message.endswith(f"unresolved: {refused}")
    assert caught.value.code is ExitCode.USAGE
    for word in ("flagbench lock mini", "--allow-unlocked"):
        assert word in caught.value.remedy
    assert ("--base" in caught.value.remedy) is ("debian" in refused)


@pytest.mark.parametrize("allow", [False, True])
def test_without_a_public_base_the_error_says_how_to_get_one(allow, mini, mini_lock):
    stack = mini.stacks["c500-maca2.18"]
    with pytest.raises(FlagbenchError) as refused:
        require_locked(stack, replace(mini_lock(), base_image=None), BuildOptions(allow_unlocked=allow))
    assert {"--base", *stack.base.obtain.split()} <= {*str(refused.value.remedy).split()}
    assert refused.value.code is ExitCode.USAGE


def test_a_locked_digest_identifies_a_base_that_the_build_pulls(mini_lock, stack, engine):
    base = resolve_base(stack, mini_lock(base_digest=DIGEST), BuildOptions(), engine, Progress(quiet=True))
    assert base == BaseImage(f"debian:bookworm-slim@{DIGEST}", DIGEST, in_registry=True)
    assert engine.pulled == []
    assert base.name == "debian:bookworm-slim"


HOST = "mirror.example:5000"


@pytest.mark.parametrize(
    ("base", "digests", "locked", "identity"),
    [
        # Loaded: by its id, also where the containerd image store calls that a digest.
        ("vendor/base:1", (), None, ID),
        ("vendor/base:1", (f"vendor/base@{ID}",), None, ID),
        ("vendor/base:1", ("<none>@<none>",), None, ID),
        # Pulled: by the digest of its repository, or the one that it was named by.
        (f"{HOST}/base:1", (f"{HOST}/a@{OTHER}", f"{HOST}/base@{DIGEST}"), None, DIGEST),
        (f"vendor/base@{DIGEST}", (), None, DIGEST),
        # A mirror of the locked base is the locked base.
        ("mirror/base:1", (f"mirror/base@{OTHER}", f"other/base@{DIGEST}"), DIGEST, DIGEST),
    ],
)
def test_what_identifies_a_base(base, digests, locked, identity, resolve, mini_lock):
    found = resolve(base, replace(IMAGE, repo_digests=digests), mini_lock(base_digest=locked))
    assert found == BaseImage(base, identity, in_registry=identity != ID)


@pytest.mark.parametrize("name", [ID, "b", "bbbbbbbbbbbb", "sha256:bb"])
def test_a_base_named_by_its_id_gets_a_name(name, resolve, engine):
    assert resolve(name) == BaseImage(BY_ID, ID)
    assert engine.images[BY_ID] == IMAGE


def test_a_base_of_another_platform_is_refused(resolve, stack):
    arm = replace(IMAGE, platform="linux/arm64/v8")
    with pytest.raises(FlagbenchError, match="linux/arm64/v8"):
        resolve("a", arm)
    assert resolve("a", arm, stack=replace(stack, platform="linux/arm64")).identity == ID


def test_a_lock_may_fix_the_image_of_a_private_base(resolve, mini_lock):
    lock = replace(mini_lock(base_digest=OTHER), base_image=None)
    with pytest.raises(FlagbenchError, match=OTHER):
        resolve("a", lock=lock)
    assert resolve("a", lock=lock, allow_unlocked=True).identity == ID
    assert resolve("a", lock=replace(lock, base_digest=ID)).identity == ID
    assert resolve("a", replace(IMAGE, repo_digests=(f"a@{OTHER}",)), lock).identity == OTHER
