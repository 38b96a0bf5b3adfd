"""JSON Schemas of manifests and records, generated from their types, and messages for documents that violate them.

Manifests are dataclasses, records are msgspec Structs. `json_schema` makes the files in manifests/schema,
`violations` explains what is wrong with a document.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flagbench.console.terminal import brief
from flagbench.errors import FlagbenchError
from flagbench_core.exit_codes import ExitCode

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator, ValidationError

FieldPath = tuple[str | int, ...]
"""The place of a value in a document: keys and indices from the top."""
MIN_SIMILARITY = 0.6
"""How similar a known name must be to be suggested for an unknown one: the default of difflib."""


class Violation(NamedTuple):
    """One thing that is wrong with a document."""

    path: FieldPath
    message: str


def shipped_manifests() -> Path:
    """The folder of the manifests that belong to this flagbench: in its checkout, or else in its wheel.

    Raises FlagbenchError if neither exists, which is a broken installation.
    """
    package = Path(__file__).resolve().parent
    in_checkout = package.parent.parent / "manifests"
    in_wheel = package / "_data" / "manifests"
    for folder in (in_checkout, in_wheel):
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
    """The JSON Schema of the documents whose fields are those of `model`. `model.VERSION` is their `schema` field.

    A manifest, whose model is a dataclass, must have no other fields. A record, whose model is a Struct, may: readers
    of records ignore unknown fields.
    """
    version = model.VERSION  # type: ignore[attr-defined]
    _, components = msgspec.json.schema_components([model], ref_template="#/$defs/{name}")
    is_closed = not issubclass(model, msgspec.Struct)
    parts = {name: _simplify(part, is_closed) for name, part in components.items()}
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


def _simplify(schema: Any, is_closed: bool) -> Any:
    """A schema that msgspec generated, without titles, with simpler unions, and with `$` for Python's `\\Z`.

    `is_closed`: whether objects may have no other fields.
    """
    if isinstance(schema, list):
        return [_simplify(part, is_closed) for part in schema]
    if not isinstance(schema, dict):
        return schema
    simplified = {}
    for key, part in schema.items():
        if key == "title" and isinstance(part, str):
            continue
        simplified[key] = _simplify(part, is_closed)
    if isinstance(simplified.get("pattern"), str):
        simplified["pattern"] = simplified["pattern"].replace(r"\Z", "$")
    if is_closed and "properties" in simplified:
        simplified["additionalProperties"] = False
    if "anyOf" in simplified:
        forms = simplified.pop("anyOf")
        return _merge_forms(forms, simplified)
    return simplified


def _merge_forms(forms: list[dict[str, Any]], other_rules: dict[str, Any]) -> dict[str, Any]:
    """The alternatives of a union as one schema, such as `type: [string, null]`, if they only differ in their types.

    A violation of one schema says what is wrong; one of a union only says that no alternative fits. `other_rules` are
    the rules next to the union.
    """
    types = []
    rules: dict[str, Any] = {}
    has_same_rules = True
    for form in forms:
        types.append(form.get("type"))
        for key, rule in form.items():
            if key != "type" and rules.setdefault(key, rule) != rule:
                has_same_rules = False
    has_types = all(isinstance(name, str) for name in types)
    if not has_same_rules or not has_types or "enum" in rules:
        return {"anyOf": forms, **other_rules}
    names = list(dict.fromkeys(types))
    if "number" in names and "integer" in names:  # an integer is a number
        names.remove("integer")
    if len(names) == 1:
        return {"type": names[0], **rules, **other_rules}
    return {"type": names, **rules, **other_rules}


def violations(model: type, document: Any) -> list[Violation]:
    """Everything in `document`, which has JSON's types, that `model` does not allow; each only once."""
    compiled = _compile_schema(model)
    explained = list(dict.fromkeys(_explain_all(compiled, document)))
    if explained:
        return explained
    try:
        msgspec.convert(document, model)
    except msgspec.ValidationError as error:  # what JSON Schema cannot say, such as that 8.0 is no integer
        return [_violation_of_msgspec(str(error))]
    return []


def _violation_of_msgspec(error_text: str) -> Violation:
    """The violation in msgspec's "Expected `int`, got `float` - at `$.claims[0].value`"."""
    message, _, place = error_text.partition(" - at `$")
    path: list[str | int] = []
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", place):
        if name:
            path.append(name)
        else:
            path.append(int(index))
    return Violation(tuple(path), message[0].lower() + message[1:].replace("`", ""))


class _CompiledSchema(NamedTuple):
    """A JSON Schema, and the validator that was made of it."""

    schema: Any
    validator: Draft202012Validator


