"""The Jinja environment of image templates, and its errors with file, line and name."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping
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
    TemplateSyntaxError,
    nodes,
)

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.files import read_text
from flagbench.render import quoting
from flagbench.render.roots import shipped_images

FILTERS = {
    "sh_quote": quoting.sh_quote,
    "env_value": quoting.env_value,
    "one_line": quoting.one_line,
    "exec_form": quoting.exec_form,
}
TIERS = ("stack", "case")


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
    made.filters.update(FILTERS)
    return made


def render_template(images: Path, names: list[str], values: Mapping[str, Any], template: Path | None = None) -> str:
    """The text of the first template of `names` that exists, or of the file `template` in its place.

    Raises FlagbenchError (build failed) for what is wrong in a template, with file, line and name.
    """
    env = environment(images)
    try:
        chosen = env.select_template(names) if template is None else _users(env, template)
        return chosen.render(values)
    except TemplateError as error:
        raise _explained(error) from error
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        # An expression of a template went wrong, as opposed to code of ours that a template called.
        if _is_template(traceback.extract_tb(error.__traceback__)[-1]):
            raise _explained(error) from error
        raise


def render_blocks(name: str, blocks: Collection[str], values: Mapping[str, Any]) -> dict[str, str]:
    """What blocks of one of flagbench's own templates make on their own, whatever a template overrides."""
    template = environment(shipped_images()).get_template(name)
    return {block: "".join(template.blocks[block](template.new_context(dict(values)))) for block in blocks}


def template_tier(template: Path, images: Path) -> str:
    """`stack` or `case`: which tier a user's template changes, by the template that it extends.

    Raises FlagbenchError: (usage) the file cannot be read; (build failed) it extends neither tier's template,
    or has a block that it lacks, which would change nothing and say nothing.
    """
    env = environment(images)
    try:
        tree = env.parse(_source(template), filename=str(template))
        parent = next((found.template for found in tree.find_all(nodes.Extends)), None)
        extended = parent.value if isinstance(parent, nodes.Const) else None
        tier = "" if extended is None else _tier(extended)
        if extended is None or not tier:
            raise FlagbenchError(
                f"{template} extends neither stack.j2 nor case.j2",
                remedy='begin it with {% extends "stack.j2" %} or {% extends "case.j2" %} and override one block',
                code=ExitCode.BUILD_FAILED,
            )
        known = set(env.get_template(extended).blocks) | set(env.get_template(f"{tier}.j2").blocks)
        _require_known_blocks(tree, known, template, extended)
    except TemplateError as error:
        raise _explained(error) from error
    return tier


def _tier(extended: str) -> str:
    """The tier of a template's name: `stack.j2`, `stacks/NAME.j2`, `case.j2` or `cases/NAME.j2`."""
    return next((tier for tier in TIERS if extended == f"{tier}.j2" or extended.startswith(f"{tier}s/")), "")


def _require_known_blocks(tree: nodes.Template, known: set[str], template: Path, extended: str) -> None:
    # Blocks inside an overridden block are the user's own; only the outermost have to exist already.
    for block in tree.body:
        if isinstance(block, nodes.Block) and block.name not in known:
            raise FlagbenchError(
                f"{template}:{block.lineno}: {extended} has no block '{block.name}' to override",
                remedy=f"its blocks are: {', '.join(sorted(known))}",
                code=ExitCode.BUILD_FAILED,
            )


def _users(env: Environment, template: Path) -> Template:
    source = _source(template)
    # Compiled under its own name, so that an error tells it.
    code = env.compile(source, name=str(template), filename=str(template))
    return env.template_class.from_code(env, code, env.make_globals(None))


def _source(template: Path) -> str:
    try:
        return read_text(template)
    except (OSError, ValueError) as error:
        raise FlagbenchError(
            f"the template {template} cannot be read: {error}",
            remedy="name a readable file of UTF-8 text with --template",
        ) from None


def _explained(error: Exception) -> FlagbenchError:
    """A template's error with its file and line."""
    if isinstance(error, TemplateSyntaxError):
        where = f"{error.filename or error.name or 'a template'}:{error.lineno}"
    else:
        # Jinja maps the frames of compiled templates back to their lines; the last is where it happened.
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_template(frame)]
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "a template"
    what = f"there is no template {error.message}" if isinstance(error, TemplateNotFound) else str(error)
    return FlagbenchError(
        f"{where}: {what}",
        remedy="correct the template; images/README.md names what a template may use",
        code=ExitCode.BUILD_FAILED,
    )


def _is_template(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.endswith(".py") and not frame.filename.startswith("<frozen")
