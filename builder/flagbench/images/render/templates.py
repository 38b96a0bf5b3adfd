"""The templates and files that images are made of: where they are, and errors in them with file, line and name."""

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

# `stack.j2`, `stacks/NAME.j2`, `case.j2` or `cases/NAME.j2`.
_TIER = re.compile(r"(stack|case)(\.j2|s/.*)")


def images_root(catalog: Catalog) -> Path:
    """The images/ folder with templates, files and locks: the one beside the catalog's manifests, if there is one."""
    beside = catalog.root.parent / "images"
    return beside if beside.is_dir() else shipped_images()


@lru_cache(maxsize=1)
def shipped_images() -> Path:
    """The images/ folder of this flagbench: beside the checkout, else inside the wheel.

    Raises FlagbenchError where neither is there, which is a broken installation.
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
    """The packages that images carry: each beside the catalog's manifests if it is there, else as it is installed."""
    folders = (catalog.root.parent / "entrypoints", Path(flagbench_core.__file__).parents[1])
    return [
        next(folder / name for folder in folders if (folder / name).is_dir())
        for name in ("flagbench_cases", "flagbench_core")
    ]


class Templates:
    """The templates of both tiers, and the files beside them."""

    def __init__(self, images: Path, template: Path | None = None) -> None:
        """Read a user's template, if there is one.

        Args:
            images: the folder with templates/ and files/; what is not there is flagbench's own.
            template: used in place of those of the tier that it extends.

        Raises:
            FlagbenchError: (usage) the user's template cannot be read; (build failed) it extends neither tier's
                template, or has a block that it lacks, which would change nothing and say nothing.
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
        self._users: dict[str, Template] = {}
        if template is not None:
            with _errors_explained():
                self._users = self._read(template)

    def render(self, tier: str, name: str, values: Mapping[str, Any]) -> str:
        """The Dockerfile of the stack or the case `name`; `tier` is `stack` or `case`.

        Raises FlagbenchError (build failed) for what is wrong in a template, with file, line and name.
        """
        with _errors_explained():
            template = self._users.get(tier) or self._env.select_template([f"{tier}s/{name}.j2", f"{tier}.j2"])
            return template.render(values)

    def file(self, name: str) -> bytes:
        """A file that a step of a build needs."""
        paths = [folder / "files" / name for folder in self._folders]
        return next(path for path in paths if path.is_file()).read_bytes()

    def _read(self, path: Path) -> dict[str, Template]:
        """A user's template by the tier that it changes."""
        source = _read_source(path)
        tree = self._env.parse(source, filename=str(path))
        parent = next((extends.template for extends in tree.find_all(nodes.Extends)), None)
        extended = ""
        if isinstance(parent, nodes.Const):
            extended = str(parent.value)
        tier = _TIER.fullmatch(extended)
        if tier is None:
            raise FlagbenchError(
                f"{path} extends neither stack.j2 nor case.j2",
                remedy='begin it with {% extends "stack.j2" %} or {% extends "case.j2" %} and override one block',
                code=ExitCode.BUILD_FAILED,
            )
        blocks = {*self._env.get_template(extended).blocks, *self._env.get_template(f"{tier[1]}.j2").blocks}
        # Blocks inside an overridden block are the user's own; only the outermost have to exist already.
        for block in tree.body:
            if isinstance(block, nodes.Block) and block.name not in blocks:
                raise FlagbenchError(
                    f"{path}:{block.lineno}: {extended} has no block '{block.name}' to override",
                    remedy=f"its blocks are: {', '.join(sorted(blocks))}",
                    code=ExitCode.BUILD_FAILED,
                )
        # Compiled under its own name, so that an error names it.
        code = self._env.compile(source, name=str(path), filename=str(path))
        return {tier[1]: self._env.template_class.from_code(self._env, code, self._env.make_globals(None))}


def _read_source(path: Path) -> str:
    """The text of a user's template. Raises FlagbenchError (usage) where it cannot be read."""
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise FlagbenchError(f"{path} cannot be read: {error}", remedy="name a readable file of UTF-8 text") from None


@contextmanager
def _errors_explained() -> Iterator[None]:
    """An error in a template as a FlagbenchError (build failed) with file and line; our own errors as they are."""
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        # Jinja maps the frames of compiled templates back to their lines; the last is where it happened.
        lines = [frame for frame in frames if not frame.filename.endswith(".py") and "<frozen" not in frame.filename]
        if not isinstance(error, TemplateError) and frames[-1] not in lines:
            raise
        where = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else "a template"
        what = f"there is no template {error.name}" if isinstance(error, TemplateNotFound) else str(error)
        raise FlagbenchError(
            f"{where}: {what}",
            remedy="correct the template; images/README.md names what a template may use",
            code=ExitCode.BUILD_FAILED,
        ) from error
