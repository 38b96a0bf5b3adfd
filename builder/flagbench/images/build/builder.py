"""Building images: the stack's tier where it is needed, then the case's, each only where it is not there already."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from flagbench.checkout import commit
from flagbench.images.build.base import require_locked, require_platform, resolve_base
from flagbench.images.build.contents import read_contents
from flagbench.images.build.inputs import make_inputs, secrets
from flagbench.images.build.options import BuildOptions
from flagbench.images.build.results import ImageResult, TierResult
from flagbench.images.build.sbom import is_sbom_of, sbom_json, sbom_path, write_sbom
from flagbench.images.build.tiers import Tier, case_tier, stack_tier
from flagbench.images.engines import Engine
from flagbench.images.engines.base import BuildRequest, ImageInfo, Resources
from flagbench.images.labels import CREATED_LABEL, REVISION_LABEL
from flagbench.images.render.image import ImageRenderer
from flagbench.images.render.model import context_tar
from flagbench.images.render.stack import interpreter
from flagbench.manifests.lookup import get_stack, resolve_image
from flagbench.manifests.model import Case, Catalog, Stack
from flagbench.progress import Progress

JOB_BYTES = 9 * 2**30
"""Peak memory of one compiler job, bytes: nvcc on flash-attn's kernels takes 8 to 9 GB. Source: setup.py of
flash-attn 2.5.9 and 2.7.3, which without MAX_JOBS starts a job for each 9 GiB of free memory."""


@dataclass(frozen=True)
class Target:
    """An image to build: a case on a stack, or the stack alone."""

    case: Case | None
    stack: Stack

    @property
    def name(self) -> str:
        """`case:stack`, or the stack's name."""
        return self.stack.name if self.case is None else f"{self.case.name}:{self.stack.name}"


def find_target(name: str, catalog: Catalog) -> Target:
    """What `case:stack`, or a stack's name or alias, stands for. Raises UnknownNameError (usage)."""
    if ":" in name:
        return Target(*resolve_image(name, catalog))
    if name in catalog.cases:
        resolve_image(name, catalog)  # says how an image is written
    return Target(None, get_stack(name, catalog))


class Builder:
    """Builds images of one catalog with one engine; a stack's image is built once, however many cases need it."""

    def __init__(self, catalog: Catalog, options: BuildOptions, engine: Engine, progress: Progress) -> None:
        """Raises FlagbenchError for a template that cannot be used."""
        self._options = options
        self._engine = engine
        self._progress = progress
        self._renderer = ImageRenderer(catalog, options.template)
        self._secrets = secrets(options, os.environ)
        self._revision = commit()
        self._made: dict[str, TierResult] = {}

    def build(self, target: Target) -> ImageResult:
        """Build an image, or find it up to date.

        Raises FlagbenchError: (usage) something is not locked, or an option does not fit; (build failed) a step
        failed; (engine) the engine does not answer.
        """
        stack = target.stack
        lock = self._renderer.lock(stack)
        require_platform(stack, self._options)
        require_locked(stack, lock, self._options)

        def pull(reference: str) -> ImageInfo:
            self._progress.note(f"pulling {reference}")
            platform = self._options.platform or stack.platform
            return self._engine.pull(reference, platform=platform, show=self._progress.show)

        base = resolve_base(stack, lock, self._options, self._engine, pull)
        rendered = self._renderer.stack(stack)
        heavy = stack_tier(stack, rendered, lock, base, self._options)
        if target.case is None:
            return ImageResult(target.name, (self._ensure(heavy),), lock)
        thin_rendered = self._renderer.case(target.case, stack, rendered)
        thin = case_tier(target.case, stack, thin_rendered, lock, base, self._options, heavy)
        # A case's image is complete by itself: if it is up to date, that of the stack is not needed.
        there = self._up_to_date(thin)
        results = [there] if there else [self._ensure(heavy), self._ensure(thin)]
        return ImageResult(target.name, tuple(results), lock)

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
            if image is not None and tier.is_made_by(image, below, self._revision):
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
    names: Sequence[str],
    catalog: Catalog,
    options: BuildOptions,
    engine: Engine,
    progress: Progress,
    sbom: Path | None = None,
) -> Iterator[ImageResult]:
    """Build each image in turn, each once, with its bill of materials; every name is looked up first.

    Args:
        sbom: the file of the bill of materials; None: one for each image in the user's data folder.
    """
    targets = {target.name: target for target in (find_target(name, catalog) for name in names)}
    builder = Builder(catalog, options, engine, progress)
    for target in targets.values():
        result = builder.build(target)
        top = result.top
        file = sbom or sbom_path(top.tier.tags[1])
        if not is_sbom_of(file, top.image_id):
            progress.note(f"listing what is in {top.tier.tags[0]}")
            contents = read_contents(top.image_id, interpreter(target.stack))
            write_sbom(file, sbom_json(result, contents, target.stack.build.indexes))
        yield replace(result, sbom=file)


def compiler_jobs(engine: Resources, stages: int) -> int:
    """MAX_JOBS for each of `stages` packages that are compiled in parallel; at least 1."""
    together = min(engine.cpus, engine.memory // JOB_BYTES)
    return max(1, together // max(1, stages))
