"""The templates of Dockerfiles, and the files that images need: finds them, and renders a Dockerfile.

Stacks and cases are rendered with `Templates`. An error in a template is reported with file and line.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError, TemplateNotFound

import flagbench_core
from flagbench.errors import FlagbenchError
from flagbench.images.render.quoting import env_value, exec_form, one_line, sh_quote
from flagbench.manifests.model import Catalog
from flagbench_core.exit_codes import ExitCode


def images_root(catalog: Catalog) -> Path:
    """Find the images/ folder with templates, files and locks.

    It is the folder next to the catalog's manifests, or else flagbench's own.
    """
    folder = catalog.root.parent / "images"
    if folder.is_dir():
        return folder
    return shipped_images()


@lru_cache(maxsize=1)
def shipped_images() -> Path:
    """Find the images/ folder of this flagbench: in its checkout, else in the installed package.

    Raises FlagbenchError if there is neither, because the installation is incomplete.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package.parents[1] / "images", package / "_data" / "images"):
        if (folder / "templates").is_dir():
            return folder
    raise FlagbenchError(
        f"this installation of flagbench has no image templates (looked around {package})",
        remedy="install flagbench again, from a wheel or an editable checkout",
        code=ExitCode.BUG,
    )


def image_packages(catalog: Catalog) -> list[Path]:
    """Find the folders of the Python packages that images contain.

    Each is taken from the checkout of the catalog's manifests, or else as it is installed.
    """
    checkout = catalog.root.parent / "entrypoints"
    installed = Path(flagbench_core.__file__).parents[1]
    packages = []
    for name in ("flagbench_cases", "flagbench_core"):
        package = checkout / name
        if not package.is_dir():
            package = installed / name
        packages.append(package)
    return packages


class Templates:
    """The templates of both tiers, `stack` and `case`, and the files that steps of a build need."""

    def __init__(self, images: Path) -> None:
        """Set up Jinja.

        Args:
            images: the folder with templates/ and files/; any that it lacks are taken from flagbench's own folder.
        """
        self._folders = (images, shipped_images())
        self._env = Environment(
            loader=FileSystemLoader([folder / "templates" for folder in self._folders]),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            # A Dockerfile is not HTML; each value is quoted by the filter of the grammar it lands in.
            autoescape=False,
        )
        self._env.filters |= {
            "sh_quote": sh_quote,
            "env_value": env_value,
            "one_line": one_line,
            "exec_form": exec_form,
        }

    def render(self, tier: str, name: str, values: Mapping[str, Any]) -> str:
        """Render the Dockerfile of a stack or a case.

        Args:
            tier: `stack` or `case`.
            name: the name of the stack or the case, which may have a template of its own.
            values: the variables of the template.

        Raises FlagbenchError (BUILD_FAILED) for an error in a template, with file and line.
        """
        with _template_errors():
            template = self._env.select_template([f"{tier}s/{name}.j2", f"{tier}.j2"])
            return template.render(values)

    def read_file(self, name: str) -> bytes:
        """Read a file that a step of a build needs. Raises FileNotFoundError if there is none of that name."""
        for folder in self._folders:
            path = folder / "files" / name
            if path.is_file():
                return path.read_bytes()
        raise FileNotFoundError(name)


@contextmanager
def _template_errors() -> Iterator[None]:
    """Turn an error in a template into a FlagbenchError (BUILD_FAILED) with file and line.

    A template can raise any exception. Those of our own code, such as a filter that refuses a value, are not changed.
    """
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        # Jinja gives the frames of compiled templates their own files and lines. The last is where it happened.
        template_frames = [
            frame for frame in frames if not frame.filename.endswith(".py") and "<frozen" not in frame.filename
        ]
        if not isinstance(error, TemplateError) and frames[-1] not in template_frames:
            raise
        location = "a template"
        if template_frames:
            location = f"{template_frames[-1].filename}:{template_frames[-1].lineno}"
        problem = str(error)
        if isinstance(error, TemplateNotFound):
            problem = f"there is no template {error.name}"
        raise FlagbenchError(
            f"{location}: {problem}",
            remedy="correct the template; images/README.md names what a template may use",
            code=ExitCode.BUILD_FAILED,
        ) from error
