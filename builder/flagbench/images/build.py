"""`flagbench build`: the stack's image if needed, then the case's, unless they are up to date."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.image_reference import LOCAL, find_reference, parse_reference
from flagbench.images.build_options import BuildOptions, credentials_of, make_inputs
from flagbench.images.docker import BuildRequest, DockerEngine, ImageInfo, Resources
from flagbench.images.lockfile import Lock
from flagbench.images.render.directory import context_tar
from flagbench.images.render.image import ImageRenderer, ImageTarget
from flagbench.images.tags import (
    BASE_DIGEST_LABEL,
    CREATED_LABEL,
    REVISION_LABEL,
    SOURCE_LABEL,
    BaseImage,
    Tier,
    case_tier,
    stack_tier,
)
from flagbench.manifests.lookup import require_base
from flagbench.manifests.model import Catalog
from flagbench.manifests.stack import Stack
from flagbench.system.checkout import commit

JOB_BYTES = 9 * 2**30
"""Peak memory of one compiler job, bytes: nvcc on flash-attn's kernels takes 8 to 9 GB. Source: setup.py of
flash-attn 2.5.9 and 2.7.3, which without MAX_JOBS starts a job for each 9 GiB of free memory."""


def require_locked(stack: Stack, lock: Lock, options: BuildOptions) -> None:
    """Refuse a lock that leaves packages or the base's digest unresolved, unless `--allow-unlocked` is given.

    Raises FlagbenchError (usage): there is no base to build on, the base's digest is unresolved and none was
    named, or packages are unresolved.
    """
    if options.base is None and lock.base_image is None:
        raise FlagbenchError(
            f"the stack {stack.name} has no public base image",
            remedy=f"name one with --base; how to get it: {require_base(stack).obtain}",
        )
    open_ends = [entry.pin for entry in lock.unresolved]
    name_it = ""
    if options.base is None and lock.base_digest is None:
        open_ends.insert(0, f"the digest of {lock.base_image}")
        name_it = " (or name the base with --base)"
    if open_ends and not options.allow_unlocked:
        raise FlagbenchError(
            f"the lock of {stack.name} leaves unresolved: {', '.join(open_ends)}",
            remedy=f"resolve it with `flagbench lock {stack.name}` on a machine with network access{name_it}, "
            "or build without these pins: --allow-unlocked",
        )


def resolve_base(
    stack: Stack, lock: Lock, options: BuildOptions, engine: DockerEngine, progress: Progress
) -> BaseImage:
    """The base to build on. A locked digest identifies it, and the build pulls it; any other is pulled if missing.

    Raises:
        FlagbenchError: (usage) `--base` names another image than the one a lock without a public base fixed;
            (build failed) it cannot be pulled.
    """
    if options.base is None and lock.base_image is not None and lock.base_digest is not None:
        return BaseImage(f"{lock.base_image}@{lock.base_digest}", lock.base_digest, in_registry=True)
    reference = options.base or lock.base_image or ""
    image = engine.inspect(reference)
    if image is None:
        progress.note(f"pulling {reference}")
        image = engine.pull(reference, platform=stack.platform, show=progress.show)
    digests = _digests_by_name(image)
    _require_platform(stack, reference, image)
    if lock.base_image is None and not options.allow_unlocked:
        _require_locked_digest(lock, reference, image, digests)
    if image.id.removeprefix("sha256:").startswith(reference.removeprefix("sha256:")):
        # An id, or the beginning of one. BuildKit takes only names in FROM.
        reference = f"{LOCAL}/base:{image.id.removeprefix('sha256:')[:12]}"
        engine.tag(image.id, reference)
    identity = _identify_base(lock, reference, image, digests)
    # With the containerd image store an image that was loaded has a digest too, its id, and no registry knows it.
    return BaseImage(
        reference,
        identity,
        in_registry=identity != image.id,
        has_digest_label=BASE_DIGEST_LABEL in image.labels,
    )


def _digests_by_name(image: ImageInfo) -> dict[str, str | None]:
    """The digests by which registries know an image, by the repository's name."""
    digests = {}
    for repo_digest in image.repo_digests:
        reference = find_reference(repo_digest)
        # An engine may call an image without a name `<none>`.
        if reference is not None:
            digests[reference.name] = reference.digest
    return digests


