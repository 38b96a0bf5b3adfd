"""Results of earlier builds, by a digest of every file and option that decides them: found again without rendering.

An image is up to date if its label has the digest that rendering gives. Rendering depends on the files of the
catalog, the templates, the locks, the image side's code, flagbench itself, its commit and a few options. If all of
these are unchanged, so is the label. Only this is kept: whether the image is there, the engine is asked each time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flagbench.build.base import Base
from flagbench.build.options import BuildOptions
from flagbench.build.results import ImageResult, TierResult
from flagbench.build.tiers import CONTEXT_LABEL, stands_on
from flagbench.build.user_folders import cache_folder
from flagbench.catalog.locate import manifests_root
from flagbench.catalog.model import Catalog
from flagbench.checkout import commit
from flagbench.engines.base import ImageInfo
from flagbench.render.roots import case_package, images_root, shipped_images

# What turns manifests and templates into text, beside flagbench.
_LIBRARIES = ("Jinja2", "PyYAML")

Inspect = Callable[[str], ImageInfo | None]


class BuildCache:
    """The results of one `flagbench build`, by the names and options it was given."""

    def __init__(self, names: Sequence[str], options: BuildOptions) -> None:
        """Raises FlagbenchError (usage) where FLAGBENCH_MANIFESTS names no manifests."""
        self._path = cache_folder() / "built" / f"{_fingerprint(names, options)}.json"

    def find(self, inspect: Inspect) -> list[ImageResult] | None:
        """The images, if everything was built before and the engine still has each under every tag."""
        try:
            images = [_image(found) for found in _load(self._path)]
        except (OSError, ValueError, KeyError, TypeError):
            return None  # never built, or a file that somebody else wrote
        if not images or not all(_is_there(image, inspect) for image in images):
            return None
        return images

    def store(self, images: Sequence[ImageResult]) -> None:
        """Keep these results. A folder that cannot be written is no error: the next build renders again."""
        document = [_plain(image) for image in images]
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_text(json.dumps(document), encoding="utf-8")
            scratch.replace(self._path)
        except OSError:
            with suppress(OSError):
                scratch.unlink()


def _is_there(image: ImageResult, inspect: Inspect) -> bool:
    """Whether the engine has the image under all its tags, on the base and the stack that it was built on."""
    if image.sbom is None or not image.sbom.is_file():
        return False
    if image.base.image_id is not None:
        base = inspect(image.base.reference)
        if base is None or base.id != image.base.image_id:
            return False
    below = inspect(image.below) if image.below else None
    found = [inspect(tag) for tag in image.top.tags]
    return all(
        there is not None
        and there.id == image.top.image_id
        and there.labels.get(CONTEXT_LABEL) == image.top.digest
        and stands_on(there, below)
        for there in found
    )


def _fingerprint(names: Sequence[str], options: BuildOptions) -> str:
    """64 hex digits over all that decides the images' digests but what the engine has."""
    catalog = Catalog(manifests_root(), {}, {}, {})
    images = images_root(catalog)
    folders = [Path(__file__).parents[1], catalog.root, case_package(catalog)]
    folders += [root / part for root in (images, shipped_images()) for part in ("templates", "files", "locks")]
    summed = hashlib.sha256()
    given = [list(names), options.base, options.platform, options.epoch, options.allow_unlocked, commit()]
    summed.update(json.dumps(given).encode())
    for folder in dict.fromkeys(folders):
        for path, content in _files(folder):
            # Lengths are part of it: no two trees spell the same bytes.
            summed.update(f"\0{len(path)} {path} {len(content)} ".encode())
            summed.update(content)
    if options.template is not None:
        summed.update(options.template.read_bytes())
    summed.update(json.dumps([version(name) for name in _LIBRARIES]).encode())
    return summed.hexdigest()


def _files(folder: Path) -> Iterable[tuple[str, bytes]]:
    """Every file but compiled Python and what is hidden, by its absolute path, sorted."""
    for root, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name != "__pycache__" and not name.startswith("."))
        for name in sorted(files):
            path = Path(root, name)
            if not name.startswith(".") and path.is_file():
                yield str(path), path.read_bytes()


def _load(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_bytes()))


def _image(plain: dict[str, Any]) -> ImageResult:
    top = TierResult(plain["tier"], plain["image_id"], plain["context"], tuple(plain["tags"]), skipped=True)
    base = Base(plain["base"], plain["base_identity"], plain["base_id"])
    return ImageResult(plain["image"], (top,), base, plain["lock"], Path(plain["sbom"]), plain["below"])


def _plain(image: ImageResult) -> dict[str, Any]:
    return {
        "image": image.name,
        "tier": image.top.name,
        "image_id": image.top.image_id,
        "context": image.top.digest,
        "tags": list(image.top.tags),
        "base": image.base.reference,
        "base_identity": image.base.identity,
        "base_id": image.base.image_id,
        "lock": image.lock,
        "sbom": str(image.sbom),
        "below": image.below,
    }
