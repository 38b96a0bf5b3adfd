"""The tags, labels and context digest of an image, and of the stack's image on which a case's image is built.

`flagbench build` gives them to images. The context digest is over everything that decides what an image is; by it a
build finds out whether an image is up to date, and a record names its image.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from flagbench.image_reference import LOCAL, image_of, parse_reference
from flagbench.images.docker import ImageInfo
from flagbench.images.lockfile import Lock, select_packages
from flagbench.images.render.directory import BuildDirectory
from flagbench.images.render.steps import case_packages, needed_to_compile, stack_packages
from flagbench.manifests.model import Case
from flagbench.manifests.stack import Stack
from flagbench_core import __version__

CONTEXT_LABEL = "dev.flagbench.context"
"""The context digest, `sha256:<64 hex>` over all that decides what the image is. All copies of an image have it."""
BASE_LABEL = "dev.flagbench.base"
"""`sha256:<64 hex>`: the digest of the base's manifest if a registry gave one, else the engine's id of the base."""
LOCK_LABEL = "dev.flagbench.lock"
"""`sha256:<64 hex>`: the digest of the stack's lock."""
STACK_LABEL = "dev.flagbench.stack"
"""The name of the stack."""
CASE_LABEL = "dev.flagbench.case"
"""The name of the case; absent from a stack's image."""
TITLE_LABEL = "org.opencontainers.image.title"
"""The titles of the case and the stack, for people."""
VERSION_LABEL = "org.opencontainers.image.version"
"""The version of flagbench."""
CREATED_LABEL = "org.opencontainers.image.created"
"""The time of the build, RFC 3339 in UTC."""
REVISION_LABEL = "org.opencontainers.image.revision"
"""The commit of flagbench; empty if it is not known."""
BASE_NAME_LABEL = "org.opencontainers.image.base.name"
"""The reference of the base, without a digest."""
BASE_DIGEST_LABEL = "org.opencontainers.image.base.digest"
"""`sha256:<64 hex>`: the digest of the base's manifest in its registry; absent or empty if no registry is known to
have it."""
SOURCE_LABEL = "org.opencontainers.image.source"
"""The URL of the source code; absent unless the user names one."""
LICENSES_LABEL = "org.opencontainers.image.licenses"
"""The licence of flagbench's own code, `LICENSE`."""
LICENSE = "Apache-2.0"
"""The licence of flagbench's own code, an SPDX expression. The base and the packages have their own licences."""

SHORT_DIGEST = 12
"""Hexadecimal digits of a digest in a tag: docker's own output shows as many."""
TAG_VERSION = __version__.replace("+", "-")
"""The version as a part of a tag, which cannot have the `+` of a local version."""


@dataclass(frozen=True)
class BaseImage:
    """The image that a stack's image is built on."""

    reference: str
    """The name by which the engine finds it; the build argument BASE."""
    identity: str
    """`sha256:<64 hex>`: of its manifest if a registry gave one, else the engine's id of it."""
    in_registry: bool = False
    """Whether `identity` is its digest in a registry."""
    has_digest_label: bool = False
    """Whether it has the label with the digest of its own base, which an image on it would inherit."""

    @property
    def name(self) -> str:
        """The reference without a digest, for a label; the digest has a label of its own."""
        return parse_reference(self.reference).tagged


@dataclass(frozen=True)
class Tier:
    """One image to build: the stack's tier of an image, or the case's tier, which is built on it."""

    directory: BuildDirectory
    digest: str
    """`sha256:<64 hex>` over all that decides what the image is; its label dev.flagbench.context."""
    tags: tuple[str, ...]
    """The names of the image, `repository:tag`; the first is its main name."""
    digest_tag: str | None
    """The one of `tags` that contains the context digest; None for the case's tier, which has no such tag."""
    build_args: Mapping[str, str]
    labels: Mapping[str, str]
    platform: str
    """`os/arch`."""
    base: BaseImage
    lock: Lock
    """The part of the stack's lock that it installs: in a case's tier nothing, or what only that case needs."""
    compiled_packages: int = 0
    """The number of packages that are compiled, each in a stage of its own, all in parallel."""
    stack_tag: str | None = None
    """The `digest_tag` of the stack's image that a case's image is built on; None for the stack's tier."""

    @property
    def name(self) -> str:
        """`stack/STACK` or `CASE/STACK`."""
        return self.directory.name

    @property
    def is_stack(self) -> bool:
        """Whether this is the stack's tier, and not a case's."""
        return self.stack_tag is None

    @property
    def installs_packages(self) -> bool:
        """Whether packages are installed in it."""
        return self.is_stack or bool(self.lock.entries or self.lock.unresolved)

    def matches(self, image: ImageInfo, stack_image: ImageInfo | None, revision: str | None) -> bool:
        """Whether an image is the one that a build of this tier would make.

        Its label has to be this tier's digest. For a case's image the label alone is not enough: a stack that was
        built again without the cache keeps its label, but has other layers. So the lowest layers of a case's image
        have to be those of the stack's image. Its commit has to be this flagbench's, because it contains our code.

        Args:
            image: an image that the engine has.
            stack_image: the stack's image that the engine has; None for the stack's tier, or if the engine has none:
                then layers are not compared, as a case's image is complete by itself.
            revision: the commit of this flagbench; None if it is not known: then commits are not compared.
        """
        if image.labels.get(CONTEXT_LABEL) != self.digest:
            return False
        if stack_image is not None and image.layers[: len(stack_image.layers)] != stack_image.layers:
            return False
        if self.is_stack or revision is None:
            return True
        return image.labels.get(REVISION_LABEL) == revision


