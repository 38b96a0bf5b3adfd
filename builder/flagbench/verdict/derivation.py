"""The conditions that follow from a record's configuration, as its case's manifest says under `conditions`.

A configuration comes from a record and may be anything: what cannot be computed from it is UNKNOWN.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from flagbench.manifests.fields import Scalar
from flagbench.manifests.model import Case
from flagbench_core.config import stop_rule
from flagbench_core.evidence.section import KINDS

Config = Mapping[str, Any]


class Unknown(Struct, frozen=True):
    """A value that does not follow from the configuration.

    `excluded` are those that would follow from another one: a data set read from files is not the synthetic one.
    `allowed`, if there are any, are all that a run can have.
    """

    excluded: tuple[Scalar, ...] = ()
    allowed: tuple[Scalar, ...] = ()
    lacks: bool = False
    """Whether the configuration should say it and does not."""

    def excludes(self, value: Scalar) -> bool:
        """Whether a condition cannot have this value."""
        return value in self.excluded or bool(self.allowed and value not in self.allowed)


UNKNOWN = Unknown(lacks=True)
Value = Scalar | None | Unknown


def look_up(config: Any, path: str) -> Any:
    """The value at a dotted path; UNKNOWN if it is absent."""
    for key in path.split("."):
        if not isinstance(config, Mapping) or key not in config:
            return UNKNOWN
        config = config[key]
    return config


def number(config: Any, path: str) -> int | float | None:
    """The number at a dotted path; None if it is absent. A bool is not a number."""
    found = look_up(config, path)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def count(config: Any, path: str) -> int | None:
    """The positive integer at a dotted path; None if it is absent."""
    found = number(config, path)
    return found if isinstance(found, int) and found > 0 else None


def schedule(config: Any) -> Config:
    """The section that says how long a run is, named as the kind of the case; empty if it is absent."""
    for name in KINDS:
        section = look_up(config, name)
        if isinstance(section, Mapping):
            return section
    return {}


def derived_conditions(case: Case, config: Config) -> dict[str, Value]:
    """The conditions that a configuration gives: those of the case's manifest, and those that all cases have."""
    found = {name: evaluate(rule, config) for name, rule in case.conditions.items()}
    found["stop_rule"] = _guarded(stop_rule, config)
    for name in ("seed", "division", "precision", "nodes"):
        found[name] = _scalar(look_up(config, name))
    nodes, gpus = count(config, "nodes"), count(config, "gpus")
    found["devices"] = nodes * gpus if nodes and gpus else UNKNOWN
    return found


def evaluate(rule: Any, config: Config) -> Value:
    """The value of one entry of `conditions` in a case's manifest."""
    if isinstance(rule, str):
        return _scalar(look_up(config, rule))
    if "value" in rule:
        value: Scalar = rule["value"]
        return value
    if "one_of" in rule:
        return Unknown(allowed=tuple(rule["one_of"]))
    if "by" in rule:
        return _chosen(rule, config)
    name, parts = next((key, rule[key]) for key in ("of", "product", "difference", "quotient") if key in rule)
    values = [evaluate(part, config) for part in parts]
    if any(isinstance(value, Unknown) for value in values):
        return UNKNOWN
    if name == "of":
        return _scalar(_guarded(lambda: str(rule["text"] % tuple(values))))
    return _scalar(_guarded(_ARITHMETIC[name], *values))


def _chosen(rule: Mapping[str, Any], config: Config) -> Value:
    """One of `values`, chosen by the value at the path `by`."""
    values = rule["values"]
    chosen = look_up(config, rule["by"])
    if isinstance(chosen, Unknown):
        return UNKNOWN
    key = chosen if isinstance(chosen, str) else _guarded(json.dumps, chosen)
    if key in values:
        return evaluate(values[key], config)
    if "else" in rule:
        return evaluate(rule["else"], config)
    others = (evaluate(value, config) for value in values.values())
    return Unknown(tuple(value for value in others if value is not None and not isinstance(value, Unknown)))


def _product(a: Any, b: Any) -> Any:
    return a * b if not isinstance(a, str) and not isinstance(b, str) else UNKNOWN


_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "product": _product,
    "difference": operator.sub,
    "quotient": operator.floordiv,
}


def _guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns; UNKNOWN if its arguments, which come from a record, are of no use to it."""
    try:
        return function(*arguments)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        return UNKNOWN


def _scalar(value: Any) -> Value:
    return value if value is None or isinstance(value, str | int | float | Unknown) else UNKNOWN


def paths(rule: Any) -> Iterator[str]:
    """Every path of a configuration that a derivation, or a mapping of several, looks at."""
    if isinstance(rule, str):
        yield rule
    elif isinstance(rule, Mapping):
        for key, inner in rule.items():
            if key not in ("value", "one_of", "text"):
                yield from paths(inner)
    elif isinstance(rule, list):
        for inner in rule:
            yield from paths(inner)


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The leaves of a configuration by dotted path; an empty section is a leaf."""
    if isinstance(value, Mapping) and (value or not path):
        for key, inner in value.items():
            yield from leaves(inner, (*path, str(key)))
    else:
        yield ".".join(path), value


def same(a: Any, b: Any) -> bool:
    """Equal values of a configuration: 1 is 1.0, but true is not 1; the same inside lists."""
    if isinstance(a, Sequence) and isinstance(b, Sequence) and not isinstance(a, str) and not isinstance(b, str):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)
