"""`flagbench build`: builds the image of a stack, and on it that of a case, unless they are up to date.

A case's image is made in two tiers. The tier of the stack has everything that is installed: torch and the packages of
the stack's lock. The tier of the case adds the code. `tags.py` describes a tier; `ImageBuilder` builds it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flagbench.console.progress import Progress
from flagbench.errors import FlagbenchError
from flagbench.image_reference import LOCAL, parse_reference, try_parse_reference
from flagbench.images.build_options import BuildOptions, credentials_of, make_inputs
from flagbench.images.docker import BuildRequest, DockerEngine, ImageInfo, Resources
from flagbench.images.lockfile import Lock
from flagbench.images.render.directory import context_tar
from flagbench.images.render.image import ImageRenderer, ImageTarget
from flagbench.images.tags import (
    BASE_DIGEST_LABEL,
    CREATED_LABEL,
    REVISION_LABEL,
    SHORT_DIGEST,
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
from flagbench.system.clock import utc_now

JOB_BYTES = 9 * 2**30
"""Peak memory of one compiler job, bytes: nvcc on flash-attn's kernels takes 8 to 9 GB. Source: setup.py of
flash-attn 2.5.9 and 2.7.3, which without MAX_JOBS starts a job for each 9 GiB of free memory."""


def require_locked(stack: Stack, lock: Lock, options: BuildOptions) -> None:
    """Check that a lock resolves all packages and the base's digest, unless `--allow-unlocked` is given.

    Raises FlagbenchError (USAGE) if not, or if there is no base to build on: neither a public one nor --base.
    """
    if options.base is None and lock.base_image is None:
        raise FlagbenchError(
            f"the stack {stack.name} has no public base image",
            remedy=f"name one with --base; how to get it: {require_base(stack).obtain}",
        )
    unresolved = [entry.pin for entry in lock.unresolved]
    alternative = ""
    if options.base is None and lock.base_digest is None:
        unresolved.insert(0, f"the digest of {lock.base_image}")
        alternative = " (or name the base with --base)"
    if unresolved and not options.allow_unlocked:
        raise FlagbenchError(
            f"the lock of {stack.name} leaves unresolved: {', '.join(unresolved)}",
            remedy=f"resolve it with `flagbench lock {stack.name}` on a machine with network access{alternative}, "
            "or build without these pins: --allow-unlocked",
        )


def resolve_base(
    stack: Stack, lock: Lock, options: BuildOptions, engine: DockerEngine, progress: Progress
) -> BaseImage:
    """Find the base to build on.

    A base with a locked digest is not looked up, as the build itself pulls it. Any other is pulled now if the engine
    does not have it, and gets a name if it was given by its id.

    Raises:
        FlagbenchError: (USAGE) the base is for another platform, or `--base` is not the image that a lock without a
            public base fixes; (BUILD_FAILED) it cannot be pulled.
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
    image_hash = image.id.removeprefix("sha256:")
    if image_hash.startswith(reference.removeprefix("sha256:")):
        # The base was given by its id, or the beginning of it. BuildKit takes only names in FROM.
        reference = f"{LOCAL}/base:{image_hash[:SHORT_DIGEST]}"
        engine.tag(image.id, reference)
    identity = _identify_base(lock, reference, image, digests)
    # With the containerd image store an image that was loaded has a repository digest, too. It equals its id, and no
    # registry has it.
    return BaseImage(
        reference,
        identity,
        in_registry=identity != image.id,
        has_digest_label=BASE_DIGEST_LABEL in image.labels,
    )


def _digests_by_name(image: ImageInfo) -> dict[str, str | None]:
    """Collect the digests of an image in registries, by the name of the repository."""
    digests = {}
    for repo_digest in image.repo_digests:
        reference = try_parse_reference(repo_digest)
        # Some engines write `<none>` for an image without a name, which is no reference.
        if reference is not None:
            digests[reference.name] = reference.digest
    return digests


def _require_platform(stack: Stack, reference: str, image: ImageInfo) -> None:
    """Check that a base is for the stack's platform. Raises FlagbenchError (USAGE) if not."""
    if image.platform and _without_variant(image.platform) != _without_variant(stack.platform):
        raise FlagbenchError(
            f"the base {reference} is for {image.platform}, the image to build is for {stack.platform}",
            remedy="name a base of the stack's platform with --base, or add a stack for that of this base",
        )


