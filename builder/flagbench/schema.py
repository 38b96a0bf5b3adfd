"""JSON Schemas of manifests and records, and their violations in plain words."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flagbench.errors import ExitCode, FlagbenchError

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

Kind = Literal["case", "stack", "claims", "record"]
FieldPath = tuple[str | int, ...]
"""Where a value stands in a document: keys and indices from the top."""

MOST = 100
"""Violations reported for one array or object, at most."""

_CONTAINERS = ("items", "prefixItems", "properties", "additionalProperties", "propertyNames")
_Keyword = Callable[..., Iterator["ValidationError"]]


@dataclass(frozen=True)
class Violation:
    """One thing in a document that its schema does not allow."""

    path: FieldPath
    message: str


def shipped_manifests() -> Path:
    """The manifests that belong to this flagbench: beside the checkout, else inside the wheel.

    Raises FlagbenchError if neither exists, which is a broken installation.
    """
    package = Path(__file__).resolve().parent
    for folder in (package.parent.parent / "manifests", package / "_data" / "manifests"):
        if (folder / "schema").is_dir():
            return folder
    raise FlagbenchError(
        f"this installation of flagbench has no manifests (looked around {package})",
        remedy="install flagbench again, from a wheel or an editable checkout",
        code=ExitCode.BUG,
    )


def field_name(path: FieldPath) -> str:
    """A path as text, like `claims[0].metrics[2].unit`; empty for the whole document."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            parts.append(f".{step}" if parts else step)
    return "".join(parts)


def violations(kind: Kind, document: Any) -> list[Violation]:
    """Everything in `document` that its schema does not allow, ordered by path, without repetition."""
    errors = validator(kind).iter_errors(document)
    found = (violation for error in errors for violation in _explain(error))
    return sorted(dict.fromkeys(found), key=lambda violation: _path_order(violation.path))


def _path_order(path: FieldPath) -> list[tuple[int, str]]:
    """A sort key in which indices count as numbers and every path is comparable."""
    return [(step, "") if isinstance(step, int) else (-1, step) for step in path]


@cache
def validator(kind: Kind) -> Draft202012Validator:
    """The validator of one kind of document, compiled once per process.

    Schemas are always this flagbench's own, even if manifests come from elsewhere: the code that reads the documents
    relies on them.
    """
    # Imported here: jsonschema costs more than everything else that `--help` imports.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    text = (shipped_manifests() / "schema" / f"{kind}-v1.json").read_text(encoding="utf-8")
    known: Mapping[str, _Keyword] = Draft202012Validator.VALIDATORS
    bounded = {keyword: _bounded(known[keyword]) for keyword in _CONTAINERS}
    strict: type[Draft202012Validator] = extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, {"pattern": _check_pattern, **bounded}
    )
    return strict(json.loads(text))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was most likely meant to be, or None."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _bounded(check: _Keyword) -> _Keyword:
    """The keyword's own check, which stops after MOST violations: a million of them would be kept in memory."""
    return lambda *arguments: islice(check(*arguments) or (), MOST)


def _check_pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    """The `pattern` keyword as ECMA-262 means it.

    Python's `$` also matches before a final newline, which would let `name\\n` into file names.
    """
    if not isinstance(instance, str):
        return
    if not re.search(pattern, instance) or (pattern.endswith("$") and instance.endswith("\n")):
        from jsonschema.exceptions import ValidationError

        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _explain(error: ValidationError) -> Iterator[Violation]:
    path: FieldPath = tuple(error.absolute_path)
    value: Any = error.instance
    limit: Any = error.validator_value
    schema: Any = error.schema
    keyword = str(error.validator)
    if keyword in ("anyOf", "oneOf"):
        for cause in _likely_branch(error):
            yield from _explain(cause)
    elif keyword == "required":
        for name in limit:
            if name not in value:
                yield Violation((*path, name), "missing")
    elif keyword == "additionalProperties":
        allowed = schema.get("properties", {})
        for name in value:
            if name not in allowed:
                yield Violation((*path, name), _unknown_field(name, allowed))
    else:
        role = "the field name " if "propertyNames" in error.absolute_schema_path else ""
        yield Violation(path, role + _plain_words(keyword, value, limit, error.message))


def _unknown_field(name: str, allowed: Mapping[str, Any]) -> str:
    close = nearest(name, allowed)
    if close is not None:
        return f"unknown field; did you mean '{close}'?"
    return f"unknown field; allowed: {', '.join(sorted(allowed))}"


def _likely_branch(error: ValidationError) -> list[ValidationError]:
    """The errors of the alternative that the author most likely meant: not those rejected by type alone."""
    causes = list(error.context or ())
    depth = len(error.absolute_path)
    wrong_type = {c.schema_path[0] for c in causes if c.validator == "type" and len(c.absolute_path) == depth}
    return [c for c in causes if c.schema_path[0] not in wrong_type] or causes[-1:]


def _plain_words(keyword: str, value: Any, limit: Any, fallback: str) -> str:
    if keyword == "enum":
        return f"{_shown(value)} is not allowed; allowed: {', '.join(map(str, limit))}"
    if keyword == "const":
        return f"{_shown(value)} is not allowed; allowed: {limit}"
    if keyword == "type":
        expected = limit if isinstance(limit, str) else " or ".join(limit)
        return f"expected {expected}, got {type_name(value)} {_shown(value)}".rstrip()
    if keyword == "pattern":
        return f"{_shown(value)} does not match the pattern {limit}"
    if keyword in _BOUNDS:
        return f"{_shown(value)} must be {_BOUNDS[keyword]} {limit}"
    if keyword in ("minItems", "minLength", "minProperties"):
        return f"{'is empty' if not value else f'has {len(value)}'}; needs at least {limit}"
    if keyword in ("maxItems", "maxLength"):
        return f"has {len(value)}; at most {limit} allowed"
    if keyword == "uniqueItems":
        return "contains the same entry twice"
    return fallback


_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "greater than",
    "exclusiveMaximum": "less than",
}


def type_name(value: Any) -> str:
    """The JSON name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), type(value).__name__)


def _shown(value: Any) -> str:
    """A scalar as it stands in an error message; nothing for containers and null, which would flood it."""
    if value is None or isinstance(value, (list, dict)):
        return ""
    text = json.dumps(value) if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