def _require_platform(stack: Stack, reference: str, image: ImageInfo) -> None:
    """Raises FlagbenchError (usage) where a base is for another platform than the stack."""
    if image.platform and _kind(image.platform) != _kind(stack.platform):
        raise FlagbenchError(
            f"the base {reference} is for {image.platform}, the image to build is for {stack.platform}",
            remedy="name a base of the stack's platform with --base, or add a stack for that of this base",
        )


def _require_locked_digest(lock: Lock, reference: str, image: ImageInfo, digests: Mapping[str, str | None]) -> None:
    """Raises FlagbenchError (usage) where a lock fixes the digest of its base, and `--base` is another image."""
    if lock.base_digest is None or lock.base_digest == image.id or lock.base_digest in digests.values():
        return
    raise FlagbenchError(
        f"--base {reference} is the image {image.id}, the lock of {lock.stack} fixes {lock.base_digest}",
        remedy=f"name that image, lock this one with `flagbench lock {lock.stack}`, or allow it with "
        "--allow-unlocked",
    )


def _identify_base(lock: Lock, reference: str, image: ImageInfo, digests: Mapping[str, str | None]) -> str:
    """`sha256:<64 hex>` of the base's manifest where a registry gave one, else the engine's id of it."""
    # A mirror of the locked base is the locked base.
    if lock.base_digest is not None and lock.base_digest in digests.values():
        return lock.base_digest
    parts = parse_reference(reference)
    return parts.digest or digests.get(parts.name) or image.id


def _kind(platform: str) -> list[str]:
    """System and processor: a variant, such as v8 of arm64, is not always given."""
    return platform.split("/")[:2]


@dataclass(frozen=True)
class TierResult:
    """One tier, built or found up to date."""

    tier: Tier
    image_id: str
    skipped: bool
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "tier": self.tier.name,
            "image_id": self.image_id,
            "context": self.tier.digest,
            "tags": list(self.tier.tags),
            "skipped": self.skipped,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class ImageResult:
    """One requested image, with the tier below it unless the image was up to date."""

    name: str
    """`case:stack`, or the stack's name alone."""
    tiers: tuple[TierResult, ...]
    """Lowest first; the last is the image itself."""
    lock: Lock
    """The stack's."""

    @property
    def top(self) -> TierResult:
        """The image itself."""
        return self.tiers[-1]

    def as_json(self) -> dict[str, Any]:
        """For `--json`: the image itself at the top level, every tier under `tiers`."""
        base = self.top.tier.base
        return {
            "image": self.name,
            **{key: value for key, value in self.top.as_json().items() if key not in ("tier", "seconds")},
            "base": {"name": base.reference, "digest": base.identity},
            "lock": self.lock.digest,
            "tiers": [tier.as_json() for tier in self.tiers],
        }


