"""Reads Kubernetes documents strictly: anything ambiguous, or that a cluster would read differently, is an error."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from flagbench.errors import FlagbenchError
from flagbench.files import read_text, reason

_UNWANTED_TAGS = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"}


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses keys given twice, keys that are not strings, and aliases; dates stay strings."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (the base class has it so)
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _UNWANTED_TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="an alias is not supported; write out what it stands for", problem_mark=mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is not a string; put it in quotes", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"{key!r} is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_documents(path: Path) -> list[dict[str, Any]]:
    """The documents of a YAML or JSON file; `-` is standard input.

    Raises:
        FlagbenchError: (usage) it cannot be read, as `parse_documents` says.
    """
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise FlagbenchError(
            f"{path} cannot be read: {reason(error) if isinstance(error, OSError) else error}",
            remedy="name a file made by `flagbench job`",
        ) from None
    return parse_documents(text, "stdin" if str(path) == "-" else str(path))


def parse_documents(text: str, shown: str) -> list[dict[str, Any]]:
    """Every document in `text`, those inside a List one by one; `shown` names the text in errors.

    Raises:
        FlagbenchError: (usage) it is not YAML or JSON, a key is given twice, an alias is used, or there is a
            document that is not a mapping.
    """
    try:
        found = [item for document in _parse(text) for item in _items(document)]
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        fault = f"{line}: {error.problem or error}"
    except (yaml.YAMLError, ValueError) as error:
        fault = f": {' '.join(str(error).split())}"
    except RecursionError:
        fault = ": it is nested too deeply"
    else:
        if all(isinstance(item, dict) for item in found):
            return found
        fault = ": a document is not a mapping"
    raise FlagbenchError(f"{shown}{fault}", remedy="correct the file, or make a new one with `flagbench job`")


def _parse(text: str) -> Iterable[Any]:
    if text.lstrip().startswith("{"):
        # What is not JSON may be a mapping in YAML's flow style, which also begins with a brace.
        with suppress(json.JSONDecodeError):
            return [json.loads(text, object_pairs_hook=_unique)]
    return yaml.load_all(text, Loader=_Loader)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _items(document: Any) -> list[Any]:
    """The documents of a List, else the document itself; none of an empty one, as after a last `---`."""
    items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
    return items if isinstance(items, list) else [] if document is None else [document]
