"""Pages of HTML by one template, `page.j2`, and charts as files: without a server, a network or a script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

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
        """`href`: the page's address; a text without one is no link."""
        found = super().__new__(cls, text)
        found.href = href
        return found

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
    """A page: what it says first, its charts, and the blocks under each heading; what is empty is left out.

    `home`: the address of the page above it. `tone`: the class of the verdict. `headline`: what follows it.
    """
    shown = {heading: filled(blocks) for heading, blocks in sections.items()}
    values = {"home": home, "verdict": verdict, "tone": tone, "headline": headline, "lead": lead}
    drawn = [chart for chart in charts if chart is not None]
    return _templates().get_template("page.j2").render(title=title, charts=drawn, sections=shown, **values)


def picture(chart: Chart) -> str:
    """A chart as a file of its own, an SVG that is readable on light and dark pages."""
    return str(_templates().get_template("charts.j2").module.drawing(chart, alone=True))  # type: ignore[attr-defined]


@cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("flagbench.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) in (str, Link) else value,
    )
    found.globals |= {"version": __version__, "tones": TONES}
    found.filters |= {"without_empty_columns": without_empty_columns, "width": width_of}
    found.globals["style"] = Markup(found.get_template("charts.css").render())
    return found
