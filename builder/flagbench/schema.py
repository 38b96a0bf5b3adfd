"""JSON Schemas of manifests and records, generated from their types, and their violations in plain words."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
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
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}"
    return text.removeprefix(".")


def json_schema(model: type) -> dict[str, Any]:
    """The JSON Schema of the documents whose fields are those of `model`; its `VERSION` is their `schema` field.

    A dataclass is a manifest and has no other fields. A Struct may: readers of records ignore unknown ones.
    """
    version = model.VERSION  # type: ignore[attr-defined]
    _, components = msgspec.json.schema_components([model], ref_template="#/$defs/{name}")
    closed = not issubclass(model, msgspec.Struct)
    parts = {name: _simplified(part, closed) for name, part in components.items()}
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
        return [_simplified(part, closed) for part in schema]
    if not isinstance(schema, dict):
        return schema
    simplified = {}
    for key, part in schema.items():
        if key == "title" and isinstance(part, str):
            continue
        simplified[key] = _simplified(part, closed)
    if isinstance(simplified.get("pattern"), str):
        simplified["pattern"] = simplified["pattern"].replace(r"\Z", "$")
    if closed and "properties" in simplified:
        simplified["additionalProperties"] = False
    if "anyOf" in simplified:
        return _one_form(simplified.pop("anyOf"), simplified)
    return simplified


def _one_form(forms: list[dict[str, Any]], around: dict[str, Any]) -> dict[str, Any]:
    """Forms that only differ in their types as one, `type: [string, null]`, whose violations say what is wrong."""
    types = []
    rules: dict[str, Any] = {}
    same = True
    for form in forms:
        types.append(form.get("type"))
        for key, rule in form.items():
            if key != "type" and rules.setdefault(key, rule) != rule:
                same = False
    if not same or "enum" in rules or not all(isinstance(name, str) for name in types):
        return {"anyOf": forms, **around}
    names = list(dict.fromkeys(types))
    if "number" in names and "integer" in names:
        names.remove("integer")
    if len(names) == 1:
        return {"type": names[0], **rules, **around}
    return {"type": names, **rules, **around}


def violations(model: type, document: Any) -> list[tuple[FieldPath, str]]:
    """Everything in `document`, of JSON's types, that `model` does not allow, without repetition: where, and what."""
    schema, validator = _compiled(model)
    explained = list(dict.fromkeys(_explained(schema, validator, document)))
    if explained:
        return explained
    try:
        msgspec.convert(document, model)
    except msgspec.ValidationError as error:  # what JSON Schema cannot say, such as that 8.0 is no integer
        return [_violation_of_msgspec(str(error))]
    return []


def _violation_of_msgspec(message: str) -> tuple[FieldPath, str]:
    """Where and what, from msgspec's "Expected `int`, got `float` - at `$.claims[0].value`"."""
    what, _, where = message.partition(" - at `$")
    path: list[str | int] = []
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", where):
        if name:
            path.append(name)
        else:
            path.append(int(index))
    return tuple(path), what[0].lower() + what[1:].replace("`", "")


@cache
def _compiled(model: type) -> tuple[Any, Validator]:
    """The schema of a type of document, compiled once per process."""
    schema = json_schema(model)
    return schema, Validator(schema)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `name` was most likely meant to be, or None."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    if not close:
        return None
    return close[0]


def hint(name: str, names: Iterable[str]) -> str:
    """`did you mean NAME? `, to begin a remedy with; empty without a name near enough."""
    close = nearest(name, names)
    if close is None:
        return ""
    return f"did you mean {close}? "


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
        yield from _explained_forms(schema, error, path)
    elif kind.name == "propertyNames":
        reason = _plain_words(str(keyword), kind.error.instance, rules, error.message)
        yield path, f"the field name {reason}"
    else:
        yield path, _plain_words(str(keyword), error.instance, rules, error.message)


def _explained_forms(schema: Any, error: ValidationError, path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    """What is wrong with a value of several forms: the form that is meant is the one whose type the value has."""
    forms: Any = error.kind
    meant = []
    for errors in forms.context:
        if not any(_has_other_type(inner, path) for inner in errors):
            meant.append(errors)
    if len(meant) == 1:
        for inner in meant[0]:
            yield from _one_explained(schema, inner)
    elif meant:
        yield path, "has none of the forms that are allowed"
    else:
        types = [_rules(schema, inner)["type"] for inner in chain.from_iterable(forms.context)]
        yield path, _plain_words("type", error.instance, {"type": types}, error.message)


def _rules(schema: Any, error: ValidationError) -> Any:
    """The part of the schema that has the keyword of the error."""
    return functools.reduce(lambda inner, step: inner[step], error.schema_path[:-1], schema)


def _unknown(name: str, allowed: Iterable[str]) -> str:
    close = nearest(name, allowed)
    if close is None:
        return f"unknown field; allowed: {', '.join(sorted(allowed))}"
    return f"unknown field; did you mean '{close}'?"


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
        case "const":
            return _not_allowed(value, [limit])
        case "enum":
            return _not_allowed(value, limit)
        case "type":
            return _unexpected_type(value, limit)
        case "minItems" | "minProperties":
            return _too_short(value, limit, "entries")
        case "minLength":
            return _too_short(value, limit, "characters")
        case "pattern":
            form = rules.get("description")
            if form is None:
                return f"{_shown(value)} does not match the pattern {limit}"
            return f"{_shown(value)} is not {form}"
    return fallback


def _not_allowed(value: Any, choices: Iterable[Any]) -> str:
    names = []
    for choice in choices:
        if choice is None:
            names.append("null")
        else:
            names.append(str(choice))
    return f"{_shown(value)} is not allowed; allowed: {', '.join(names)}"


def _unexpected_type(value: Any, types: str | list[str]) -> str:
    expected = types
    if not isinstance(types, str):
        expected = " or ".join(types)
    received = f"got {_TYPES.get(type(value), 'object')} {_shown(value)}".rstrip()
    return f"expected {expected}, {received}{type_remedy(types, value)}"


def _too_short(value: Any, least: int, unit: str) -> str:
    if not value:
        return f"is empty; needs at least {least}"
    return f"has {len(value)} {unit}; needs at least {least}"


def type_remedy(types: str | list[str], value: Any) -> str:
    """What to do where YAML reads a scalar as another type than it was meant as."""
    if "string" in types and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if isinstance(types, str):
        types = [types]
    if isinstance(value, str) and not {"number", "integer"}.isdisjoint(types):
        with suppress(ValueError):
            float(value)
            return "; write it without quotes, and with a point before an exponent, as in 5.0e-5"
    return ""


def _shown(value: Any) -> str:
    """A scalar as it stands in an error message; nothing for containers and null, which would flood it."""
    if value is None or isinstance(value, list | dict):
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    return brief(repr(value), 80)
