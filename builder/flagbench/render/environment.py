"""The Jinja environment of image templates, and its errors with file, line and name."""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import (
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    StrictUndefined,
    Template,
    TemplateError,
    TemplateNotFound,
    nodes,
)

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import read_text
from flagbench.render.quoting import env_value, exec_form, one_line, sh_quote
from flagbench.render.roots import shipped_images

# `stack.j2`, `stacks/NAME.j2`, `case.j2` or `cases/NAME.j2`.
_TIER = re.compile(r"(stack|case)(\.j2|s/.*)")


@lru_cache(maxsize=8)
def environment(images: Path) -> Environment:
    """The environment whose templates are looked up in `images`/templates first, then in flagbench's own."""
    folders = dict.fromkeys([images / "templates", shipped_images() / "templates"])
    made = Environment(
        loader=ChoiceLoader([FileSystemLoader(folder) for folder in folders]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # A Dockerfile is not HTML; each value is quoted by the filter of the grammar it lands in.
        autoescape=False,
    )
    made.filters |= {"sh_quote": sh_quote, "env_value": env_value, "one_line": one_line, "exec_form": exec_form}
    return made


def render_template(images: Path, names: list[str], values: Mapping[str, Any], template: Path | None = None) -> str:
    """The text of the first template of `names` that exists, or of the file `template` in its place.

    Raises FlagbenchError (build failed) for what is wrong in a template, with file, line and name.
    """
    env = environment(images)
    with _errors_explained():
        chosen = env.select_template(names) if template is None else _users(env, template)
        return chosen.render(values)


def render_blocks(name: str, blocks: Collection[str], values: Mapping[str, Any]) -> dict[str, str]:
    """The text of some blocks of one of flagbench's own templates, without a user's overrides."""
    template = environment(shipped_images()).get_template(name)
    return {block: "".join(template.blocks[block](template.new_context(dict(values)))) for block in blocks}


def template_tier(template: Path, images: Path) -> str:
    """`stack` or `case`: which tier a user's template changes, by the template that it extends.

    Raises FlagbenchError: (usage) the file cannot be read; (build failed) it extends neither tier's template,
    or has a block that it lacks, which would change nothing and say nothing.
    """
    env = environment(images)
    with _errors_explained():
        tree = env.parse(_source(template), filename=str(template))
        parent = next((found.template for found in tree.find_all(nodes.Extends)), None)
        extended = str(parent.value) if isinstance(parent, nodes.Const) else ""
        tier = _TIER.fullmatch(extended)
        if tier is None:
            raise FlagbenchError(
                f"{template} extends neither stack.j2 nor case.j2",
                remedy='begin it with {% extends "stack.j2" %} or {% extends "case.j2" %} and override one block',
                code=ExitCode.BUILD_FAILED,
            )
        known = set(env.get_template(extended).blocks) | set(env.get_template(f"{tier[1]}.j2").blocks)
    # Blocks inside an overridden block are the user's own; only the outermost have to exist already.
    for block in tree.body:
        if isinstance(block, nodes.Block) and block.name not in known:
            raise FlagbenchError(
                f"{template}:{block.lineno}: {extended} has no block '{block.name}' to override",
                remedy=f"its blocks are: {', '.join(sorted(known))}",
                code=ExitCode.BUILD_FAILED,
            )
    return tier[1]


def _users(env: Environment, template: Path) -> Template:
    # Compiled under its own name, so that an error names it.
    code = env.compile(_source(template), name=str(template), filename=str(template))
    return env.template_class.from_code(env, code, env.make_globals(None))


def _source(template: Path) -> str:
    try:
        return read_text(template)
    except (OSError, ValueError) as error:
        raise FlagbenchError(
            f"the template {template} cannot be read: {error}",
            remedy="name a readable file of UTF-8 text with --template",
        ) from None


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
        what = f"there is no template {error.message}" if isinstance(error, TemplateNotFound) else str(error)
        raise FlagbenchError(
            f"{where}: {what}",
            remedy="correct the template; images/README.md names what a template may use",
            code=ExitCode.BUILD_FAILED,
        ) from error
