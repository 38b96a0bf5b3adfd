"""Where builds keep what is not part of an image: the user's cache and data folders."""

from __future__ import annotations

from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """For what can be lost at any time."""
    return Path(platformdirs.user_cache_dir("flagbench"))


def sbom_path(tag: str) -> Path:
    """The bill of materials of the image `flagbench/CASE:TAG`: images/CASE/TAG.cdx.json in the user's data folder."""
    repository, _, version = tag.partition(":")
    return Path(platformdirs.user_data_dir("flagbench")) / "images" / Path(repository).name / f"{version}.cdx.json"
