"""The conditions that follow from a record's configuration, as its case's manifest says under `conditions`.

A configuration comes from a record and may be anything: what cannot be computed from it is UNKNOWN.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    setting = look_up(config, path)
    if not isinstance(setting, int | float) or isinstance(setting, bool):
        return None
    return setting


def count(config: Any, path: str) -> int | None:
    """The positive integer at a dotted path; None if it is absent."""
    setting = number(config, path)
    if not isinstance(setting, int) or setting <= 0:
        return None
    return setting


def schedule(config: Any) -> Config:
    """The section that says how long a run is, named as the kind of the case; empty if it is absent."""
    for name in KINDS:
        section = look_up(config, name)
        if isinstance(section, Mapping):
            return section
    return {}


def derived_conditions(case: Case, config: Config) -> dict[str, Value]:
    """The conditions that a configuration gives: those of the case's manifest, and those that all cases have."""
    conditions = {name: evaluate(rule, config) for name, rule in case.conditions.items()}
    conditions["stop_rule"] = _guarded(stop_rule, config)
    for name in ("seed", "division", "precision", "nodes"):
        conditions[name] = _scalar(look_up(config, name))
    nodes, gpus = count(config, "nodes"), count(config, "gpus")
    conditions["devices"] = UNKNOWN
    if nodes is not None and gpus is not None:
        conditions["devices"] = nodes * gpus
    return conditions


def evaluate(rule: Any, config: Config) -> Value:
    """The value of one rule of `conditions` in a case's manifest."""
    if isinstance(rule, str):
        return _scalar(look_up(config, rule))
    if "value" in rule:
        constant: Scalar = rule["value"]
        return constant
    if "one_of" in rule:
        return Unknown(allowed=tuple(rule["one_of"]))
    if "by" in rule:
        return _evaluate_choice(rule, config)
    if "of" in rule:
        return _evaluate_text(rule, config)
    for name, operation in _ARITHMETIC.items():
        if name in rule:
            numbers = _evaluate_all(rule[name], config)
            return UNKNOWN if numbers is None else _scalar(_guarded(operation, *numbers))
    raise KeyError(f"no derivation in {rule}")


def _evaluate_text(rule: Mapping[str, Any], config: Config) -> Value:
    """`text`, a format, with the values of the parts in `of`."""
    parts = _evaluate_all(rule["of"], config)
    if parts is None:
        return UNKNOWN
    return _scalar(_guarded(lambda: str(rule["text"] % tuple(parts))))


def _evaluate_all(rules: Iterable[Any], config: Config) -> list[Value] | None:
    """The values of several rules; None if one of them is unknown."""
    values = [evaluate(rule, config) for rule in rules]
    if any(isinstance(value, Unknown) for value in values):
        return None
    return values


def _evaluate_choice(rule: Mapping[str, Any], config: Config) -> Value:
    """One of `values`, chosen by the value at the path `by`."""
    choices = rule["values"]
    setting = look_up(config, rule["by"])
    if isinstance(setting, Unknown):
        return UNKNOWN
    key = setting if isinstance(setting, str) else _guarded(json.dumps, setting)
    if key in choices:
        return evaluate(choices[key], config)
    if "else" in rule:
        return evaluate(rule["else"], config)
    excluded = []
    for choice in choices.values():
        condition = evaluate(choice, config)
        if condition is not None and not isinstance(condition, Unknown):
            excluded.append(condition)
    return Unknown(tuple(excluded))


def _product(a: Any, b: Any) -> Any:
    if isinstance(a, str) or isinstance(b, str):  # Python would repeat the text
        return UNKNOWN
    return a * b


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


def _scalar(setting: Any) -> Value:
    if setting is None or isinstance(setting, str | int | float | Unknown):
        return setting
    return UNKNOWN


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
    if _is_list(a) and _is_list(b):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _is_list(setting: Any) -> bool:
    return isinstance(setting, Sequence) and not isinstance(setting, str)
