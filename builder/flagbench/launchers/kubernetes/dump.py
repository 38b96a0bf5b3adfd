"""YAML that every parser reads back as the same values.

PyYAML leaves strings unquoted that are strings in YAML 1.1 and something else to other parsers (`1e3`, `y`, `0o17`;
kubectl has another parser). Here a string is unquoted only where no parser takes it for anything else.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from flagbench._version import __version__

_BARE = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})


class _Dumper(yaml.SafeDumper):
    """Block style, items of a list indented, nothing folded, no aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    bare = _BARE.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if bare else '"')


_Dumper.add_representer(str, _string)


def dump_documents(documents: Iterable[Any], header: Iterable[str] = ()) -> str:
    """The documents, each after a `---`, below comment lines; pure ASCII, keys in the order given.

    A header line is escaped: a line break in it, also one that only YAML knows, would end the comment.
    """
    comments = "".join(f"# {_comment(line)}".rstrip() + "\n" for line in header)
    texts = [
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=2**31)
        for document in documents
    ]
    return comments + "".join(f"---\n{text}" for text in texts)


def job_header(command: Sequence[str], image: str, name: str) -> list[str]:
    """The comment above a job: the command that makes it again, its image, and how to remove it."""
    pinned = "by digest" if "@" in image else "by tag: --image NAME@sha256:DIGEST pins it"
    return [
        f"Made by flagbench {__version__}:",
        f"  {shlex.join(command)}",
        f"Image: {image} ({pinned})",
        f"Start: kubectl apply -f FILE     Remove: kubectl delete job,service {name}",
    ]


def _comment(line: str) -> str:
    # As str.isprintable() has it: tabs, breaks and anything beyond ASCII are shown, not meant.
    return "".join(c if c.isascii() and c.isprintable() else c.encode("unicode_escape").decode() for c in line)