class ImageBuilder:
    """Builds images of one catalog with one engine; a stack's image is built once, however many cases need it."""

    def __init__(self, catalog: Catalog, options: BuildOptions, engine: DockerEngine, progress: Progress) -> None:
        """Raises FlagbenchError for a template that cannot be used."""
        self._options = options
        self._engine = engine
        self._progress = progress
        self._renderer = ImageRenderer(catalog, options.template)
        self._secrets = credentials_of(options, os.environ)
        self._revision = commit()
        self._made: dict[str, TierResult] = {}

    def build(self, target: ImageTarget) -> ImageResult:
        """Build an image, or find it up to date.

        Raises FlagbenchError: (usage) something is not locked, or an option does not fit; (build failed) a step
        failed; (engine) the engine does not answer.
        """
        stack = target.stack
        lock = self._renderer.lock(stack)
        require_locked(stack, lock, self._options)
        base = resolve_base(stack, lock, self._options, self._engine, self._progress)
        rendered = self._renderer.stack(stack)
        heavy = stack_tier(stack, rendered, lock, base)
        if target.case is None:
            return ImageResult(target.name, (self._ensure(heavy),), lock)
        thin_rendered = self._renderer.case(target.case, stack, rendered)
        thin = case_tier(target.case, stack, thin_rendered, lock, base, heavy)
        # A case's image is complete by itself: if it is up to date, that of the stack is not needed.
        up_to_date = self._up_to_date(thin)
        if up_to_date is not None:
            return ImageResult(target.name, (up_to_date,), lock)
        return ImageResult(target.name, (self._ensure(heavy), self._ensure(thin)), lock)

    def _ensure(self, tier: Tier) -> TierResult:
        """The tier; it is built if the engine does not have it."""
        if tier.digest not in self._made:
            self._made[tier.digest] = self._up_to_date(tier) or self._build(tier)
        return self._made[tier.digest]

    def _up_to_date(self, tier: Tier) -> TierResult | None:
        """The tier as the engine has it, under every tag, if it is the one to build, on the stack that is here."""
        if self._options.no_cache:
            return None
        below = self._engine.inspect(tier.below) if tier.below else None
        # An earlier image of the stack may still have its fixed tag after the moving tags went to another one.
        for tag in dict.fromkeys([tier.tags[0], tier.fixed_tag]):
            image = self._engine.inspect(tag)
            if image is None or self._options.source_url not in (None, image.labels.get(SOURCE_LABEL)):
                continue
            if tier.is_made_by(image, below, self._revision):
                for name in tier.tags:
                    self._engine.tag(image.id, name)
                return TierResult(tier, image.id, skipped=True)
        return None

    def _build(self, tier: Tier) -> TierResult:
        request = self._request(tier)
        self._progress.note(f"building {tier.name}")
        started = time.monotonic()
        image = self._engine.build(request, show=self._progress.show)
        seconds = time.monotonic() - started
        self._progress.note(f"{tier.tags[0]} built in {seconds:.1f}s; also {', '.join(tier.tags[1:])}")
        return TierResult(tier, image.id, skipped=False, seconds=seconds)

    def _request(self, tier: Tier) -> BuildRequest:
        created = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        # Empty if it is unknown: otherwise a case's image would inherit its stack's label.
        labels = {**tier.labels, CREATED_LABEL: created, REVISION_LABEL: self._revision or ""}
        if self._options.source_url is not None:
            labels[SOURCE_LABEL] = self._options.source_url
        build_args = dict(tier.build_args)
        if self._revision is not None and not tier.heavy:
            build_args["FLAGBENCH_COMMIT"] = self._revision
        if tier.compiles:
            build_args["MAX_JOBS"] = str(compiler_jobs(self._engine.resources(), tier.compiles))
            if not self._options.no_cache:
                build_args["BASE_DIGEST"] = tier.base.identity
        inputs = make_inputs(self._options, tier.lock) if tier.installs else {}
        return BuildRequest(
            context=context_tar(tier.rendered, inputs),
            tags=tier.tags,
            build_args=build_args,
            labels=labels,
            platform=tier.platform,
            no_cache=self._options.no_cache,
            secrets=self._secrets,
        )


def build_images(
    targets: Iterable[ImageTarget],
    catalog: Catalog,
    options: BuildOptions,
    engine: DockerEngine,
    progress: Progress,
) -> Iterator[ImageResult]:
    """Build each image in turn, each once."""
    builder = ImageBuilder(catalog, options, engine, progress)
    for target in {target.name: target for target in targets}.values():
        yield builder.build(target)


def compiler_jobs(engine: Resources, stages: int) -> int:
    """MAX_JOBS for each of `stages` packages that are compiled in parallel; at least 1."""
    together = min(engine.cpus, engine.memory // JOB_BYTES)
    return max(1, together // max(1, stages))
