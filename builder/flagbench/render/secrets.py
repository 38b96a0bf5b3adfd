"""Secrets that a Dockerfile writes down: in a variable, an argument of a command or a file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flagbench.redaction import has_userinfo, is_secret, is_secret_name
from flagbench.render.dockerfile import Dockerfile, Instruction
from flagbench.render.shell import TALKS, Call

# What stands for a text that only the build knows. No credential begins with it.
_HOLE = "<>"
# `$(...)`, backticks, `$NAME`, `${NAME}`, `${NAME%x}`; not `${NAME:-text}`, which holds a text of its own.
_SUBSTITUTION = re.compile(r"\$\([^()]*\)|`[^`]*`|\$[A-Za-z_]\w*|\$\{[!#]?\w+(?::?[-=+](?:<>)?|(?!:?[-=+])[^{}]*)\}")
_PARENTHESES = re.compile(r"(?<=\()([^()$]*)\(([^()]*)\)")
_HEADER = re.compile(r":[ \t]*[\"']?(?:\w+[ \t]+)?<>")
# In a script of another language: `token=None`, `token=token`, `token = read(...)`.
_CODE = re.compile(r"(?<==)(?:None\b|null\b|[A-Za-z_][\w.]*[\[(])|\b(\w+)=\1\b")
_OPTION = re.compile(r"--?([A-Za-z][\w-]{2,})")
# `--password-file F` says where the secret is; `--key F` and `--auth KIND` mostly name something else.
_NO_VALUE = re.compile(r"(?:.*[-_])?(?:stdin|file|path|dir|fd|env|name|id|url|type|prompt)|key|auth", re.IGNORECASE)
_PATH = re.compile(r"[-@~]|\.{0,2}/")
_CURL_USER = re.compile(r"(?:-[A-Za-z#]*[uU]|--user=|--proxy-user=)(.*)")
_PASSWORD = re.compile(r"-p(.*)")


def no_secret_variable(dockerfile: Dockerfile) -> Iterator[tuple[int, str]]:
    """The value of an ENV is in the image, that of an ARG or a RUN in its history, for everyone who pulls it. Secrets
    come in by --mount=type=secret."""
    for instruction in dockerfile.instructions:
        yield from ((instruction.line, text) for text in _written(instruction))
    for instruction, call in dockerfile.calls():
        for name, value in call.assigned:
            if _is_literal(value) and (_shows(value) or (is_secret_name(name) and is_secret(name, value))):
                yield instruction.line, f"{name} looks like a secret"
        if any(map(_shows, call.words)) or any(map(_is_literal, _passwords(call))):
            yield instruction.line, f"an argument of {call.name} looks like a secret"


def _written(instruction: Instruction) -> Iterator[str]:
    """What is wrong with an instruction, its commands aside."""
    for name, value in instruction.assigned:
        text = re.sub(r"\\(.)", r"\1", value or "")
        # A build argument's value is kept as well, so a variable is no excuse for a secret's name.
        by_name = is_secret_name(name) and (value is None or is_secret(name, value))
        if by_name or _shows(text):
            yield f"{name} looks like a secret"
    for content in instruction.heredocs:
        if _shows(_CODE.sub(_HOLE, _hide(content))):
            yield "a heredoc looks as if it held a secret"
    if instruction.name in ("CMD", "ENTRYPOINT", "HEALTHCHECK") and _shows(instruction.text):
        yield f"{instruction.name} looks as if it held a secret"


def _passwords(call: Call) -> Iterator[str]:
    """The values of options that hold a secret by their name: `--token X`, `curl -u user:X`, `docker login -p X`."""
    if call.name in TALKS:
        return
    for word, value in zip(call.words, (*call.words, "")[1:], strict=True):
        option = _OPTION.fullmatch(word)
        named = option[1] if option else ""
        if named and is_secret_name(named) and not _NO_VALUE.fullmatch(named) and not _PATH.match(value):
            if is_secret(named, value):
                yield value
        elif call.name == "curl" and (word in ("--user", "--proxy-user") or _CURL_USER.fullmatch(word)):
            given = _CURL_USER.fullmatch(word)
            yield _hide(given[1] if given and given[1] else value).partition(":")[2]
        elif ("login" in call.words or call.name == "twine") and (given := _PASSWORD.fullmatch(word)):
            yield given[1] or value
    for before, name, value in zip(call.words, call.words[1:], call.words[2:], strict=False):
        if before == "set" and is_secret_name(name) and not _PATH.match(value) and is_secret(name, value):
            yield value


def _is_literal(value: str) -> bool:
    """Whether a value holds more than what the build puts there."""
    return bool(_hide(value).replace(_HOLE, "").strip("\"'"))


def _shows(text: str) -> bool:
    """Whether a text holds a credential; one in a URL is another rule's finding."""
    return not has_userinfo(text) and is_secret("", _hide(text))


def _hide(text: str) -> str:
    """The text with a hole in place of each substitution, and of each header that consists of one."""
    while (shorter := _SUBSTITUTION.sub(_HOLE, _PARENTHESES.sub(r"\1\2", text))) != text:
        text = shorter
    return re.sub(r"<>(?=\w)", "", _HEADER.sub("", re.sub(r"([\"'])(?:<>)+\1", _HOLE, text)))
