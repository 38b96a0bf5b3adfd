"""The tags, labels and context digest of an image and of the stack's image it stands on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from flagbench.image_reference import LOCAL, image_of, parse_reference
from flagbench.images.docker import ImageInfo
from flagbench.images.lockfile import Lock, select_packages
from flagbench.images.render.directory import Rendered
from flagbench.images.render.steps import case_packages, needed_to_compile, stack_packages
from flagbench.manifests.model import Case
from flagbench.manifests.stack import Stack
from flagbench_core import __version__

CONTEXT_LABEL = "dev.flagbench.context"
"""`sha256:<64 hex>` over all that decides what the image is. It joins all copies of an image."""
BASE_LABEL = "dev.flagbench.base"
"""`sha256:<64 hex>`: of the base's manifest where a registry gave one, else the engine's id of it."""
LOCK_LABEL = "dev.flagbench.lock"
STACK_LABEL = "dev.flagbench.stack"
CASE_LABEL = "dev.flagbench.case"
CREATED_LABEL = "org.opencontainers.image.created"
REVISION_LABEL = "org.opencontainers.image.revision"
BASE_NAME_LABEL = "org.opencontainers.image.base.name"
BASE_DIGEST_LABEL = "org.opencontainers.image.base.digest"
"""`sha256:<64 hex>` of the base's manifest in its registry; absent where no registry is known to have it."""
SOURCE_LABEL = "org.opencontainers.image.source"
LICENSES_LABEL = "org.opencontainers.image.licenses"
LICENSE = "Apache-2.0"
"""Of flagbench's own code, as an SPDX expression; what the base and the packages bring has licences of its own."""

_SHORT = 12
"""Hex digits of a digest in a tag."""
# A tag has no room for the `+` of a local version.
TAG_VERSION = __version__.replace("+", "-")


@dataclass(frozen=True)
class BaseImage:
    """The image that a stack's is built on."""

    reference: str
    """As the engine finds it; the build argument BASE."""
    identity: str
    """`sha256:<64 hex>`: of its manifest where a registry gave one, else the engine's id of it."""
    in_registry: bool = False
    """Whether `identity` is the digest that a registry has it under."""
    has_digest_label: bool = False
    """Whether it carries the label of the digest of its own base, which an image on it would inherit."""

    @property
    def name(self) -> str:
        """The reference without a digest, which an image's label has beside it."""
        return parse_reference(self.reference).tagged


@dataclass(frozen=True)
class Tier:
    """One image to build."""

    rendered: Rendered
    digest: str
    """`sha256:<64 hex>` over all that decides what the image is; its label dev.flagbench.context."""
    tags: tuple[str, ...]
    """The first is the image's main name."""
    build_args: Mapping[str, str]
    labels: Mapping[str, str]
    platform: str
    base: BaseImage
    lock: Lock
    """The part of the stack's lock that it installs; of a case's tier nothing, or what only that case needs."""
    compiles: int = 0
    """How many packages are compiled, each in a stage of its own, all at once."""
    below: str | None = None
    """The tag of the stack's image that a case's is built on; None for a stack's own."""

    @property
    def name(self) -> str:
        """`stack/STACK` or `CASE/STACK`."""
        return self.rendered.name

    @property
    def heavy(self) -> bool:
        """Whether this is the stack's tier, which a case's stands on."""
        return self.below is None

    @property
    def installs(self) -> bool:
        """Whether packages are installed in it."""
        return self.heavy or bool(self.lock.entries or self.lock.unresolved)

    @property
    def fixed_tag(self) -> str:
        """The tag that names what a stack's image was made from; a case's has its main name.

        The same inputs do not make the same bytes, so a build without the cache moves it to another image.
        """
        return self.tags[-1] if self.heavy else self.tags[0]

    def is_made_by(self, image: ImageInfo, below: ImageInfo | None, revision: str | None) -> bool:
        """Whether an image has this tier's digest as its label and, for a case, the commit and the stack's layers.

        A stack's image contains no code of ours, so its commit does not matter; nor does that of a case if this
        flagbench knows no commit (None). Layers are compared, not labels: a stack that is built again without the
        cache has the same label. Without a stack's image a case's is complete by itself.
        """
        if image.labels.get(CONTEXT_LABEL) != self.digest:
            return False
        if below is not None and image.layers[: len(below.layers)] != below.layers:
            return False
        return self.heavy or revision is None or image.labels.get(REVISION_LABEL) == revision


def stack_tier(stack: Stack, rendered: Rendered, lock: Lock, base: BaseImage) -> Tier:
    """The stack's image, with everything that is installed."""
    digest = _digest(rendered, base, stack.platform, None)
    return Tier(
        rendered=rendered,
        digest=digest,
        tags=(
            image_of("stack", stack.name),
            image_of("stack", stack.name, TAG_VERSION),
            f"{LOCAL}/stack:{stack.name}-{digest.removeprefix('sha256:')[:_SHORT]}",
        ),
        build_args={"BASE": base.reference},
        labels=_labels(stack.title, stack, lock, base, digest),
        platform=stack.platform,
        base=base,
        lock=select_packages(lock, stack_packages(stack, lock)),
    )


def case_tier(case: Case, stack: Stack, rendered: Rendered, lock: Lock, base: BaseImage, below: Tier) -> Tier:
    """The case's image on the stack's: code alone."""
    digest = _digest(rendered, base, stack.platform, below.digest)
    names = dict.fromkeys([stack.name, f"{stack.name}-{TAG_VERSION}", *stack.aliases])
    return Tier(
        rendered=rendered,
        digest=digest,
        tags=tuple(image_of(case.name, name) for name in names),
        build_args={"STACK_IMAGE": below.fixed_tag, "FLAGBENCH_CONTEXT_DIGEST": digest},
        labels={
            **_labels(f"{case.title} on {stack.title}", stack, lock, base, digest),
            CASE_LABEL: case.name,
        },
        platform=stack.platform,
        base=base,
        lock=select_packages(lock, case_packages(case, stack, lock)),
        compiles=len(needed_to_compile(case, stack.build)),
        below=below.fixed_tag,
    )


def _digest(rendered: Rendered, base: BaseImage, platform: str, below: str | None) -> str:
    decisive = {
        "context": rendered.digest,
        "base": base.identity,
        "platform": platform,
        "stack": below,
    }
    text = json.dumps(decisive, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _labels(title: str, stack: Stack, lock: Lock, base: BaseImage, digest: str) -> dict[str, str]:
    """The labels of the OCI image specification, and our own."""
    labels = {
        "org.opencontainers.image.title": title,
        "org.opencontainers.image.version": __version__,
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
        labels[BASE_DIGEST_LABEL] = ""  # a label cannot be removed
    return labels
