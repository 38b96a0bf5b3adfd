"""The documents of manifests: the data of a file, and its problems, each with the line of the field.

To read YAML and to check it against its type is slow, and lines are needed only where there is a problem. So the data
of a file without problems is kept in the user's cache under the digest of the file's bytes, and the file is parsed
again where a line is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from flagbench import schema
from flagbench.errors import FlagbenchError
from flagbench.schema import FieldPath, field_name, nearest, violations
from flagbench.system.files import TEXT_BYTES, read_input, write_atomically
from flagbench.system.user_folders import cache_folder
from flagbench_core.exit_codes import ExitCode

_MOST_SHOWN = 20
"""Most problems that an error message lists, about a screenful; of the others it gives the number."""


@dataclass(frozen=True)
class Problem:
    """One problem of a manifest."""

    file: str
    """The path of the file as a user would type it."""
    line: int
    """The line in the file, from 1."""
    path: FieldPath
    """The keys and indexes that lead to the field in the document."""
    message: str

    def __str__(self) -> str:
        location = f"{self.file}:{self.line}"
        name = field_name(self.path)
        if not name:
            return f"{location}: {self.message}"
        return f"{location}: {name}: {self.message}"


class ManifestError(FlagbenchError):
    """Manifests cannot be used; the message lists the problems that were found in them."""

    def __init__(self, problems: Sequence[Problem], *, code: ExitCode = ExitCode.USAGE) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.file, problem.line)))
        lines = [str(problem) for problem in self.problems[:_MOST_SHOWN]]
        if len(self.problems) > _MOST_SHOWN:
            lines.append(f"... and {len(self.problems) - _MOST_SHOWN} more")
        if len(self.problems) > 1:
            lines.insert(0, f"the manifests have {len(self.problems)} problems:")
        remedy = "correct these lines and run the command again"
        if len(self.problems) == 1:
            remedy = "correct that line and run the command again"
        super().__init__("\n  ".join(lines), remedy=remedy, code=code)


@dataclass
class Document:
    """One YAML file: its text, its data as JSON types, and its problems."""

    path: Path
    title: str
    """The file's name in messages."""
    text: str = ""
    """The text of the file; empty if it cannot be read."""
    data: Any = None
    """The content as JSON types; incomplete if there are problems."""
    problems: list[Problem] = field(default_factory=list)

    @cached_property
    def lines(self) -> dict[FieldPath, int]:
        """The line (from 1) of each field, by path.

        `read_document` sets it if it parses the file. If the data came from the cache, the first use parses the file.
        """
        from flagbench.manifests.yaml_reader import parse_yaml  # slow to import, and rarely needed

        return parse_yaml(self.text).lines

    def line(self, path: FieldPath) -> int:
        """Find the line (from 1) of a field, or of the innermost section around it that exists."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def add_problem(self, path: FieldPath, message: str, line: int | None = None) -> None:
        """Add a problem of the field at `path`."""
        self.problems.append(Problem(self.title, line or self.line(path), path, message))

    def find_names(self, pattern: str) -> Iterator[tuple[FieldPath, str]]:
        """Find the names at the places that a pattern such as `metrics.*.held_by` selects, each with its path.

        A place gives one name if it has a value, the items of a list, or the keys of a mapping.
        """
        return _find_names(self.data, pattern.split("."), ())

    def require_known(self, pattern: str, kind: str, names: Collection[str]) -> None:
        """Add a problem for each name at `pattern` that is not in `names`; `kind` says what the name is of.

        The message suggests the nearest of `names`, or lists all of them if none is near.
        """
        for path, name in self.find_names(pattern):
            if name in names:
                continue
            hint = f"known: {', '.join(sorted(names)) or 'none'}"
            close = nearest(name, names)
            if close is not None:
                hint = f"did you mean '{close}'?"
            self.add_problem(path, f"unknown {kind} '{name}'; {hint}")

    def require_unique(self, pattern: str, kind: str, first_uses: dict[str, FirstUse] | None = None) -> None:
        """Add a problem for each name at `pattern` that occurs twice; `kind` says what the name is of.

        Args:
            first_uses: the names in files that were checked before; those of this file are added.
        """
        if first_uses is None:
            first_uses = {}
        for path, name in self.find_names(pattern):
            if name not in first_uses:
                first_uses[name] = FirstUse(self, path)
                continue
            first = first_uses[name]
            place = f"{first.document.title}:{first.document.line(first.path)}"
            self.add_problem(path, f"'{name}' is already a {kind} in {place}")


class FirstUse(NamedTuple):
    """The field in which a name that must be unique was first given. Its line is found when a message needs it."""

    document: Document
    path: FieldPath


def _find_names(node: Any, pattern: Sequence[str], path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    """Find the names that a pattern selects below `node`, which is at `path`."""
    if pattern:
        for step, inner in _children(node):
            if pattern[0] in ("*", str(step)):
                yield from _find_names(inner, pattern[1:], (*path, step))
    elif isinstance(node, dict):
        for key in node:
            yield (*path, key), key
    elif isinstance(node, list):
        for index, name in enumerate(node):
            yield (*path, index), name
    elif node is not None:
        yield path, node


def _children(node: Any) -> Iterable[tuple[Any, Any]]:
    """The keys and values of a mapping, or the indexes and items of a list; nothing for any other value."""
    if isinstance(node, dict):
        return node.items()
    if isinstance(node, list):
        return enumerate(node)
    return ()


def read_document(path: Path, title: str, model: type) -> Document:
    """Read one YAML file, which messages call `title`, and check it against the type of its manifest.

    If it cannot be read, or is not valid, it has problems.
    """
    document = Document(path, title)
    try:
        content = read_input(path, TEXT_BYTES)
        document.text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        document.add_problem((), f"not valid UTF-8: byte 0x{content[error.start]:02x}", line)
        return document
    except (OSError, ValueError) as error:
        document.add_problem((), f"cannot be read: {error}", 1)
        return document
    cached = _cached_path(content, model)
    document.data = _read_cached(cached)
    if document.data is not None:
        return document
    _parse(document)
    if document.problems:
        return document
    for field_path, message in violations(model, document.data):
        document.add_problem(field_path, message)
    if not document.problems:
        _write_cached(cached, document.data)
    return document


def _parse(document: Document) -> None:
    """Set the data, the lines and the problems of a document from its text."""
    from flagbench.manifests.yaml_reader import parse_yaml  # slow to import, and rarely needed

    parsed = parse_yaml(document.text)
    document.data = parsed.data
    document.lines = parsed.lines
    for fault in parsed.faults:
        document.add_problem(fault.path, fault.message, fault.line)


def _cached_path(content: bytes, model: type) -> Path | None:
    """The path in the cache of a manifest's data, named by its bytes, its type, and the code that checks it.

    None for a user without a folder for caches.
    """
    digest = sha256(_code_digest())
    digest.update(model.__name__.encode())
    digest.update(content)
    with suppress(FlagbenchError):
        return cache_folder() / "manifests" / f"{digest.hexdigest()}.json"
    return None


@cache
def _code_digest() -> bytes:
    """The digest of the code that reads and checks manifests, with their types: what other code accepted is stale."""
    digest = sha256()
    for path in (Path(schema.__file__), *sorted(Path(__file__).parent.glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.digest()


def _read_cached(path: Path | None) -> Any:
    """The data of a valid manifest, which is never null; None if it is not in the cache, or damaged there."""
    if path is None:
        return None
    with suppress(OSError, ValueError):
        return json.loads(path.read_bytes())
    return None


def _write_cached(path: Path | None, data: Any) -> None:
    """Keep the data of a valid manifest. A cache that cannot be written costs time and nothing else."""
    if path is None:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(data).encode())
