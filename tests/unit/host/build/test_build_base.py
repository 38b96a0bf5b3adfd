"""Which base is built on, that it is locked, and what identifies it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flagbench.build.base import Base, pull_base, require_locked, resolve_base
from flagbench.build.options import BuildOptions
from flagbench.catalog.model import Catalog, Stack
from flagbench.engines.base import ImageInfo
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.locks.model import Lock

ID = "sha256:" + "b" * 64
DIGEST = "sha256:" + "d" * 64
OTHER = "sha256:" + "e" * 64


def image(**changes: object) -> ImageInfo:
    """An image of the engine."""
    plain = ImageInfo(ID, {}, 1000, (), {}, (), "linux/amd64")
    return replace(plain, **changes)  # type: ignore[arg-type]


CONTENT = image().content_digest


class Images:
    """The one question that is asked of an engine, and the one request."""

    def __init__(self, **known: ImageInfo) -> None:
        self.known = known
        self.pulled: list[tuple[str, str]] = []
        self.tagged: list[tuple[str, str]] = []

    def inspect(self, ref: str) -> ImageInfo | None:
        return self.known.get(ref) or next((i for i in self.known.values() if i.id == ref), None)

    def tag(self, ref: str, name: str) -> None:
        self.tagged.append((ref, name))

    def pull(self, ref: str, platform: str) -> ImageInfo:
        self.pulled.append((ref, platform))
        return image()


@pytest.fixture
def stack(mini: Catalog) -> Stack:
    """The stack `mini`, on debian:bookworm-slim."""
    return mini.stacks["mini"]


def resolve(stack: Stack, lock: Lock, base: str | None, images: Images, **options: object) -> Base:
    """The base of a build with these images in the engine."""
    chosen = BuildOptions(base=base, **options)  # type: ignore[arg-type]
    return resolve_base(stack, lock, chosen, images, images.pull)  # type: ignore[arg-type]


def test_what_is_unresolved_is_refused_by_name(mini_lock: Callable[..., Lock], stack: Stack) -> None:
    with pytest.raises(FlagbenchError) as refused:
        require_locked(stack, mini_lock(unresolved="torch"), BuildOptions())
    assert refused.value.code is ExitCode.USAGE
    for name in ("debian:bookworm-slim", "torch==1.0"):
        assert name in refused.value.message
    for word in ("flagbench lock mini", "--base", "--allow-unlocked"):
        assert word in refused.value.remedy


@pytest.mark.parametrize(
    ("options", "lock"),
    [
        (BuildOptions(allow_unlocked=True), {"unresolved": "torch"}),
        (BuildOptions(base="debian"), {}),
        (BuildOptions(), {"base_digest": DIGEST}),
    ],
)
def test_what_is_locked_or_allowed_is_built(
    options: BuildOptions, lock: dict[str, str], mini_lock: Callable[..., Lock], stack: Stack
) -> None:
    require_locked(stack, mini_lock(**lock), options)


def test_a_named_base_does_not_excuse_an_unresolved_package(mini_lock: Callable[..., Lock], stack: Stack) -> None:
    with pytest.raises(FlagbenchError) as refused:
        require_locked(stack, mini_lock(unresolved="torch"), BuildOptions(base="debian"))
    assert "torch==1.0" in refused.value.message
    assert "debian" not in refused.value.message


def test_without_a_public_base_the_error_says_how_to_get_one(mini: Catalog, mini_lock: Callable[..., Lock]) -> None:
    stack = mini.stacks["c500-maca2.18"]
    lock = replace(mini_lock(), base_image=None)
    for allow in (False, True):
        with pytest.raises(FlagbenchError) as refused:
            require_locked(stack, lock, BuildOptions(allow_unlocked=allow))
        assert refused.value.remedy == stack.base_obtain
        assert refused.value.code is ExitCode.USAGE


def test_a_locked_digest_says_what_the_base_is_without_its_being_here(
    mini_lock: Callable[..., Lock], stack: Stack
) -> None:
    images = Images()
    base = resolve(stack, mini_lock(base_digest=DIGEST), None, images)
    assert base == Base(f"debian:bookworm-slim@{DIGEST}", DIGEST)
    assert images.pulled == []
    pull_base(base, "linux/amd64", images.pull)
    assert images.pulled == [(base.reference, "linux/amd64")]
    assert base.name == "debian:bookworm-slim"


def test_a_loaded_image_is_identified_by_its_content(mini_lock: Callable[..., Lock], stack: Stack) -> None:
    base = resolve(stack, mini_lock(), "vendor/base:1", Images(**{"vendor/base:1": image()}))
    assert base == Base("vendor/base:1", CONTENT, ID, is_here=True)


def test_a_pulled_image_is_identified_by_the_digest_of_its_repository(
    mini_lock: Callable[..., Lock], stack: Stack
) -> None:
    known = image(repo_digests=(f"mirror.example:5000/a@{OTHER}", f"mirror.example:5000/base@{DIGEST}"))
    base = resolve(stack, mini_lock(), "mirror.example:5000/base:1", Images(**{"mirror.example:5000/base:1": known}))
    assert base.identity == DIGEST


def test_a_mirror_of_the_locked_base_is_the_locked_base(mini_lock: Callable[..., Lock], stack: Stack) -> None:
    known = image(repo_digests=(f"mirror/base@{OTHER}", f"other/base@{DIGEST}"))
    base = resolve(stack, mini_lock(base_digest=DIGEST), "mirror/base:1", Images(**{"mirror/base:1": known}))
    assert base.identity == DIGEST


def test_an_image_named_by_its_id_gets_a_name_that_a_dockerfile_can_use(
    mini_lock: Callable[..., Lock], stack: Stack
) -> None:
    images = Images(loaded=image())
    base = resolve(stack, mini_lock(), ID, images)
    assert base == Base("localhost/flagbench/base:bbbbbbbbbbbb", CONTENT, ID, is_here=True)
    assert images.tagged == [(ID, "localhost/flagbench/base:bbbbbbbbbbbb")]


@pytest.mark.parametrize("short", ["b", "bbb", "bbbbbbbbbbbb", "sha256:bb"])
def test_the_beginning_of_an_id_is_an_id(short: str, mini_lock: Callable[..., Lock], stack: Stack) -> None:
    images = Images(**{short: image(repo_tags=("vendor/base:1",), repo_digests=(f"vendor/base@{DIGEST}",))})
    assert resolve(stack, mini_lock(), short, images).reference == "localhost/flagbench/base:bbbbbbbbbbbb"
    assert images.tagged == [(ID, "localhost/flagbench/base:bbbbbbbbbbbb")]


@pytest.mark.parametrize(
    ("name", "known"),
    [("bbb", {"repo_tags": ("bbb:latest",)}), ("bbb", {"repo_digests": (f"bbb@{DIGEST}",)}), ("vendor/b:1", {})],
)
def test_a_name_that_looks_like_an_id_is_a_name(
    name: str, known: dict[str, object], mini_lock: Callable[..., Lock], stack: Stack
) -> None:
    images = Images(**{name: image(**known)})
    assert resolve(stack, mini_lock(), name, images).reference == name
    assert images.tagged == []


def test_a_locked_base_that_is_here_is_not_pulled(mini_lock: Callable[..., Lock], stack: Stack) -> None:
    images = Images(**{f"debian:bookworm-slim@{DIGEST}": image(size=0)})
    pull_base(resolve(stack, mini_lock(base_digest=DIGEST), None, images), "linux/amd64", images.pull)
    assert images.pulled == []


def test_what_is_not_here_is_pulled_for_the_platform(mini_lock: Callable[..., Lock], stack: Stack) -> None:
    images = Images()
    resolve(stack, mini_lock(), "vendor/base:1", images)
    assert images.pulled == [("vendor/base:1", "linux/amd64")]


def test_a_base_of_another_platform_is_refused(mini_lock: Callable[..., Lock], stack: Stack) -> None:
    arm = Images(a=image(platform="linux/arm64/v8"))
    with pytest.raises(FlagbenchError) as refused:
        resolve(stack, mini_lock(), "a", arm)
    assert "linux/arm64/v8" in refused.value.message
    arm_stack = replace(stack, platform="linux/arm64")
    assert resolve(arm_stack, mini_lock(), "a", arm).identity == arm.known["a"].content_digest


def test_a_lock_may_fix_the_image_of_a_private_base(mini_lock: Callable[..., Lock], stack: Stack) -> None:
    lock = replace(mini_lock(base_digest=OTHER), base_image=None)
    with pytest.raises(FlagbenchError) as refused:
        resolve(stack, lock, "a", Images(a=image()))
    assert CONTENT in refused.value.message
    assert OTHER in refused.value.message
    assert resolve(stack, lock, "a", Images(a=image()), allow_unlocked=True).identity == CONTENT
    for fixed in (CONTENT, ID):
        assert resolve(stack, replace(lock, base_digest=fixed), "a", Images(a=image())).identity == CONTENT


def test_a_digest_that_is_the_engines_id_is_no_registrys(mini_lock: Callable[..., Lock], stack: Stack) -> None:
    """The containerd image store gives one to an image that was loaded."""
    known = image(repo_digests=(f"vendor/base@{ID}",))
    assert resolve(stack, mini_lock(), "vendor/base:1", Images(a=known, **{"vendor/base:1": known})).identity == (
        known.content_digest
    )
