"""JSON Schemas of manifests and records, and their violations in plain words."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jsonschema_rs import Draft202012Validator as Validator

from flagbench.errors import FlagbenchError
from flagbench.terminal import brief
from flagbench_core.exit_codes import ExitCode

Kind = Literal["case", "stack", "claims", "record", "series"]
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
    """Everything in `document`, of JSON's types, that its schema does not allow, without repetition: where, and what.

    Schemas are always this flagbench's own, even if manifests come from elsewhere: the code that reads the documents
    relies on them.
    """
    return list(dict.fromkeys(_explained(*_shipped(kind), document)))


def value_fault(schema: dict[str, Any], value: Any) -> str | None:
    """The first reason why `schema` does not allow a single value, or None."""
    strict = _strict(schema)
    return next((what for _, what in _explained(strict, _compiled(strict), value)), None)


@cache
def _shipped(kind: Kind) -> tuple[Any, Validator]:
    """The schema of one kind of document, compiled once per process."""
    text = (shipped_manifests() / "schema" / f"{kind}-v1.json").read_text(encoding="utf-8")
    schema = _strict(json.loads(text))
    return schema, _compiled(schema)


def _compiled(schema: Any) -> Validator:
    return Validator(schema, keywords={_WHOLE: _Whole})


_WHOLE = "wholeNumber"
"""A keyword beside `type: integer`: JSON Schema takes 8.0 for an integer; the code that uses it would not."""


class _Whole:
    """The check of `wholeNumber`, as jsonschema_rs calls it."""

    def __init__(self, parent: Any, value: Any, path: Any) -> None:
        pass

    def validate(self, instance: Any) -> None:
        if isinstance(instance, float) and instance.is_integer():
            raise ValueError


def _strict(schema: Any) -> Any:
    """The schema with `wholeNumber` wherever a number has to be an integer."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    types = schema.get("type")
    whole = types == "integer" or (isinstance(types, list) and "integer" in types and "number" not in types)
    return {key: _strict(item) for key, item in schema.items()} | ({_WHOLE: True} if whole else {})


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was most likely meant to be, or None."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _explained(schema: Any, validator: Validator, document: Any) -> Iterator[tuple[FieldPath, str]]:
    try:
        errors = list(validator.iter_errors(document))
    except UnicodeEncodeError as fault:
        yield (), f"contains {fault.object[fault.start]!r}, which is no character"
        return
    except ValueError as fault:  # a few hundred levels of lists and mappings
        yield (), f"cannot be checked: {fault}"
        return
    for error in errors:
        path: FieldPath = tuple(error.instance_path)
        kind: Any = error.kind
        *around, keyword = error.schema_path
        rules = functools.reduce(lambda inner, step: inner[step], around, schema)
        if keyword == "required":
            yield (*path, kind.property), "missing"
        elif keyword == "additionalProperties":
            allowed = rules.get("properties", {})
            for name in kind.unexpected:
                close = nearest(name, allowed)
                hint = f"did you mean '{close}'?" if close else f"allowed: {', '.join(sorted(allowed))}"
                yield (*path, name), f"unknown field; {hint}"
        else:
            of_name = kind.name == "propertyNames"
            value = kind.error.instance if of_name else error.instance
            role = "the field name " if of_name else ""
            yield path, role + _plain_words(str(keyword), value, rules, error.message)


_TYPES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "greater than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


def _plain_words(keyword: str, value: Any, rules: Mapping[str, Any], fallback: str) -> str:
    limit = rules[keyword]
    if keyword in _BOUNDS:
        return f"{_shown(value)} must be {_BOUNDS[keyword]} {limit}"
    match keyword:
        case "enum" | "const":
            allowed = limit if keyword == "enum" else [limit]
            return f"{_shown(value)} is not allowed; allowed: {', '.join(map(str, allowed))}"
        case "type" | "wholeNumber":
            types = rules["type"]
            expected = types if isinstance(types, str) else " or ".join(types)
            return f"expected {expected}, got {_TYPES.get(type(value), 'object')} {_shown(value)}".rstrip()
        case "minItems" | "minLength" | "minProperties":
            return f"{f'has {len(value)}' if value else 'is empty'}; needs at least {limit}"
        case "pattern":
            return f"{_shown(value)} does not match the pattern {limit}"
        case "uniqueItems":
            return "contains the same entry twice"
        case "anyOf":
            return "has none of the forms that are allowed"
    return fallback


def _shown(value: Any) -> str:
    """A scalar as it stands in an error message; nothing for containers and null, which would flood it."""
    if value is None or isinstance(value, list | dict):
        return ""
    return brief(json.dumps(value) if isinstance(value, bool) else repr(value), 80)
