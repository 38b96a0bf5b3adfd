"""What was built from these very bytes before: an answer in a fraction of the time that rendering takes.

The engine's label decides whether an image is up to date, and what the label has to be follows from rendering.
Rendering in turn follows from the files of the catalog, the templates, the locks, the image side's code, flagbench
itself, its commit and a few options. Where all of these are byte for byte what they were when an image was last
found right, its label has to be what it was then. Only that is remembered: the engine is always asked what it has.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flagbench.build.base import Base
from flagbench.build.places import cache_folder
from flagbench.build.result import ImageResult, TierResult
from flagbench.build.tiers import CONTEXT_LABEL, stands_on
from flagbench.catalog.locate import manifests_root
from flagbench.catalog.model import Catalog
from flagbench.checkout import commit
from flagbench.render.roots import case_package, images_root, shipped_images

if TYPE_CHECKING:
    from flagbench.build.options import BuildOptions
    from flagbench.engines.base import ImageInfo

_FORM = 2
"""Of the file; another one is not read."""
# What turns manifests and templates into text, beside flagbench: a new release is a new answer.
_LIBRARIES = ("jinja2", "yaml")

Inspect = Callable[[str], "ImageInfo | None"]


class Memo:
    """The remembered outcome of one `flagbench build`, by the names and options it was given."""

    def __init__(self, names: Sequence[str], options: BuildOptions) -> None:
        """Raises FlagbenchError (usage) where FLAGBENCH_MANIFESTS names no manifests."""
        self._path = cache_folder() / "built" / f"{_fingerprint(names, options)}.json"

    def recall(self, inspect: Inspect) -> list[ImageResult] | None:
        """The images, if everything was built before and the engine still has each under every tag."""
        try:
            images = [_image(found) for found in _load(self._path)]
        except (OSError, ValueError, KeyError, TypeError):
            return None  # never built, or a file that somebody else wrote
        if not images or not all(_is_there(image, inspect) for image in images):
            return None
        return images

    def keep(self, images: Sequence[ImageResult]) -> None:
        """Remember these; a cache that cannot be written costs time and nothing else."""
        document = {"form": _FORM, "images": [_plain(image) for image in images]}
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
        for path, content in _contents(folder):
            # Lengths are part of it: no two trees spell the same bytes.
            summed.update(f"\0{len(path)} {path} {len(content)} ".encode())
            summed.update(content)
    if options.template is not None:
        summed.update(options.template.read_bytes())
    summed.update(json.dumps(list(_releases())).encode())
    return summed.hexdigest()


def _contents(folder: Path) -> Iterable[tuple[str, bytes]]:
    """Every file but compiled Python and what is hidden, by its absolute path, sorted."""
    for root, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name != "__pycache__" and not name.startswith("."))
        for name in sorted(files):
            path = Path(root, name)
            if not name.startswith(".") and path.is_file():
                yield str(path), path.read_bytes()


def _releases() -> Iterator[tuple[str, int, int]]:
    """When and how large the libraries' first files were written: found, not imported."""
    for name in _LIBRARIES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            known = Path(spec.origin).stat()
            yield name, known.st_mtime_ns, known.st_size


def _load(path: Path) -> list[dict[str, Any]]:
    document = json.loads(path.read_bytes())
    if document["form"] != _FORM:
        raise ValueError(f"form {document['form']}")
    return list(document["images"])


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
