"""A configuration value as it is written on the command line, not as Python or JSON prints it."""

from __future__ import annotations

import json

from flagbench.verify.compare import ABSENT


def setting_text(value: object) -> str:
    """`true`, `none`, `0.1`, `a, b`; `-` for a setting that is not there.

    A text that would read as something else is quoted: "true" is not true.
    """
    if value is ABSENT:
        return "-"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if _misleading(value) else value
    if isinstance(value, list | tuple):
        return ", ".join(_nested(item) for item in value) or "(empty)"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_nested(item)}" for name, item in value.items()) or "(empty)"
    return str(value)


def _nested(value: object) -> str:
    """A value inside a list: brackets keep together what belongs together."""
    text = setting_text(value)
    return f"({text})" if isinstance(value, list | tuple | dict) and value else text


def _misleading(text: str) -> bool:
    if text.strip() != text or text in ("", "-", "none", "true", "false", "(empty)"):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True
