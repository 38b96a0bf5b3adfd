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
    {
        "builtin",
        "busybox",
        "command",
        "env",
        "exec",
        "ionice",
        "nice",
        "nohup",
        "setsid",
        "stdbuf",
        "sudo",
        "time",
        "timeout",
    }
    | {"toybox", "xargs"}
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


def calls(script: str, variables: Mapping[str, str]) -> list[Call]:
    """The commands of a script in order, with those of `sh -c`, of `eval` and of heredocs that a shell reads.

    Args:
        variables: values that are known before it runs.
    """
    return list(_Script(dict(variables)).run(script))


def expand(text: str, variables: Mapping[str, str]) -> str:
    """A text with the variables that are known, as `$A`, `${A}`, `${A:-word}`, `${A-word}` or `${A:+word}`."""

    def value(match: re.Match[str]) -> str:
        name, operator, word = match["plain"] or match["name"], match["operator"], match["word"] or ""
        if operator and operator.endswith("+"):
            return word if variables.get(name) else ""
        return variables.get(name, word if operator else match[0])

    return _VARIABLE.sub(value, text)


class _Script:
    """One pass over a script; assignments count from where they stand."""

    def __init__(self, variables: dict[str, str], depth: int = 0) -> None:
        self.variables = variables
        self.depth = depth

    def run(self, script: str) -> Iterator[Call]:
        if self.depth <= _DEPTH:
            yield from self._walk(_PARSER.parse(script.encode()).root_node, ())

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
            yield from self._command(node, reads)
        elif node.type == "declaration_command":
            yield self._declared(self._text(child) for child in node.named_children)
        elif node.type == "variable_assignment" and node.parent and node.parent.type not in _ASSIGNING:
            yield self._declared([self._text(node)])
        elif node.type == "expansion" and (default := _DEFAULT.fullmatch(_source(node))):
            yield Call((), ((default[1], expand(default[2], self.variables)),))
        elif node.type == "redirected_statement":
            yield from self._heredocs(node)

    def _command(self, node: Node, reads: tuple[str, ...]) -> Iterator[Call]:
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
                assigned.append(words[0])
                words = words[1:]
        call = Call(tuple(words), _assignments(assigned), reads)
        yield call
        yield from self._inner(call)

    def _declared(self, words: Iterable[str]) -> Call:
        """`A=1` or `export A=1 B=2`: what follows in the script sees it."""
        assigned = _assignments(words)
        self.variables.update(assigned)
        return Call((), assigned)

    def _inner(self, call: Call) -> Iterator[Call]:
        """The script among the words of `find -exec sh -c SCRIPT`, `su -c SCRIPT` and `eval WORD...`."""
        inner = _Script(dict(self.variables), self.depth + 1)
        if call.name == "eval":
            yield from inner.run(" ".join(call.words[1:]))
        elif call.name not in TALKS:
            shells = SHELLS if call.name not in _USER_SHELLS else SHELLS | _USER_SHELLS
            words = iter(call.words)
            for word in words:
                if basename(word) in shells:
                    break
            for word in words:
                if word.startswith("--command="):
                    yield from inner.run(word.partition("=")[2])
                    return
                if _COMMAND_OPTION.fullmatch(word):
                    yield from inner.run(next(words, ""))
                    return

    def _heredocs(self, node: Node) -> Iterator[Call]:
        """The scripts that a shell reads as its input."""
        body = node.child_by_field_name("body")
        inner = _Script(dict(self.variables), self.depth + 1)
        if body is None or not {call.name for call in inner._walk(body, ())} & SHELLS:
            return
        for redirect in node.named_children:
            for part in redirect.named_children:
                if part.type == "heredoc_body":
                    yield from inner.run(_source(part))

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


def _assignments(words: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Names and values of the words that are assignments."""
    return tuple((match[1], match[2]) for word in words if (match := _ASSIGNMENT.fullmatch(word)))


def _source(node: Node) -> str:
    return (node.text or b"").decode()
