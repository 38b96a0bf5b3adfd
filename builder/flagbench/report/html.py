"""Pages of HTML by one template, `page.j2`, and charts as files: without a server, a network or a script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flagbench.console.page import Block, filled, width_of, without_empty_columns
from flagbench.console.terminal import visible
from flagbench.report.charts import TONES, Chart, Note
from flagbench_core import __version__

Sections = dict[str, Sequence[Block]]
"""The blocks of a page by their heading."""


class Link(str):
    """A text that is a link to another page."""

    def __new__(cls, text: str, href: str | None) -> Link:
        """`href`: the address of the page; None for plain text."""
        link = super().__new__(cls, text)
        link.href = href
        return link

    href: str | None


def page(
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
    """A page: its lead, its charts, and the blocks under each heading. What is empty is left out.

    Args:
        home: the address of the page above it.
        verdict: the first word of the page.
        tone: the class of the verdict in the style sheet.
        headline: the text after the verdict.
    """
    return (
        _templates()
        .get_template("page.j2")
        .render(
            title=title,
            home=home,
            verdict=verdict,
            tone=tone,
            headline=headline,
            lead=lead,
            charts=[chart for chart in charts if chart is not None],
            sections={heading: filled(blocks) for heading, blocks in sections.items()},
        )
    )


def picture(chart: Chart) -> str:
    """A chart as a file of its own, an SVG that is readable on light and dark pages."""
    return str(_templates().get_template("charts.j2").module.drawing(chart, alone=True))  # type: ignore[attr-defined]


@cache
def _templates() -> Environment:
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
    """Text with control characters made visible. Markup, which a template made, is left as it is."""
    if type(value) in (str, Link):
        return visible(value)
    return value