def _require_locked_digest(lock: Lock, reference: str, image: ImageInfo, digests: Mapping[str, str | None]) -> None:
    """Check that the base is the one whose digest a lock fixes, if it fixes one.

    Raises FlagbenchError (USAGE) if it is not.
    """
    if lock.base_digest is None or lock.base_digest == image.id or lock.base_digest in digests.values():
        return
    raise FlagbenchError(
        f"--base {reference} is the image {image.id}, the lock of {lock.stack} fixes {lock.base_digest}",
        remedy=f"name that image, lock this one with `flagbench lock {lock.stack}`, or allow it with "
        "--allow-unlocked",
    )


def _identify_base(lock: Lock, reference: str, image: ImageInfo, digests: Mapping[str, str | None]) -> str:
    """Return `sha256:<64 hex>`: of the base's manifest, if a registry gave one, else the engine's id of the base."""
    # In a mirror the locked base has another name and the same digest.
    if lock.base_digest is not None and lock.base_digest in digests.values():
        return lock.base_digest
    parts = parse_reference(reference)
    return parts.digest or digests.get(parts.name) or image.id


def _without_variant(platform: str) -> list[str]:
    """Split a platform into system and processor, without a variant such as v8 of arm64, which engines may omit."""
    return platform.split("/")[:2]


@dataclass(frozen=True)
class TierResult:
    """A tier that was built, or found up to date."""

    tier: Tier
    image_id: str
    """The engine's id of the image, `sha256:<64 hex>`."""
    skipped: bool
    """Whether it was up to date, so that nothing was built."""
    seconds: float = 0.0
    """How long the build took, s."""

    def as_json(self) -> dict[str, Any]:
        """Return the values of a tier that `flagbench build --json` prints."""
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
    """One image that was asked for, with the tiers that were looked at."""

    name: str
    """`case:stack`, or the stack's name alone."""
    tiers: tuple[TierResult, ...]
    """The stack's tier, then the case's; the last is the image itself. If a case's image is up to date, it is the
    only one."""
    lock: Lock
    """The lock of the stack."""

    @property
    def top(self) -> TierResult:
        """The tier that is the image itself."""
        return self.tiers[-1]

    def as_json(self) -> dict[str, Any]:
        """Return the values that `flagbench build --json` prints.

        Those of the image itself are at the top level, and those of every tier under `tiers`.
        """
        base = self.top.tier.base
        values_of_top = self.top.as_json()
        del values_of_top["tier"], values_of_top["seconds"]
        return {
            "image": self.name,
            **values_of_top,
            "base": {"name": base.reference, "digest": base.identity},
            "lock": self.lock.digest,
            "tiers": [tier.as_json() for tier in self.tiers],
        }


