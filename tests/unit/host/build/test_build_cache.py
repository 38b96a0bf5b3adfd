"""The results of a build are found again until anything that decides them changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flagbench.build.base import Base
from flagbench.build.build_cache import BuildCache
from flagbench.build.options import BuildOptions
from flagbench.build.results import ImageResult, TierResult
from flagbench.engines.base import ImageInfo
from flagbench.locks.model import Lock

NAMES = ["distilbert:mini"]
OPTIONS = BuildOptions(base="base:1")
ID = "sha256:" + "a" * 64
TAGS = ("flagbench/distilbert:mini", "flagbench/distilbert:mini-0.1.0")
TOP = TierResult("distilbert/mini", ID, "sha256:context", TAGS, skipped=True)
BASE = Base("base:1", "sha256:base", "sha256:base")


def image(image_id: str, label: str | None) -> ImageInfo:
    """An image of the engine."""
    labels = {} if label is None else {"dev.flagbench.context": label}
    return ImageInfo(image_id, labels, 1, (), {}, ())


@pytest.fixture
def images() -> dict[str, ImageInfo]:
    """What the engine has: the image under its tags, and its base."""
    return {**dict.fromkeys(TAGS, image(ID, "sha256:context")), "base:1": image("sha256:base", None)}


@pytest.fixture
def kept(mini_lock: Callable[..., Lock], tmp_path: Path) -> ImageResult:
    """A result that is remembered, with its bill of materials."""
    sbom = tmp_path / "sbom.json"
    sbom.touch()
    result = ImageResult("distilbert:mini", (TOP,), BASE, "sha256:lock", sbom, "flagbench/stack:mini-0123")
    BuildCache(NAMES, OPTIONS).store([result])
    return result


def test_what_was_stored_is_found(kept: ImageResult, images: dict[str, ImageInfo]) -> None:
    assert BuildCache(NAMES, OPTIONS).find(images.get) == [kept]


@pytest.mark.parametrize("ref", [*TAGS, "base:1"])
@pytest.mark.parametrize("now", [None, image("sha256:other", "sha256:context"), image(ID, "sha256:other")])
def test_the_engine_has_the_last_word(
    ref: str, now: ImageInfo | None, kept: ImageResult, images: dict[str, ImageInfo]
) -> None:
    if now is None:
        del images[ref]
    else:
        images[ref] = now
    assert BuildCache(NAMES, OPTIONS).find(images.get) is None


@pytest.mark.parametrize(("layers", "right"), [(("a", "b"), True), (("a", "c"), False), (("a", "b", "c"), False)])
def test_a_stack_that_was_built_again_is_another_stack(
    layers: tuple[str, ...], right: bool, kept: ImageResult, images: dict[str, ImageInfo]
) -> None:
    case = replace(image(ID, "sha256:context"), layers=("a", "b", "code"))
    images.update(dict.fromkeys(TAGS, case))
    images["flagbench/stack:mini-0123"] = replace(image("sha256:stack", None), layers=layers)
    assert BuildCache(NAMES, OPTIONS).find(images.get) == ([kept] if right else None)


def test_the_commit_counts(kept: ImageResult, images: dict[str, ImageInfo], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flagbench.build.build_cache.commit", lambda: "a" * 40)
    assert BuildCache(NAMES, OPTIONS).find(images.get) is None


def test_a_locked_base_is_not_asked_for(kept: ImageResult, images: dict[str, ImageInfo]) -> None:
    result = replace(kept, base=Base("base@sha256:d", "sha256:d"))
    BuildCache(NAMES, OPTIONS).store([result])
    del images["base:1"]
    assert BuildCache(NAMES, OPTIONS).find(images.get) == [result]


def test_a_lost_bill_of_materials_is_made_again(kept: ImageResult, images: dict[str, ImageInfo]) -> None:
    assert kept.sbom is not None
    kept.sbom.unlink()
    assert BuildCache(NAMES, OPTIONS).find(images.get) is None


@pytest.mark.parametrize(
    "change",
    [
        {"base": "base:2"},
        {"platform": "linux/arm64"},
        {"epoch": 1_700_000_000},
        {"allow_unlocked": True},
    ],
)
def test_an_option_that_decides_counts(
    change: dict[str, Any], kept: ImageResult, images: dict[str, ImageInfo]
) -> None:
    assert BuildCache(NAMES, replace(OPTIONS, **change)).find(images.get) is None


def test_inputs_do_not_count(kept: ImageResult, images: dict[str, ImageInfo], wheelhouse: Path) -> None:
    options = replace(OPTIONS, wheelhouse=wheelhouse, pip_source=("https://mirror.example/",))
    assert BuildCache(NAMES, options).find(images.get) == [kept]


@pytest.mark.parametrize(
    "name", ["manifests/stacks/mini.yaml", "manifests/cases/distilbert.yaml", "images/locks/pylock.mini.toml"]
)
def test_a_byte_of_what_is_rendered_counts(
    name: str, kept: ImageResult, images: dict[str, ImageInfo], tmp_path: Path
) -> None:
    with (tmp_path / name).open("a", encoding="utf-8") as file:
        file.write("\n")
    assert BuildCache(NAMES, OPTIONS).find(images.get) is None


def test_a_file_of_the_image_side_counts(kept: ImageResult, images: dict[str, ImageInfo], tmp_path: Path) -> None:
    package = tmp_path / "entrypoints" / "flagbench_cases"
    package.mkdir(parents=True)
    assert BuildCache(NAMES, OPTIONS).find(images.get) is None


def test_a_template_counts(kept: ImageResult, images: dict[str, ImageInfo], tmp_path: Path) -> None:
    template = tmp_path / "mine.j2"
    template.write_text('{% extends "case.j2" %}', encoding="utf-8")
    options = replace(OPTIONS, template=template)
    BuildCache(NAMES, options).store([kept])
    assert BuildCache(NAMES, options).find(images.get) == [kept]
    template.write_text('{% extends "case.j2" %}{% block last %}{% endblock %}', encoding="utf-8")
    assert BuildCache(NAMES, options).find(images.get) is None


@pytest.mark.parametrize("content", ["", "{}", "[]", "[{}]", "[1]"])
def test_a_damaged_file_is_rendered_again(
    content: str, kept: ImageResult, images: dict[str, ImageInfo], tmp_path: Path
) -> None:
    for path in (tmp_path / "cache").rglob("*.json"):
        path.write_text(content, encoding="utf-8")
    assert BuildCache(NAMES, OPTIONS).find(images.get) is None


def test_a_cache_that_cannot_be_written_is_no_error(
    mini_lock: Callable[..., Lock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache = BuildCache(NAMES, OPTIONS)
    cache.store([ImageResult("distilbert:mini", (TOP,), BASE, "sha256:lock", tmp_path / "file")])
    assert cache.find(lambda ref: None) is None
