"""The base of a stack's image: which one is meant, that it is locked, and what identifies it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flagbench.errors import FlagbenchError
from flagbench.image_reference import LOCAL, find_reference, parse_reference
from flagbench.images.build.options import BuildOptions
from flagbench.images.engines import Engine
from flagbench.images.engines.base import ImageInfo
from flagbench.images.locks.model import Lock
from flagbench.manifests.model import Stack

Pull = Callable[[str], ImageInfo]
"""Pulls a reference for the platform of the build."""


@dataclass(frozen=True)
class Base:
    """The image that a stack's is built on."""

    reference: str
    """As the engine finds it; the build argument BASE."""
    identity: str
    """`sha256:<64 hex>`: of its manifest where a registry gave one, else the engine's id of it."""
    in_registry: bool = False
    """Whether `identity` is the digest that a registry has it under."""

    @property
    def name(self) -> str:
        """The reference without a digest, which an image's label has beside it."""
        return parse_reference(self.reference).tagged


def require_platform(stack: Stack, options: BuildOptions) -> None:
    """Refuse another platform than the stack's: its lock has the hashes of that platform's files alone.

    Raises FlagbenchError (usage).
    """
    if options.platform is None or _kind(options.platform) == _kind(stack.platform):
        return
    raise FlagbenchError(
        f"--platform is {options.platform}, and the stack {stack.name} is locked for {stack.platform}",
        remedy="add a stack for that platform (docs/add-a-stack.md), or leave --platform out",
    )


def require_locked(stack: Stack, lock: Lock, options: BuildOptions) -> None:
    """Refuse what the lock leaves open, unless that was allowed.

    Raises FlagbenchError (usage): there is no base to build on, the base's digest is unresolved and none was
    named, or packages are unresolved.
    """
    if options.base is None and lock.base_image is None:
        raise FlagbenchError(
            f"the stack {stack.name} has no public base image", remedy=stack.base_obtain or "name one with --base"
        )
    open_ends = [entry.pin for entry in lock.unresolved]
    name_it = ""
    if options.base is None and lock.base_digest is None:
        open_ends.insert(0, f"the digest of {lock.base_image}")
        name_it = " (or name the base with --base)"
    if open_ends and not options.allow_unlocked:
        raise FlagbenchError(
            f"the lock of {stack.name} leaves unresolved: {', '.join(open_ends)}",
            remedy=f"resolve it with `flagbench lock {stack.name}` where a network is{name_it}, "
            "or build what is not pinned with --allow-unlocked",
        )


def resolve_base(stack: Stack, lock: Lock, options: BuildOptions, engine: Engine, pull: Pull) -> Base:
    """The base to build on. A locked digest identifies it, and the build pulls it; any other is pulled if missing.

    Raises:
        FlagbenchError: (usage) `--base` names another image than the one a lock without a public base fixed;
            (build failed) it cannot be pulled.
    """
    if options.base is None and lock.base_image is not None and lock.base_digest is not None:
        return Base(f"{lock.base_image}@{lock.base_digest}", lock.base_digest, in_registry=True)
    platform = options.platform or stack.platform
    reference = options.base or lock.base_image or ""
    image = engine.inspect(reference) or pull(reference)
    if image.platform and _kind(image.platform) != _kind(platform):
        raise FlagbenchError(
            f"the base {reference} is for {image.platform}, the image to build is for {platform}",
            remedy="name a base of the stack's platform with --base, or add a stack for that of this base",
        )
    # An engine may call an image without a name `<none>`.
    named = [found for found in map(find_reference, image.repo_digests) if found]
    digests = {found.name: found.digest for found in named}
    is_fixed = lock.base_image is None and lock.base_digest is not None and not options.allow_unlocked
    if is_fixed and lock.base_digest not in (image.id, *digests.values()):
        raise FlagbenchError(
            f"--base {reference} is the image {image.id}, the lock of {stack.name} fixes {lock.base_digest}",
            remedy=f"name that image, lock this one with `flagbench lock {stack.name}`, or allow it with "
            "--allow-unlocked",
        )
    if image.id.removeprefix("sha256:").startswith(reference.removeprefix("sha256:")):
        # An id, or the beginning of one. BuildKit takes only names in FROM.
        reference = f"{LOCAL}/base:{image.id.removeprefix('sha256:')[:12]}"
        engine.tag(image.id, reference)
    given = parse_reference(reference)
    identity = given.digest or digests.get(given.name) or image.id
    if lock.base_digest in digests.values():
        identity = lock.base_digest or identity  # a mirror of the locked base is the locked base
    # With the containerd image store an image that was loaded has a digest too, its id, and no registry knows it.
    return Base(reference, identity, in_registry=identity != image.id)


def _kind(platform: str) -> list[str]:
    """System and processor: a variant, such as v8 of arm64, is not always said."""
    return platform.split("/")[:2]
