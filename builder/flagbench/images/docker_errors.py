"""Errors of builds and of the engine, and the patterns that recognise their causes in docker's output.

A cause that has a remedy of its own is recognised by an `ErrorPattern`. Any other is reported in docker's own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flagbench.errors import FlagbenchError
from flagbench_core.exit_codes import ExitCode

_STEP = r"^(?:#\d+ )?(?:\d+\.\d+ )?"
"""The beginning of a line that a step of a build prints: BuildKit puts the step's number and the time before it."""
_DENIED = (
    r"(?i)unauthorized|authentication required|access denied|access forbidden|no basic auth|insufficient_scope"
    r"|authorization failed|status(?: code)?:? 40[13]|toomanyrequests"
)
"""How registries refuse access, in the words of the client, of containerd and of BuildKit."""
_OTHER_BASE_REMEDY = (
    "check its name and the engine's network and proxy, or load the image from a file (`docker load`) and name it "
    "with --base"
)
_HINTS = ("View build details", "See 'docker")
"""The beginnings of lines that the client may print after its reason."""


class BuildFailed(FlagbenchError):
    """An image could not be built or pulled."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.BUILD_FAILED)


class EngineError(FlagbenchError):
    """The engine or its client is missing or too old, may not be used, stopped, or refused a request."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.ENGINE)


class ErrorPattern(NamedTuple):
    """A cause of errors, and the pattern that recognises it in a command's output."""

    pattern: str
    """A regular expression; ^ and $ match at every line."""
    cause: str
    """The cause as an error reports it. Fields in braces are the pattern's groups, and the words that `match_pattern`
    is given."""
    remedy: str
    """The remedy for a person, with the same fields."""


_DISK = ErrorPattern(
    r"(?i)no space left on device|not enough free space|disk quota exceeded",
    "the disk of the engine is full",
    "free some space: `docker system df` shows what takes it, `docker builder prune` drops unused build cache",
)
_PRIVATE = ErrorPattern(
    _DENIED,
    "the registry does not let you pull the base: {reason}",
    "log in with `docker login`, or name another image with --base",
)
_OTHER_PLATFORM = ErrorPattern(
    r"no match(?:ing manifest)? for (?:platform|\S+/\S+) in (?:the )?manifest",
    "the base is an index of images without one for the stack's platform: {reason}",
    "lock the digest of an image for that platform (`flagbench lock STACK --base-digest`), or name another base with "
    "--base",
)

BUILD = (
    _DISK,
    ErrorPattern(
        _STEP + r"flagbench: (?!taken from)(?P<what>.+)$",
        "{what}",
        "check that --base is the stack's base; what an install must not replace is named under from_base in the "
        "stack's manifest (then `flagbench lock`)",
    ),
    ErrorPattern(
        r"(?i)CERTIFICATE_VERIFY_FAILED|certificate verif(?:y|ication) failed|SSL certificate prob",
        "a server's certificate is not trusted inside the image, so packages could not be fetched",
        "name the certificates of your network with --ca-bundle, on Debian /etc/ssl/certs/ca-certificates.crt",
    ),
    ErrorPattern(
        r"THESE PACKAGES DO NOT MATCH THE HASHES.*\n" + _STEP + r"\s*(?P<package>\S+)",
        "{package} is not the file that the stack's lock names: its hash differs",
        "take it from the index it was locked from, or look into the change and lock the stack with `flagbench lock`",
    ),
    ErrorPattern(
        _STEP + r"E: (?P<what>.+)$",
        "apt failed: {what}",
        "name a mirror that is reachable and complete with --apt-source, or set HTTP_PROXY",
    ),
    ErrorPattern(
        r"No matching distribution found for (?P<package>\S+)",
        "pip found no file of {package} for the image's Python and platform",
        "name a package index that is reachable and has it with --pip-source (or set HTTPS_PROXY), or a folder that "
        "has it with --wheelhouse",
    ),
    _OTHER_PLATFORM,
    _PRIVATE,
    ErrorPattern(
        r"^ > \[[^\]]+\] (?:load metadata for|FROM) (?P<base>\S+):$",
        "the base {base} cannot be pulled: {reason}",
        _OTHER_BASE_REMEDY,
    ),
    ErrorPattern(
        "", "{reason}", "see the step's output; `flagbench render` writes the Dockerfile and all that it copies"
    ),
)
"""The causes of errors of `docker build`. The first pattern that matches counts, here, in PULL and in PUSH: a symptom
that several causes share comes after all of them, and the last pattern matches every text."""
PULL = (_DISK, _OTHER_PLATFORM, _PRIVATE, ErrorPattern("", "{reason}", _OTHER_BASE_REMEDY))
"""The causes of errors of `docker pull`."""
PUSH = (
    ErrorPattern(
        _DENIED + "|denied|forbidden",
        "{reason}",
        "log in with an account that may push there (`docker login {host}`), or name another path",
    ),
    ErrorPattern("", "{reason}", "check the registry's name, its certificate, and the engine's network and proxy"),
)
"""The causes of errors of `docker push`."""


def find_reason(lines: Sequence[str]) -> str:
    """Find the reason that a docker command gives at the end of its output: the last line that is not a hint."""
    for line in reversed(lines):
        text = line.strip()
        if text and not text.startswith(_HINTS):
            return text
    return "docker gives no reason"


def match_pattern(patterns: Iterable[ErrorPattern], text: str, **words: str) -> ErrorPattern:
    """Find the first of the patterns that matches somewhere in a text; the last has to match every text.

    The fields in its cause and remedy are filled with the groups that matched and with `words`.
    """
    pattern = try_match_pattern(patterns, text, **words)
    if pattern is None:
        raise ValueError("the last pattern does not match every text")
    return pattern


def try_match_pattern(patterns: Iterable[ErrorPattern], text: str, **words: str) -> ErrorPattern | None:
    """Find the first of the patterns that matches, filled as by `match_pattern`; None if no pattern matches."""
    for pattern in patterns:
        match = re.search(pattern.pattern, text, re.MULTILINE)
        if match is None:
            continue
        fields = {**words, **match.groupdict(default="")}
        return pattern._replace(cause=pattern.cause.format(**fields), remedy=pattern.remedy.format(**fields))
    return None
