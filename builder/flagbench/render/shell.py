"""What a shell script calls: its simple commands with their words.

Parsed by tree-sitter's grammar of bash: shlex knows words alone, bashlex is under the GPL. A variable that the script
or the Dockerfile sets is replaced by its value; one that is not set stays as `$NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from posixpath import basename

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

_PARSER = Parser(Language(tree_sitter_bash.language()))
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
# What runs the command in its arguments; options and assignments may come between.
_WRAPPERS = frozenset(
    {"builtin", "busybox", "command", "env", "exec", "ionice", "nice", "nohup", "setsid"}
    | {"stdbuf", "sudo", "time", "timeout", "toybox", "xargs"}
)
TALKS = frozenset({"echo", "printf", "grep", "sed", "test", "["})
"""Commands whose words are texts, whatever they say."""
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_][A-Za-z0-9_]*)"
    r"|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:(?P<operator>:?[-+=])(?P<word>[^{}]*))?\})"
)
_DEFAULT = re.compile(r"\$\{(\w+):?[-=](.+)\}", re.DOTALL)
_COMMAND_OPTION = re.compile(r"-[A-Za-z]*c|--command")
# They start the shell of another user.
_USER_SHELLS = frozenset({"su", "runuser"})
_DEPTH = 5
"""How deep scripts may be nested, as in `sh -c "sh -c ..."`."""
_SUBSTITUTIONS = ("command_substitution", "process_substitution")
# Nodes whose assignments are read with them.
_ASSIGNING = ("command", "declaration_command")
_NO_WORDS = frozenset({"variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect", "comment"})


Variables = Mapping[str, str | None]
"""Values by name; None for a variable whose value is given later."""


@dataclass(frozen=True)
class Call:
    """One command."""

    words: tuple[str, ...]
    """The command and its arguments without quotes; of `sudo env A=1 pip install`, those from `pip` on."""
    assigned: tuple[tuple[str, str], ...] = ()
    """Names and values that it sets: `A=1`, `A=1 command`, `export A=1`, `${A:=1}`, `${A:-1}`."""
    reads: tuple[str, ...] = ()
    """The commands whose output is piped into it, by name."""

    @property
    def name(self) -> str:
        """The command without its folder; empty where it only assigns."""
        return basename(self.words[0]) if self.words else ""


def calls(script: str, variables: Variables) -> list[Call]:
    """The commands of a script in order, with those of `sh -c`, of `eval` and of heredocs that a shell reads.

    Args:
        variables: values that are known before it runs.
    """
    return list(_Script(variables).run(script))


def expand(text: str, variables: Variables) -> str:
    """A text with the variables that are known, as `$A`, `${A}`, `${A:-word}`, `${A-word}` or `${A:+word}`."""

    def value(match: re.Match[str]) -> str:
        known = variables.get(match["plain"] or match["name"])
        if not match["operator"]:
            return match[0] if known is None else known
        if match["operator"].endswith("+"):
            return match["word"] if known else ""
        return match["word"] if known is None else known

    return _VARIABLE.sub(value, text)


class _Script:
    """One pass over a script; assignments count from where they stand."""

    def __init__(self, variables: Variables, depth: int = 0) -> None:
        self.variables = dict(variables)
        self.depth = depth

    def run(self, script: str) -> Iterator[Call]:
        if self.depth <= _DEPTH:
            yield from self._walk(_PARSER.parse(script.encode()).root_node, ())

    def _nested(self) -> _Script:
        """What another shell does, which sees the variables and sets none."""
        return _Script(self.variables, self.depth + 1)

    def _walk(self, node: Node, reads: tuple[str, ...]) -> Iterator[Call]:
        """The commands in a node, those of substitutions first; `reads` is what is piped into them."""
        if node.type in _SUBSTITUTIONS:
            reads = ()
        for child in node.named_children:
            found = list(self._walk(child, reads))
            yield from found
            if node.type == "pipeline":
                reads = (*reads, *(call.name for call in found))
        if node.type == "command":
            call = self._command(node, reads)
            yield call
            yield from self._nested().run(_script_of(call))
        elif node.type == "declaration_command":
            yield self._declared(self._text(child) for child in node.named_children)
        elif node.type == "variable_assignment" and node.parent and node.parent.type not in _ASSIGNING:
            yield self._declared([self._text(node)])
        elif node.type == "expansion" and (default := _DEFAULT.fullmatch(_source(node))):
            yield Call((), ((default[1], expand(default[2], self.variables)),))
        elif node.type == "redirected_statement" and self._starts_shell(node.child_by_field_name("body")):
            parts = [part for redirect in node.named_children for part in redirect.named_children]
            for script in (_source(part) for part in parts if part.type == "heredoc_body"):
                yield from self._nested().run(script)

    def _starts_shell(self, node: Node | None) -> bool:
        return node is not None and any(call.name in SHELLS for call in self._nested()._walk(node, ()))

    def _command(self, node: Node, reads: tuple[str, ...]) -> Call:
        texts = [(child.type, self._text(child)) for child in node.named_children]
        words = [text for kind, text in texts if kind not in _NO_WORDS]
        assigned = [text for kind, text in texts if kind == "variable_assignment"]
        name = node.child_by_field_name("name")
        # An unquoted variable may hold several words.
        if words and name and "$" in _source(name):
            words = [*words[0].split(), *words[1:]]
        while words and basename(words[0]) in _WRAPPERS:
            words = words[1:]
            while words and (words[0].startswith("-") or words[0][:1].isdigit() or _ASSIGNMENT.fullmatch(words[0])):
                assigned.append(words.pop(0))
        return Call(tuple(words), _assignments(assigned), reads)

    def _declared(self, words: Iterable[str]) -> Call:
        """`A=1` or `export A=1 B=2`: what follows in the script sees it."""
        assigned = _assignments(words)
        self.variables.update(assigned)
        return Call((), assigned)

    def _text(self, node: Node) -> str:
        """A word as the command gets it."""
        if node.type == "raw_string":
            return _source(node)[1:-1]
        if node.type == "ansi_c_string":
            return _source(node)[2:-1]
        if node.type == "word":
            return re.sub(r"\\(.)", r"\1", _source(node), flags=re.DOTALL)
        if node.type in ("simple_expansion", "expansion"):
            return expand(_source(node), self.variables)
        if node.type in ("string", "concatenation", "command_name", "translated_string", "variable_assignment"):
            return "".join(self._text(child) for child in node.children if child.type != '"')
        return _source(node)


def _script_of(call: Call) -> str:
    """The script among the words of `find -exec sh -c SCRIPT`, `su -c SCRIPT` and `eval WORD...`; mostly empty."""
    if call.name == "eval":
        return " ".join(call.words[1:])
    shells = SHELLS | _USER_SHELLS if call.name in _USER_SHELLS else SHELLS
    words = iter(call.words if call.name not in TALKS else ())
    if any(basename(word) in shells for word in words):
        for word in words:
            if word.startswith("--command="):
                return word.partition("=")[2]
            if _COMMAND_OPTION.fullmatch(word):
                return next(words, "")
    return ""


def _assignments(words: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Names and values of the words that are assignments."""
    return tuple((match[1], match[2]) for word in words if (match := _ASSIGNMENT.fullmatch(word)))


def _source(node: Node) -> str:
    return (node.text or b"").decode()
