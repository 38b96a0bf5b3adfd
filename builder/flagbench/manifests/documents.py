"""Manifest files read strictly, with the line of every field, so that each problem is named by file and line.

Stricter than a safe loader: a key given twice is an error (loaders keep the last one silently), and so
is a value that JSON does not have, because manifests are compiled to JSON for the image side. Aliases are errors too:
a few nested ones make a small file endless.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flagbench.errors import FlagbenchError
from flagbench.schema import FieldPath, field_name, nearest
from flagbench.system.files import read_text
from flagbench_core.exit_codes import ExitCode

_SHOWN = 20
"""Problems an error message lists; the rest are counted."""

# libyaml's parser is about ten times as fast; wheels have it, a build from source may not.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 1000
_BRACKETS = re.compile(r"[\[\]{}]")
_INDENTED = re.compile(rf"^[ ?-]{{{_DEEPEST},}}", re.MULTILINE)
_MERGE_TAG = "tag:yaml.org,2002:merge"
_STRING_TAG = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class Problem:
    """One fault of a manifest. `line` counts from 1; `file` is the path as a user would type it."""

    file: str
    line: int
    path: FieldPath
    message: str

    def __str__(self) -> str:
        location = f"{self.file}:{self.line}"
        field = field_name(self.path)
        if not field:
            return f"{location}: {self.message}"
        return f"{location}: {field}: {self.message}"


class ManifestError(FlagbenchError):
    """Manifests that cannot be used, with every problem found in them."""

    def __init__(self, problems: Sequence[Problem], *, code: ExitCode = ExitCode.USAGE) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.file, problem.line)))
        lines = [str(problem) for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"... and {len(self.problems) - _SHOWN} more")
        if len(self.problems) > 1:
            lines.insert(0, f"the manifests have {len(self.problems)} problems:")
        remedy = "correct these lines and run the command again"
        if len(self.problems) == 1:
            remedy = "correct that line and run the command again"
        super().__init__("\n  ".join(lines), remedy=remedy, code=code)


@dataclass
class Document:
    """One YAML file: its data as JSON types, the line of each field, and its problems."""

    path: Path
    title: str
    """The file's name in messages."""
    data: Any = None
    lines: dict[FieldPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: FieldPath) -> int:
        """The line (from 1) of a field, or of the nearest section around it that exists."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def problem(self, path: FieldPath, message: str, line: int | None = None) -> None:
        """Note that the field at `path` is wrong."""
        self.problems.append(Problem(self.title, line or self.line(path), path, message))

    def names(self, pattern: str) -> Iterator[tuple[FieldPath, str]]:
        """The names at `metrics.*.held_by` by path: a value, the items of a list, the keys of a mapping."""
        return _names(self.data, pattern.split("."), ())

    def require_known(self, pattern: str, kind: str, names: Collection[str]) -> None:
        """Note each name at `pattern` that is not in `names`, with the nearest of these, or all if none is near."""
        for path, name in self.names(pattern):
            if name in names:
                continue
            hint = f"known: {', '.join(sorted(names)) or 'none'}"
            close = nearest(name, names)
            if close is not None:
                hint = f"did you mean '{close}'?"
            self.problem(path, f"unknown {kind} '{name}'; {hint}")

    def require_unique(self, pattern: str, kind: str, first: dict[str, str] | None = None) -> None:
        """Note each name at `pattern` that occurs twice; `first` has the places of names in files read before."""
        if first is None:
            first = {}
        for path, name in self.names(pattern):
            if name in first:
                self.problem(path, f"'{name}' is already a {kind} in {first[name]}")
            first.setdefault(name, f"{self.title}:{self.line(path)}")


def _names(node: Any, pattern: Sequence[str], path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    """The names below `node`, which is at `path`, that the rest of a pattern selects."""
    if pattern:
        for step, inner in _children(node):
            if pattern[0] in ("*", str(step)):
                yield from _names(inner, pattern[1:], (*path, step))
    elif isinstance(node, dict):
        for key in node:
            yield (*path, key), key
    elif isinstance(node, list):
        for index, name in enumerate(node):
            yield (*path, index), name
    elif node is not None:
        yield path, node


def _children(node: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and values of a mapping, indexes and items of a list; none of anything else."""
    if isinstance(node, dict):
        return node.items()
    if isinstance(node, list):
        return enumerate(node)
    return ()


def read_document(path: Path, title: str) -> Document:
    """Read one YAML file, which messages call `title`. If it has `problems`, its `data` is incomplete."""
    document = Document(path, title)
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        document.problem((), f"cannot be read: {error}")
        return document
    if _nested_too_deeply(text):
        document.problem((), "it is nested too deeply")
        return document
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            document.problem((), "the file is empty")
        else:
            document.data = _Reader(document, loader).value(node, ())
    except yaml.MarkedYAMLError as error:
        line = 1
        if error.problem_mark:
            line = error.problem_mark.line + 1
        document.problem((), f"not valid YAML: {error.problem or 'cannot be parsed'}", line)
    except yaml.YAMLError as error:
        document.problem((), f"not valid YAML: {' '.join(str(error).split())}")
    except RecursionError:
        document.problem((), "it is nested too deeply")
    finally:
        loader.dispose()
    return document


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
    """Turns composed nodes into plain data, noting lines and problems on the way."""

    def __init__(self, document: Document, loader: Any) -> None:
        self._document = document
        self._loader = loader
        self._read: set[int] = set()
        """The ids of the nodes read so far: one that comes again is what an alias refers to."""

    def value(self, node: yaml.Node, path: FieldPath) -> Any:
        # The line of a mapping's value was noted with its key; list items and the document have only their own.
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._read:
            self._document.problem(path, "aliases (*) are not supported; write the value out")
            return None
        self._read.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return [self.value(inner, (*path, index)) for index, inner in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        document = self._document
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE_TAG:
                document.problem(path, "merge keys (<<) are not supported; write the fields out", line)
                continue
            key = self._plain(key_node)
            field_path = (*path, key)
            if not isinstance(key, str):
                document.problem(path, f"the key {key!r} is not a string; put it in quotes", line)
            elif key in mapping:
                first = document.lines[field_path]
                document.problem(field_path, f"given twice, first in line {first}; remove one", line)
            else:
                document.lines[field_path] = line
                mapping[key] = self.value(value_node, field_path)
        return mapping

    def _scalar(self, node: yaml.ScalarNode, path: FieldPath) -> Any:
        try:
            value = self._plain(node)
        except (yaml.constructor.ConstructorError, ValueError) as error:
            reason = getattr(error, "problem", None) or str(error)
            self._document.problem(path, f"{node.value!r} cannot be read: {reason}")
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self._document.problem(path, f"{node.value!r} is not a finite number")
        elif value is not None and not isinstance(value, (str, int, float, bool)):
            kind = type(value).__name__
            self._document.problem(path, f"{node.value!r} reads as a {kind}; put it in quotes")
            return None
        return value

    def _plain(self, node: yaml.Node) -> Any:
        # Most nodes are strings already, and constructing them is half of the cost of reading a manifest.
        if node.tag == _STRING_TAG:
            return node.value
        return self._loader.construct_object(node, deep=True)
