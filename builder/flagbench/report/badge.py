"""A badge: a label and a value as a small picture, made here so that no page asks another host for it."""

from __future__ import annotations

from html import escape

_CHARACTER, _PADDING, _HEIGHT = 6.6, 8, 20
"""Pixels: the width of a character of 11 px, the space beside a text, and the height of a badge."""


def badge(label: str, value: str) -> str:
    """The picture as SVG; `textLength` gives the texts their width in any font."""
    left, right = (round(len(text) * _CHARACTER) + 2 * _PADDING for text in (label, value))
    texts = "".join(
        f'<text x="{x}" y="14" textLength="{width - 2 * _PADDING}">{escape(text)}</text>'
        for text, x, width in ((label, _PADDING, left), (value, left + _PADDING, right))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" role="img">'
        f"<title>{escape(label)}: {escape(value)}</title>"
        f'<rect width="{left + right}" height="{_HEIGHT}" rx="3" fill="#2b5797"/>'
        f'<rect width="{left}" height="{_HEIGHT}" rx="3" fill="#444"/>'
        f'<g fill="#fff" font-family="monospace" font-size="11">{texts}</g></svg>\n'
    )
