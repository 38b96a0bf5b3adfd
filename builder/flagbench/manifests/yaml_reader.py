"""YAML read strictly, with the line of every field.

Stricter than a safe loader: a key given twice is an error (loaders keep the last one silently), and so is a value
that JSON does not have, because manifests are compiled to JSON for the image side. Aliases are errors too: a few
nested ones make a small file endless.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from flagbench.schema import FieldPath

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser is about ten times as fast; wheels have it, a build from source may not."""
_DEEPEST = 1000
"""Levels of nesting above which a file is refused: libyaml's parser recurses in C and would crash far above it."""
_BRACKETS = re.compile(r"[\[\]{}]")
_INDENTED = re.compile(rf"^[ ?-]{{{_DEEPEST},}}", re.MULTILINE)
_MERGE_TAG = "tag:yaml.org,2002:merge"
_STRING_TAG = "tag:yaml.org,2002:str"


class Fault(NamedTuple):
    """What is wrong with the field at `path`, and the line (from 1) to name."""

    path: FieldPath
    message: str
    line: int


@dataclass
class ParsedYaml:
    """The data of a document as JSON types, the line (from 1) of each field, and what is wrong with it."""

    data: Any = None
    lines: dict[FieldPath, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def add_fault(self, path: FieldPath, message: str, line: int | None = None) -> None:
        """Note what is wrong with the field at `path`, by default in the line noted for it."""
        if line is None:
            line = self.lines.get(path, 1)
        self.faults.append(Fault(path, message, line))


def parse_yaml(text: str) -> ParsedYaml:
    """Parse one document. If it has `faults`, its `data` is incomplete."""
    parsed = ParsedYaml()
    if _nested_too_deeply(text):
        parsed.add_fault((), "it is nested too deeply")
        return parsed
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            parsed.add_fault((), "the file is empty")
        else:
            parsed.data = _Reader(parsed, loader).value(node, ())
    except yaml.MarkedYAMLError as error:
        line = 1
        if error.problem_mark:
            line = error.problem_mark.line + 1
        parsed.add_fault((), f"not valid YAML: {error.problem or 'cannot be parsed'}", line)
    except yaml.YAMLError as error:
        parsed.add_fault((), f"not valid YAML: {' '.join(str(error).split())}", 1)
    except RecursionError:
        parsed.add_fault((), "it is nested too deeply")
    finally:
        loader.dispose()
    return parsed


def _nested_too_deeply(text: str) -> bool:
    """Whether a document may be nested so deeply that libyaml's parser, which recurses in C, would crash.

    Brackets in texts count too, so the limit is far above what a manifest needs.
    """
    depth = 0
    for bracket in _BRACKETS.findall(text):
        depth += 1 if bracket in "[{" else -1
        if depth > _DEEPEST:
            return True
    return _INDENTED.search(text) is not None


class _Reader:
    """Turns composed nodes into plain data, noting lines and faults on the way."""

    def __init__(self, parsed: ParsedYaml, loader: Any) -> None:
        self._parsed = parsed
        self._loader = loader
        self._read: set[int] = set()
        """The ids of the nodes read so far: one that comes again is what an alias refers to."""

    def value(self, node: yaml.Node, path: FieldPath) -> Any:
        # The line of a mapping's value was noted with its key; list items and the document have only their own.
        self._parsed.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._read:
            self._parsed.add_fault(path, "aliases (*) are not supported; write the value out")
            return None
        self._read.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return [self.value(inner, (*path, index)) for index, inner in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        parsed = self._parsed
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE_TAG:
                parsed.add_fault(path, "merge keys (<<) are not supported; write the fields out", line)
                continue
            key = self._plain(key_node)
            field_path = (*path, key)
            if not isinstance(key, str):
                parsed.add_fault(path, f"the key {key!r} is not a string; put it in quotes", line)
            elif key in mapping:
                first = parsed.lines[field_path]
                parsed.add_fault(field_path, f"given twice, first in line {first}; remove one", line)
            else:
                parsed.lines[field_path] = line
                mapping[key] = self.value(value_node, field_path)
        return mapping

    def _scalar(self, node: yaml.ScalarNode, path: FieldPath) -> Any:
        try:
            value = self._plain(node)
        except (yaml.constructor.ConstructorError, ValueError) as error:
            reason = getattr(error, "problem", None) or str(error)
            self._parsed.add_fault(path, f"{node.value!r} cannot be read: {reason}")
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self._parsed.add_fault(path, f"{node.value!r} is not a finite number")
        elif value is not None and not isinstance(value, (str, int, float, bool)):
            kind = type(value).__name__
            self._parsed.add_fault(path, f"{node.value!r} reads as a {kind}; put it in quotes")
            return None
        return value

    def _plain(self, node: yaml.Node) -> Any:
        # Most nodes are strings already, and constructing them is half of the cost of reading a manifest.
        if node.tag == _STRING_TAG:
            return node.value
        return self._loader.construct_object(node, deep=True)
