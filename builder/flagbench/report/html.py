"""Writes the HTML pages of reports and certificates, and charts as SVG files, from the templates of this package.

A page is one file that needs no server, network or script. `site` and the page of a certificate say what is on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flagbench.console.page import Block, width_of, without_empty_blocks, without_empty_columns
from flagbench.console.terminal import visible
from flagbench.report.charts import TONES, Chart, Note
from flagbench_core import __version__

Sections = dict[str, Sequence[Block]]
"""The blocks of a page by their heading."""


class Link(str):
    """A text that is a link to another page. Where text is printed, as in a table, it is the text alone."""

    href: str | None
    """The address of the page; None for text without a link."""

    def __new__(cls, text: str, href: str | None) -> Link:
        """Make a text that links to `href`."""
        link = super().__new__(cls, text)
        link.href = href
        return link


def render_page(
    title: str,
    lead: str,
    charts: Iterable[Chart | Note | None],
    sections: Sections,
    *,
    home: str = "",
    verdict: str | None = None,
    tone: str = "",
    headline: str = "",
) -> str:
    """Return a page as HTML: its lead, its charts, and the blocks under each heading.

    Charts that are None and blocks without content are left out.

    Args:
        lead: the paragraph below the title.
        home: the address of the page above it; empty if it has none.
        verdict: the first word of the page, such as REPRODUCED; None for a page without a verdict.
        tone: the class of the verdict in the style sheet.
        headline: the text after the verdict.
    """
    template = _load_templates().get_template("page.j2")
    return template.render(
        title=title,
        home=home,
        verdict=verdict,
        tone=tone,
        headline=headline,
        lead=lead,
        charts=[chart for chart in charts if chart is not None],
        sections={heading: without_empty_blocks(blocks) for heading, blocks in sections.items()},
    )


def render_svg(chart: Chart) -> str:
    """Return a chart as the content of an SVG file, which is readable on light and dark pages."""
    macros = _load_templates().get_template("charts.j2").module
    return str(macros.drawing(chart, alone=True))  # type: ignore[attr-defined]


@cache
def _load_templates() -> Environment:
    """Return the environment of the templates: they escape HTML, and a variable that is not given is an error."""
    templates = Environment(
        loader=PackageLoader("flagbench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible_text,
    )
    templates.globals |= {"version": __version__, "tones": TONES}
    templates.filters |= {"without_empty_columns": without_empty_columns, "width": width_of}
    templates.globals["style"] = Markup(templates.get_template("charts.css").render())
    return templates


def _visible_text(value: Any) -> Any:
    """Return text with control characters made visible, and any other value as it is.

    The exact type is checked: Markup is a str, too, and was made by a template.
    """
    if type(value) in (str, Link):
        return visible(value)
    return value
