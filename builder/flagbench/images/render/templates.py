"""The templates of Dockerfiles, and the files that images need: finds them, and renders a Dockerfile.

Stacks and cases are rendered with `Templates`. An error in a template is reported with file and line.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, TemplateError, TemplateNotFound, nodes

import flagbench_core
from flagbench.errors import FlagbenchError
from flagbench.images.render.quoting import env_value, exec_form, one_line, sh_quote
from flagbench.manifests.model import Catalog
from flagbench.system.files import read_text
from flagbench_core.exit_codes import ExitCode

_TIER = re.compile(r"(stack|case)(\.j2|s/.*)")
"""The name of a template, `stack.j2`, `stacks/NAME.j2`, `case.j2` or `cases/NAME.j2`; the first group is its tier."""


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

    def __init__(self, images: Path, template: Path | None = None) -> None:
        """Read a user's template, if there is one.

        Args:
            images: the folder with templates/ and files/; any that it lacks are taken from flagbench's own folder.
            template: a user's template, which replaces those of the tier that it extends.

        Raises:
            FlagbenchError: (USAGE) the user's template cannot be read; (BUILD_FAILED) it extends neither tier's
                template, or overrides a block that this does not have, which would change nothing.
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
        self._user_templates: dict[str, Template] = {}
        """The user's template, if there is one, by its tier."""
        if template is not None:
            with _template_errors():
                tier, user_template = self._read_user_template(template)
            self._user_templates[tier] = user_template

    def render(self, tier: str, name: str, values: Mapping[str, Any]) -> str:
        """Render the Dockerfile of a stack or a case.

        Args:
            tier: `stack` or `case`.
            name: the name of the stack or the case, which may have a template of its own.
            values: the variables of the template.

        Raises FlagbenchError (BUILD_FAILED) for an error in a template, with file and line.
        """
        with _template_errors():
            template = self._user_templates.get(tier)
            if template is None:
                template = self._env.select_template([f"{tier}s/{name}.j2", f"{tier}.j2"])
            return template.render(values)

    def read_file(self, name: str) -> bytes:
        """Read a file that a step of a build needs. Raises FileNotFoundError if there is none of that name."""
        for folder in self._folders:
            path = folder / "files" / name
            if path.is_file():
                return path.read_bytes()
        raise FileNotFoundError(name)

    def _read_user_template(self, path: Path) -> tuple[str, Template]:
        """Read a user's template; returns the tier that it extends, and the compiled template."""
        source = _read_source(path)
        tree = self._env.parse(source, filename=str(path))
        extended = _extended_template(tree)
        match = _TIER.fullmatch(extended)
        if match is None:
            raise FlagbenchError(
                f"{path} extends neither stack.j2 nor case.j2",
                remedy='begin it with {% extends "stack.j2" %} or {% extends "case.j2" %} and override one block',
                code=ExitCode.BUILD_FAILED,
            )
        tier = match[1]
        # A template in stacks/ or cases/ inherits the blocks of stack.j2 or case.j2.
        blocks = {*self._env.get_template(extended).blocks, *self._env.get_template(f"{tier}.j2").blocks}
        # Blocks inside an overridden block are the user's own; only the outermost have to exist already.
        for block in tree.body:
            if isinstance(block, nodes.Block) and block.name not in blocks:
                raise FlagbenchError(
                    f"{path}:{block.lineno}: {extended} has no block '{block.name}' to override",
                    remedy=f"its blocks are: {', '.join(sorted(blocks))}",
                    code=ExitCode.BUILD_FAILED,
                )
        # `from_string` would compile it without a name; with its path as the name, an error shows file and line.
        code = self._env.compile(source, name=str(path), filename=str(path))
        return tier, self._env.template_class.from_code(self._env, code, self._env.make_globals(None))


def _extended_template(tree: nodes.Template) -> str:
    """The name of the template that a parsed template extends; empty if it extends none, or one by a variable."""
    extends = tree.find(nodes.Extends)
    if extends is None or not isinstance(extends.template, nodes.Const):
        return ""
    return str(extends.template.value)


def _read_source(path: Path) -> str:
    """Read the text of a user's template. Raises FlagbenchError (USAGE) if it cannot be read."""
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise FlagbenchError(f"{path} cannot be read: {error}", remedy="name a readable file of UTF-8 text") from None


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