def stack_tier(stack: Stack, directory: BuildDirectory, lock: Lock, base: BaseImage) -> Tier:
    """Describe the stack's image, in which everything is installed that all its cases need."""
    digest = _context_digest(directory, base, stack.platform, stack_digest=None)
    digest_tag = _digest_tag(stack, digest)
    return Tier(
        directory=directory,
        digest=digest,
        tags=(
            image_of("stack", stack.name),
            image_of("stack", stack.name, TAG_VERSION),
            digest_tag,
        ),
        digest_tag=digest_tag,
        build_args={"BASE": base.reference},
        labels=_labels(stack.title, stack, lock, base, digest),
        platform=stack.platform,
        base=base,
        lock=select_packages(lock, stack_packages(stack, lock)),
    )


def case_tier(
    case: Case, stack: Stack, directory: BuildDirectory, lock: Lock, base: BaseImage, tier_of_stack: Tier
) -> Tier:
    """Describe the case's image on the stack's: the code, and packages that only this case needs."""
    digest = _context_digest(directory, base, stack.platform, stack_digest=tier_of_stack.digest)
    stack_tag = _digest_tag(stack, tier_of_stack.digest)
    names = dict.fromkeys([stack.name, f"{stack.name}-{TAG_VERSION}", *stack.aliases])
    return Tier(
        directory=directory,
        digest=digest,
        tags=tuple(image_of(case.name, name) for name in names),
        digest_tag=None,
        build_args={"STACK_IMAGE": stack_tag, "FLAGBENCH_CONTEXT_DIGEST": digest},
        labels={
            **_labels(f"{case.title} on {stack.title}", stack, lock, base, digest),
            CASE_LABEL: case.name,
        },
        platform=stack.platform,
        base=base,
        lock=select_packages(lock, case_packages(case, stack)),
        compiled_packages=len(needed_to_compile(case, stack.build)),
        stack_tag=stack_tag,
    )


def _digest_tag(stack: Stack, digest: str) -> str:
    """Return the tag of a stack's image that contains its context digest, by which a case's image names it.

    The same inputs do not make the same bytes, so a build without the cache moves the tag to another image.
    """
    return f"{LOCAL}/stack:{stack.name}-{digest.removeprefix('sha256:')[:SHORT_DIGEST]}"


def _context_digest(directory: BuildDirectory, base: BaseImage, platform: str, *, stack_digest: str | None) -> str:
    """Compute the digest over all that decides what an image is, `sha256:<64 hex>`.

    Args:
        stack_digest: the context digest of the stack's image that it is built on; None for the stack's image.
    """
    decisive = {
        "context": directory.digest,
        "base": base.identity,
        "platform": platform,
        "stack": stack_digest,
    }
    text = json.dumps(decisive, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _labels(title: str, stack: Stack, lock: Lock, base: BaseImage, digest: str) -> dict[str, str]:
    """Build the labels of an image: those of the OCI image specification, and our own."""
    labels = {
        TITLE_LABEL: title,
        VERSION_LABEL: __version__,
        LICENSES_LABEL: LICENSE,
        BASE_NAME_LABEL: base.name,
        CONTEXT_LABEL: digest,
        LOCK_LABEL: lock.digest,
        STACK_LABEL: stack.name,
        BASE_LABEL: base.identity,
    }
    if base.in_registry:
        labels[BASE_DIGEST_LABEL] = base.identity
    elif base.has_digest_label:
        labels[BASE_DIGEST_LABEL] = ""  # Replaces the base's label, as a label cannot be removed.
    return labels
