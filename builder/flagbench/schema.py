"""JSON Schemas of manifests and records, and their violations in plain words."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.terminal import brief

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

Kind = Literal["case", "stack", "claims", "record"]
FieldPath = tuple[str | int, ...]
"""Where a value stands in a document: keys and indices from the top."""


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
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def violations(kind: Kind, document: Any) -> list[tuple[FieldPath, str]]:
    """Everything in `document` that its schema does not allow, without repetition: where, and what is wrong."""
    return list(dict.fromkeys(_explained(validator(kind), document)))


@cache
def validator(kind: Kind) -> Draft202012Validator:
    """The validator of one kind of document, compiled once per process.

    Schemas are always this flagbench's own, even if manifests come from elsewhere: the code that reads the documents
    relies on them.
    """
    text = (shipped_manifests() / "schema" / f"{kind}-v1.json").read_text(encoding="utf-8")
    return _strict()(json.loads(text))


def value_fault(schema: dict[str, Any], value: Any) -> str | None:
    """The first reason why `schema` does not allow a single value, or None."""
    return next((what for _, what in _explained(_strict()(schema), value)), None)


@cache
def _strict() -> type[Draft202012Validator]:
    # Imported here: jsonschema costs more than everything else that `--help` imports.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # JSON Schema takes 8.0 for an integer; the code that uses it would not.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    strict: type[Draft202012Validator] = extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, {"pattern": _check_pattern}, type_checker=types
    )
    return strict


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was most likely meant to be, or None."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _check_pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    """The `pattern` keyword as ECMA-262 means it.

    Python's `$` also matches before a final newline, which would let `name\\n` into file names.
    """
    if not isinstance(instance, str):
        return
    if not re.search(pattern, instance) or (pattern.endswith("$") and instance.endswith("\n")):
        from jsonschema.exceptions import ValidationError

        yield ValidationError(f"{_shown(instance)} does not match the pattern {pattern}")


def _explained(validator: Draft202012Validator, document: Any) -> Iterator[tuple[FieldPath, str]]:
    for error in validator.iter_errors(document):
        path: FieldPath = tuple(error.absolute_path)
        value: Any = error.instance
        limit: Any = error.validator_value
        if error.validator == "required":
            yield from (((*path, name), "missing") for name in limit if name not in value)
        elif error.validator == "additionalProperties":
            allowed = error.schema.get("properties", {})
            for name in [name for name in value if name not in allowed]:
                close = nearest(name, allowed)
                hint = f"did you mean '{close}'?" if close else f"allowed: {', '.join(sorted(allowed))}"
                yield (*path, name), f"unknown field; {hint}"
        else:
            role = "the field name " if "propertyNames" in error.absolute_schema_path else ""
            yield path, role + _plain_words(str(error.validator), value, limit, error.message)


_TYPES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "greater than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


def _plain_words(keyword: str, value: Any, limit: Any, fallback: str) -> str:
    if keyword in _BOUNDS:
        return f"{_shown(value)} must be {_BOUNDS[keyword]} {limit}"
    match keyword:
        case "enum" | "const":
            allowed = limit if keyword == "enum" else [limit]
            return f"{_shown(value)} is not allowed; allowed: {', '.join(map(str, allowed))}"
        case "type":
            expected = limit if isinstance(limit, str) else " or ".join(limit)
            return f"expected {expected}, got {_TYPES.get(type(value), 'object')} {_shown(value)}".rstrip()
        case "minItems" | "minLength" | "minProperties":
            return f"{f'has {len(value)}' if value else 'is empty'}; needs at least {limit}"
        case "uniqueItems":
            return "contains the same entry twice"
    return fallback


def _shown(value: Any) -> str:
    """A scalar as it stands in an error message; nothing for containers and null, which would flood it."""
    if value is None or isinstance(value, list | dict):
        return ""
    return brief(json.dumps(value) if isinstance(value, bool) else repr(value), 80)
