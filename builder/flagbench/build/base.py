"""The base of a stack's image: which one is meant, that it is locked, and what identifies it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flagbench.build.options import BuildOptions
from flagbench.catalog.model import Stack
from flagbench.engines import Engine
from flagbench.engines.base import ImageInfo
from flagbench.errors import FlagbenchError
from flagbench.images import LOCAL, ImageReference, find_reference, parse_reference
from flagbench.locks.model import Lock

Pull = Callable[[str], ImageInfo]
"""Pulls a reference for the platform of the build."""


@dataclass(frozen=True)
class Base:
    """The image that a stack's is built on."""

    reference: str
    """As the engine finds it; the build argument BASE."""
    identity: str
    """`sha256:<64 hex>`: of its manifest where a registry gave one, else of its layers and configuration."""
    in_registry: bool = False
    """Whether `identity` is the digest that a registry has it under."""
    is_here: bool = False
    """Whether the engine had it when the base was resolved."""

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
    if options.base is None and lock.base_digest is None:
        open_ends.insert(0, f"the digest of {lock.base_image}")
    if open_ends and not options.allow_unlocked:
        base_too = " (or name the base with --base)" if lock.base_digest is None and options.base is None else ""
        raise FlagbenchError(
            f"the lock of {stack.name} leaves unresolved: {', '.join(open_ends)}",
            remedy=f"resolve it with `flagbench lock {stack.name}` where a network is{base_too}, "
            "or build what is not pinned with --allow-unlocked",
        )


def resolve_base(stack: Stack, lock: Lock, options: BuildOptions, engine: Engine, pull: Pull) -> Base:
    """The base to build on, pulled where it has to be to say what it is.

    A locked digest identifies the base before it is here. Anything else is identified by the digest that its
    registry gave, or, as after `docker load`, by its layers and configuration.

    Raises:
        FlagbenchError: (usage) `--base` names another image than the one a lock without a public base fixed;
            (build failed) it cannot be pulled.
    """
    platform = options.platform or stack.platform
    if options.base is None and lock.base_image is not None and lock.base_digest is not None:
        reference = f"{lock.base_image}@{lock.base_digest}"
        return Base(reference, lock.base_digest, in_registry=True, is_here=engine.inspect(reference) is not None)
    reference = options.base or lock.base_image or ""
    image = engine.inspect(reference) or pull(reference)
    if image.platform and _kind(image.platform) != _kind(platform):
        raise FlagbenchError(
            f"the base {reference} is for {image.platform}, the image to build is for {platform}",
            remedy="name a base of the stack's platform with --base, or add a stack for that of this base",
        )
    _require_fixed(stack, lock, options, image)
    if _is_id(reference, image):
        # BuildKit takes only names in FROM.
        reference = f"{LOCAL}/base:{image.id.removeprefix('sha256:')[:12]}"
        engine.tag(image.id, reference)
    identity = _identity(image, reference, lock.base_digest)
    return Base(reference, identity, in_registry=identity != image.content_digest, is_here=True)


def _identity(image: ImageInfo, reference: str, expected: str | None) -> str:
    """A manifest's digest, the expected one before that of the reference; else the digest of the image's content."""
    digests = {known.name: known.digest for known in _references(image.repo_digests)}
    if expected is not None and expected in digests.values():
        return expected
    given = parse_reference(reference)
    if given.digest:
        return given.digest
    digest = digests.get(given.name)
    # With the containerd image store an image that was loaded has a digest too, its id, and no registry knows it.
    return digest if digest and digest != image.id else image.content_digest


def _require_fixed(stack: Stack, lock: Lock, options: BuildOptions, image: ImageInfo) -> None:
    """A lock of a stack without a public base may fix the image itself."""
    if lock.base_image is not None or lock.base_digest is None or options.allow_unlocked:
        return
    known = {image.id, image.content_digest, *(known.digest for known in _references(image.repo_digests))}
    if lock.base_digest not in known:
        raise FlagbenchError(
            f"--base {options.base} is the image {image.content_digest}, "
            f"the lock of {stack.name} fixes {lock.base_digest}",
            remedy=f"name that image, lock this one with `flagbench lock {stack.name}`, or allow it with "
            "--allow-unlocked",
        )


def _is_id(reference: str, image: ImageInfo) -> bool:
    """Whether an image was named by its id or the beginning of it, and not by a name that looks like one.

    An engine takes a beginning of any length that fits one image alone, and a name before that.
    """
    names = {known.tagged for known in _references((*image.repo_tags, *image.repo_digests))}
    if names & {reference, f"{reference}:latest"}:
        return False
    return image.id.removeprefix("sha256:").startswith(reference.removeprefix("sha256:"))


def _kind(platform: str) -> list[str]:
    """System and processor: a variant, such as v8 of arm64, is not always said."""
    return platform.split("/")[:2]


def _references(names: Iterable[str]) -> list[ImageReference]:
    """An image's names, parsed; an engine may call an image without one `<none>`."""
    return [reference for reference in map(find_reference, names) if reference]
