"""JSON Schemas of manifests and records, generated from their types, and their violations in plain words."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jsonschema_rs import Draft202012Validator as Validator
from jsonschema_rs import ValidationError

from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench_core.exit_codes import ExitCode

FieldPath = tuple[str | int, ...]
"""Where a value stands in a document: keys and indices from the top."""


def shipped_manifests() -> Path:
    """The manifests that belong to this flagbench: beside the checkout, else inside the wheel.

    Raises FlagbenchError if neither exists, which is a broken installation.
    """
    package = Path(__file__).resolve().parent
    for folder in (package.parent.parent / "manifests", package / "_data" / "manifests"):
        if (folder / "cases").is_dir():
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


def json_schema(model: type) -> dict[str, Any]:
    """The JSON Schema of the documents whose fields are those of `model`; its `VERSION` is their `schema` field.

    A dataclass is a manifest and has no other fields. A Struct may: readers of records ignore unknown ones.
    """
    version = model.VERSION  # type: ignore[attr-defined]
    _, found = msgspec.json.schema_components([model], ref_template="#/$defs/{name}")
    closed = not issubclass(model, msgspec.Struct)
    parts = {name: _simplified(part, closed) for name, part in found.items()}
    top = parts.pop(model.__name__)
    top["properties"] = {"schema": {"const": version}, **top["properties"]}
    top["properties"].pop("raw", None)  # the whole document, which readers keep
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{version.replace('/', '-')}.json",
        "title": f"flagbench {version}",
        **top,
        "required": ["schema", *top["required"]],
        "$defs": dict(sorted(parts.items())),
    }


def _simplified(schema: Any, closed: bool) -> Any:
    """A schema that msgspec generated, in fewer words, and with `$` for Python's `\\Z`."""
    if isinstance(schema, list):
        return [_simplified(item, closed) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: _simplified(item, closed)
        for key, item in schema.items()
        if not (key == "title" and isinstance(item, str))
    }
    if isinstance(found.get("pattern"), str):
        found["pattern"] = found["pattern"].replace(r"\Z", "$")
    if closed and "properties" in found:
        found["additionalProperties"] = False
    return _one_form(found.pop("anyOf"), found) if "anyOf" in found else found


def _one_form(forms: list[dict[str, Any]], around: dict[str, Any]) -> dict[str, Any]:
    """Forms that only differ in their types as one, `type: [string, null]`, whose violations say what is wrong."""
    types = [form.get("type") for form in forms]
    rules = {key: rule for form in forms for key, rule in form.items() if key != "type"}
    same = all(rules[key] == rule for form in forms for key, rule in form.items() if key != "type")
    if not same or "enum" in rules or not all(isinstance(name, str) for name in types):
        return {"anyOf": forms, **around}
    names = [name for name in dict.fromkeys(types) if name != "integer" or "number" not in types]
    return {"type": names[0] if len(names) == 1 else names, **rules, **around}


def violations(model: type, document: Any) -> list[tuple[FieldPath, str]]:
    """Everything in `document`, of JSON's types, that `model` does not allow, without repetition: where, and what."""
    found = list(dict.fromkeys(_explained(*_compiled(model), document)))
    if found:
        return found
    try:
        msgspec.convert(document, model)
    except msgspec.ValidationError as error:  # what JSON Schema cannot say, such as that 8.0 is no integer
        what, _, where = str(error).partition(" - at `$")
        steps = re.findall(r"\.(\w+)|\[(\d+)\]", where)
        return [(tuple(name or int(index) for name, index in steps), what[0].lower() + what[1:].replace("`", ""))]
    return []


@cache
def _compiled(model: type) -> tuple[Any, Validator]:
    """The schema of a type of document, compiled once per process."""
    schema = json_schema(model)
    return schema, Validator(schema)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was most likely meant to be, or None."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def hint(name: str, known: Iterable[str]) -> str:
    """`did you mean NAME? `, to begin a remedy with; empty without a name near enough."""
    close = nearest(name, known)
    return f"did you mean {close}? " if close else ""


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
        yield from _one_explained(schema, error)


def _one_explained(schema: Any, error: ValidationError) -> Iterator[tuple[FieldPath, str]]:
    path: FieldPath = tuple(error.instance_path)
    kind: Any = error.kind
    keyword, rules = error.schema_path[-1], _rules(schema, error)
    if keyword == "required":
        yield (*path, kind.property), "missing"
    elif keyword == "additionalProperties":
        for name in kind.unexpected:
            yield (*path, name), _unknown(name, rules.get("properties", ()))
    elif keyword == "propertyNames" and "enum" in rules[keyword]:
        name = kind.error.instance
        yield (*path, name), _unknown(name, rules[keyword]["enum"])
    elif keyword == "anyOf":
        # The form that is meant is the one whose type the value has.
        meant = [form for form in kind.context if not any(_has_other_type(inner, path) for inner in form)]
        if len(meant) == 1:
            for inner in meant[0]:
                yield from _one_explained(schema, inner)
        elif meant:
            yield path, "has none of the forms that are allowed"
        else:
            types = [_rules(schema, inner)["type"] for form in kind.context for inner in form]
            yield path, _plain_words("type", error.instance, {"type": types}, error.message)
    else:
        of_name = kind.name == "propertyNames"
        value = kind.error.instance if of_name else error.instance
        role = "the field name " if of_name else ""
        yield path, role + _plain_words(str(keyword), value, rules, error.message)


def _rules(schema: Any, error: ValidationError) -> Any:
    """The part of the schema that has the keyword of the error."""
    return functools.reduce(lambda inner, step: inner[step], error.schema_path[:-1], schema)


def _unknown(name: str, allowed: Iterable[str]) -> str:
    close = nearest(name, allowed)
    return "unknown field; " + (f"did you mean '{close}'?" if close else f"allowed: {', '.join(sorted(allowed))}")


def _has_other_type(error: ValidationError, path: FieldPath) -> bool:
    return tuple(error.instance_path) == path and error.schema_path[-1] == "type"


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
            allowed = ("null" if one is None else str(one) for one in (limit if keyword == "enum" else [limit]))
            return f"{_shown(value)} is not allowed; allowed: {', '.join(allowed)}"
        case "type":
            types = rules["type"]
            expected = types if isinstance(types, str) else " or ".join(types)
            got = f"got {_TYPES.get(type(value), 'object')} {_shown(value)}".rstrip()
            return f"expected {expected}, {got}{type_remedy(types, value)}"
        case "minItems" | "minLength" | "minProperties":
            unit = "characters" if keyword == "minLength" else "entries"
            return f"{f'has {len(value)} {unit}' if value else 'is empty'}; needs at least {limit}"
        case "pattern":
            form = rules.get("description")
            return f"{_shown(value)} {f'is not {form}' if form else f'does not match the pattern {limit}'}"
    return fallback


def type_remedy(types: str | list[str], value: Any) -> str:
    """What to do where YAML reads a scalar as another type than it was meant as."""
    if "string" in types and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if {"number", "integer"}.intersection([types] if isinstance(types, str) else types) and isinstance(value, str):
        with suppress(ValueError):
            float(value)
            return "; write it without quotes, and with a point before an exponent, as in 5.0e-5"
    return ""


def _shown(value: Any) -> str:
    """A scalar as it stands in an error message; nothing for containers and null, which would flood it."""
    if value is None or isinstance(value, list | dict):
        return ""
    return brief(json.dumps(value) if isinstance(value, bool) else repr(value), 80)
