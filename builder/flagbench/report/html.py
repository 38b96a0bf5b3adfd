"""Pages of HTML in one frame, `templates/frame.j2`, and charts as files: without a server, a network or a script."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from flagbench.report.charts import TONES, Chart
from flagbench.terminal import visible
from flagbench_core import __version__


class Link(str):
    """A text that is a link to another page."""

    def __new__(cls, text: str, href: str | None) -> Link:
        """`href`: the page's address; a text without one is no link."""
        found = super().__new__(cls, text)
        found.href = href
        return found

    href: str | None


def page(template: str, title: str, **values: Any) -> str:
    """A page of a template that extends the frame. `home`: the address of the page above it, if there is one."""
    return _templates().get_template(template).render(title=title, **values)


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
    found.globals |= {"version": __version__, "tones": TONES, "home": ""}
    found.globals["style"] = Markup(found.get_template("charts.css").render())
    return found
