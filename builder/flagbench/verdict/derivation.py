"""Derive the conditions of a run from its configuration, by the rules under `conditions` in its case's manifest.

A rule is a dotted path of the configuration, or a mapping with one of these keys:

  value: a constant                          one_of: the values that a run can have
  by: a path whose value chooses a rule      of: rules whose values are put into `text`
  product, difference, quotient: rules whose values are combined

A configuration comes from a record and may contain anything, so a condition that cannot be computed is UNKNOWN. The
functions that look up settings are used for other parts of a record, too.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from flagbench.manifests.fields import Scalar
from flagbench.manifests.model import Case
from flagbench_core.case_kinds import KINDS
from flagbench_core.config import stop_rule

Config = Mapping[str, Any]


class Unknown(Struct, frozen=True):
    """A value that does not follow from the configuration, which may still rule out some values."""

    excluded: tuple[Scalar, ...] = ()
    """Values that only another configuration gives: a data set read from files is not the synthetic one."""
    allowed: tuple[Scalar, ...] = ()
    """All values that a run can have; empty if any value is possible."""
    lacks: bool = False
    """Whether the configuration should have the setting that the value follows from, and does not."""

    def excludes(self, value: Scalar) -> bool:
        """Whether a condition cannot have this value."""
        return value in self.excluded or bool(self.allowed and value not in self.allowed)


UNKNOWN = Unknown(lacks=True)
"""The value of a setting that a configuration does not have."""
Value = Scalar | None | Unknown
"""The value of a condition."""


def look_up(config: Any, path: str) -> Any:
    """Return the value at a dotted path; UNKNOWN if it is absent."""
    for key in path.split("."):
        if not isinstance(config, Mapping) or key not in config:
            return UNKNOWN
        config = config[key]
    return config


def number(config: Any, path: str) -> int | float | None:
    """Return the number at a dotted path; None if it is absent or no number. A bool is not a number."""
    setting = look_up(config, path)
    if not isinstance(setting, int | float) or isinstance(setting, bool):
        return None
    return setting


def count(config: Any, path: str) -> int | None:
    """Return the positive integer at a dotted path; None if it is absent or another value."""
    setting = number(config, path)
    if not isinstance(setting, int) or setting <= 0:
        return None
    return setting


def schedule(config: Any) -> Config:
    """Return the section of a configuration that says how long a run is; an empty one if it is absent.

    It has the name of the kind of the case, such as `train`, and settings such as `window_steps`.
    """
    for name in KINDS:
        section = look_up(config, name)
        if isinstance(section, Mapping):
            return section
    return {}


def derived_conditions(case: Case, config: Config) -> dict[str, Value]:
    """Return the conditions that a configuration gives: those of the case's manifest, and some of every case."""
    conditions = {name: evaluate(rule, config) for name, rule in case.conditions.items()}
    conditions["stop_rule"] = _guarded(stop_rule, config)
    for name in ("seed", "division", "precision", "nodes"):
        conditions[name] = _scalar(look_up(config, name))
    nodes = count(config, "nodes")
    gpus = count(config, "gpus")
    conditions["devices"] = UNKNOWN
    if nodes is not None and gpus is not None:
        conditions["devices"] = nodes * gpus
    return conditions


def evaluate(rule: Any, config: Config) -> Value:
    """Return the value that a rule of a case's manifest gives for a configuration."""
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
            if numbers is None:
                return UNKNOWN
            return _scalar(_guarded(operation, *numbers))
    raise KeyError(f"no derivation in {rule}")


def _evaluate_text(rule: Mapping[str, Any], config: Config) -> Value:
    """Return `text` with the values of the rules in `of` in place of its `%` formats."""
    parts = _evaluate_all(rule["of"], config)
    if parts is None:
        return UNKNOWN
    return _scalar(_guarded(operator.mod, rule["text"], tuple(parts)))


def _evaluate_all(rules: Iterable[Any], config: Config) -> list[Value] | None:
    """Return the values of several rules; None if one of them is unknown."""
    values = [evaluate(rule, config) for rule in rules]
    if any(isinstance(value, Unknown) for value in values):
        return None
    return values


def _evaluate_choice(rule: Mapping[str, Any], config: Config) -> Value:
    """Return the value of one of the rules in `values`, chosen by the setting at the path `by`; else that of `else`.

    Without `else` the condition is unknown, but it is none of those that the rules in `values` give.
    """
    choices = rule["values"]
    setting = look_up(config, rule["by"])
    if isinstance(setting, Unknown):
        return UNKNOWN
    key = setting
    if not isinstance(setting, str):
        key = _guarded(json.dumps, setting)  # the keys of a manifest are strings: `true`, `8`
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


def _multiply(a: Any, b: Any) -> Any:
    """Return the product of two settings; UNKNOWN if one of them is a text."""
    if isinstance(a, str) or isinstance(b, str):  # Python would repeat the text
        return UNKNOWN
    return a * b


_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "product": _multiply,
    "difference": operator.sub,
    "quotient": operator.floordiv,
}
"""The operations of rules, by their key in the manifest."""


def _guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, and return its result; UNKNOWN if it fails on its arguments, which come from a record."""
    try:
        return function(*arguments)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
        return UNKNOWN


def _scalar(setting: Any) -> Value:
    """Return a setting that can be the value of a condition; UNKNOWN for a list or a mapping."""
    if setting is None or isinstance(setting, str | int | float | Unknown):
        return setting
    return UNKNOWN


def paths(rule: Any) -> Iterator[str]:
    """Yield every path of a configuration that a rule, or a mapping of several rules, looks at."""
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
    """Yield the settings of a configuration, each with its dotted path; an empty section counts as a setting."""
    if isinstance(value, Mapping) and (value or not path):
        for key, inner in value.items():
            yield from leaves(inner, (*path, str(key)))
    else:
        yield ".".join(path), value


def same(a: Any, b: Any) -> bool:
    """Whether two settings are equal: 1 equals 1.0, but true does not equal 1, and likewise inside lists."""
    if _is_list(a) and _is_list(b):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _is_list(setting: Any) -> bool:
    return isinstance(setting, Sequence) and not isinstance(setting, str)