@cache  # compiling takes longer than most checks
def _compile_schema(model: type) -> _CompiledSchema:
    from jsonschema_rs import Draft202012Validator  # slow to import, and rarely needed

    schema = json_schema(model)
    return _CompiledSchema(schema, Draft202012Validator(schema))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name among `names` that is most similar to `name`; None if none is similar."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=MIN_SIMILARITY)
    if not close:
        return None
    return close[0]


def hint(name: str, names: Iterable[str]) -> str:
    """`did you mean NAME? `, to begin a remedy with; empty if no name is similar."""
    close = nearest(name, names)
    if close is None:
        return ""
    return f"did you mean {close}? "


def _explain_all(compiled: _CompiledSchema, document: Any) -> Iterator[Violation]:
    """Explain every error that the validator finds."""
    try:
        errors = list(compiled.validator.iter_errors(document))
    except UnicodeEncodeError as error:
        yield Violation((), f"contains {error.object[error.start]!r}, which is no character")
        return
    except ValueError as error:  # a few hundred levels of lists and mappings
        yield Violation((), f"cannot be checked: {error}")
        return
    for violation in errors:
        yield from _explain(compiled.schema, violation)


def _explain(schema: Any, error: ValidationError) -> Iterator[Violation]:
    """Explain one error of the validator. It may be several violations, such as two unknown fields of an object."""
    path: FieldPath = tuple(error.instance_path)
    kind: Any = error.kind
    keyword = error.schema_path[-1]
    rules = _rules_around(schema, error)
    if keyword == "required":
        yield Violation((*path, kind.property), "missing")
    elif keyword == "additionalProperties":
        for name in kind.unexpected:
            yield Violation((*path, name), _unknown_field(name, rules.get("properties", ())))
    elif keyword == "propertyNames" and "enum" in rules[keyword]:
        name = kind.error.instance
        yield Violation((*path, name), _unknown_field(name, rules[keyword]["enum"]))
    elif keyword == "anyOf":
        yield from _explain_union(schema, error, path)
    elif kind.name == "propertyNames":
        reason = _plain_words(str(keyword), kind.error.instance, rules, error.message)
        yield Violation(path, f"the field name {reason}")
    else:
        yield Violation(path, _plain_words(str(keyword), error.instance, rules, error.message))


def _explain_union(schema: Any, error: ValidationError, path: FieldPath) -> Iterator[Violation]:
    """Explain what is wrong with the value of a union: its author meant the alternative whose type the value has."""
    union: Any = error.kind
    meant = []
    for errors_of_alternative in union.context:
        if not any(_is_about_type(inner, path) for inner in errors_of_alternative):
            meant.append(errors_of_alternative)
    if len(meant) == 1:
        for inner in meant[0]:
            yield from _explain(schema, inner)
    elif meant:
        yield Violation(path, "has none of the forms that are allowed")
    else:
        types = [_rules_around(schema, inner)["type"] for inner in chain.from_iterable(union.context)]
        yield Violation(path, _plain_words("type", error.instance, {"type": types}, error.message))


def _rules_around(schema: Any, error: ValidationError) -> Any:
    """The part of the schema that contains the keyword of the error."""
    rules = schema
    for step in error.schema_path[:-1]:
        rules = rules[step]
    return rules


def _unknown_field(name: str, allowed: Iterable[str]) -> str:
    """The message for an unknown field: a similar name, or all names that are allowed."""
    close = nearest(name, allowed)
    if close is None:
        return f"unknown field; allowed: {', '.join(sorted(allowed))}"
    return f"unknown field; did you mean '{close}'?"


def _is_about_type(error: ValidationError, path: FieldPath) -> bool:
    """Whether an error says that the value at `path` has another type than an alternative allows."""
    return tuple(error.instance_path) == path and error.schema_path[-1] == "type"


_TYPE_NAMES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
"""The names of JSON's types by Python's; every other type is an object."""
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "greater than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}
"""How messages express the bounds of numbers, by keyword."""


def _plain_words(keyword: str, value: Any, rules: Mapping[str, Any], fallback: str) -> str:
    """The message for a value that violates the rule with this keyword; `fallback` for a rare keyword."""
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
    received = f"got {_TYPE_NAMES.get(type(value), 'object')} {_shown(value)}".rstrip()
    return f"expected {expected}, {received}{type_remedy(types, value)}"


def _too_short(value: Any, least: int, unit: str) -> str:
    if not value:
        return f"is empty; needs at least {least}"
    return f"has {len(value)} {unit}; needs at least {least}"


def type_remedy(types: str | list[str], value: Any) -> str:
    """What to do if YAML reads a scalar as another type than its author meant; empty if that is not the cause."""
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