class ImageBuilder:
    """Builds images of one catalog with one engine. A stack's image is built only once for all of its cases."""

    def __init__(self, catalog: Catalog, options: BuildOptions, engine: DockerEngine, progress: Progress) -> None:
        """Read the code that images contain."""
        self._options = options
        self._engine = engine
        self._progress = progress
        self._renderer = ImageRenderer(catalog)
        self._secrets = credentials_of(options, os.environ)
        self._revision = commit()
        """The commit of the checkout; None if it is not known."""
        self._results: dict[str, TierResult] = {}
        """The tiers that were built or found so far, by digest."""

    def build(self, target: ImageTarget) -> ImageResult:
        """Build an image, unless it is up to date.

        Raises FlagbenchError: (USAGE) the lock is not complete, or an option does not fit; (BUILD_FAILED) a step
        failed; (ENGINE) the engine does not answer.
        """
        stack = target.stack
        lock = self._renderer.find_lock(stack)
        require_locked(stack, lock, self._options)
        base = resolve_base(stack, lock, self._options, self._engine, self._progress)
        stack_directory = self._renderer.render_stack(stack)
        tier_of_stack = stack_tier(stack, stack_directory, lock, base)
        if target.case is None:
            return ImageResult(target.name, (self._ensure_built(tier_of_stack),), lock)
        case_directory = self._renderer.render_case(target.case, stack, stack_directory)
        tier_of_case = case_tier(target.case, stack, case_directory, lock, base, tier_of_stack)
        # A case's image contains the layers of the stack's: if it is up to date, that of the stack is not needed.
        up_to_date = self._reuse(tier_of_case)
        if up_to_date is not None:
            return ImageResult(target.name, (up_to_date,), lock)
        tiers = (self._ensure_built(tier_of_stack), self._ensure_built(tier_of_case))
        return ImageResult(target.name, tiers, lock)

    def _ensure_built(self, tier: Tier) -> TierResult:
        """Build a tier, unless the engine has it."""
        if tier.digest not in self._results:
            self._results[tier.digest] = self._reuse(tier) or self._build(tier)
        return self._results[tier.digest]

    def _reuse(self, tier: Tier) -> TierResult | None:
        """Give the engine's image of a tier all of the tier's tags; None if the engine's image is not up to date.

        A case's image is up to date only if it stands on the stack's image that the engine has.
        """
        if self._options.no_cache:
            return None
        stack_image = None
        if tier.stack_tag is not None:
            stack_image = self._engine.inspect(tier.stack_tag)
        candidates = [tier.tags[0]]
        if tier.digest_tag is not None:
            # An earlier image of the stack may still have it after the moving tags went to another image.
            candidates.append(tier.digest_tag)
        for tag in candidates:
            image = self._engine.inspect(tag)
            if image is None or self._options.source_url not in (None, image.labels.get(SOURCE_LABEL)):
                continue
            if tier.matches(image, stack_image, self._revision):
                for name in tier.tags:
                    self._engine.tag(image.id, name)
                return TierResult(tier, image.id, skipped=True)
        return None

    def _build(self, tier: Tier) -> TierResult:
        """Build a tier with the engine."""
        request = self._make_request(tier)
        self._progress.note(f"building {tier.name}")
        started = time.monotonic()
        image = self._engine.build(request, show=self._progress.show)
        seconds = time.monotonic() - started
        self._progress.note(f"{tier.tags[0]} built in {seconds:.1f}s; also {', '.join(tier.tags[1:])}")
        return TierResult(tier, image.id, skipped=False, seconds=seconds)

    def _make_request(self, tier: Tier) -> BuildRequest:
        """Describe the build of a tier for the engine: its context, labels and build arguments."""
        created = utc_now()
        # An unknown revision is an empty label: otherwise a case's image would inherit its stack's.
        labels = {**tier.labels, CREATED_LABEL: created, REVISION_LABEL: self._revision or ""}
        if self._options.source_url is not None:
            labels[SOURCE_LABEL] = self._options.source_url
        build_args = dict(tier.build_args)
        if self._revision is not None and not tier.is_stack:
            build_args["FLAGBENCH_COMMIT"] = self._revision
        if tier.compiled_packages:
            build_args["MAX_JOBS"] = str(compiler_jobs(self._engine.resources(), tier.compiled_packages))
            if not self._options.no_cache:
                build_args["BASE_DIGEST"] = tier.base.identity
        if self._options.base is not None and tier.lock.toolkit and (tier.is_stack or tier.compiled_packages):
            build_args["TOOLKIT"] = tier.base.reference
        inputs: Mapping[str, Path | bytes] = {}
        if tier.installs_packages:
            inputs = make_inputs(self._options, tier.lock)
        return BuildRequest(
            context=context_tar(tier.directory, inputs),
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
    """Build images one after the other; one that is named twice is built once."""
    builder = ImageBuilder(catalog, options, engine, progress)
    by_name = {target.name: target for target in targets}
    for target in by_name.values():
        yield builder.build(target)


def compiler_jobs(engine: Resources, stages: int) -> int:
    """Compute MAX_JOBS for each of `stages` packages that are compiled in parallel; at least 1.

    All of their jobs together fit the processors and the memory of the engine's machine.
    """
    jobs = min(engine.cpus, engine.memory // JOB_BYTES)
    return max(1, jobs // max(1, stages))
