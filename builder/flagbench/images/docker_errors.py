"""Errors of builds and of the engine.

Causes whose remedy is ours to know are recognised in docker's output; any other is reported in docker's own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flagbench.errors import FlagbenchError
from flagbench_core.exit_codes import ExitCode

# What a step of a build prints has the step's number and the time before it.
_STEP = r"^(?:#\d+ )?(?:\d+\.\d+ )?"
_DENIED = (
    r"(?i)unauthorized|authentication required|access denied|access forbidden|no basic auth|insufficient_scope"
    r"|authorization failed|status(?: code)?:? 40[13]|toomanyrequests"
)
_OTHER_BASE = (
    "check its name and the engine's network and proxy, or load the image from a file (`docker load`) and name it "
    "with --base"
)
_HINTS = ("View build details", "See 'docker")
"""How lines begin that may follow docker's reason."""


class BuildFailed(FlagbenchError):
    """An image could not be built or pulled."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.BUILD_FAILED)


class EngineError(FlagbenchError):
    """The engine or its client is missing or too old, may not be used, went away, or refused a request."""

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy, code=ExitCode.ENGINE)


class ErrorPattern(NamedTuple):
    """A cause, known by a pattern in a text; `{}` fields are its groups, and what `match_pattern` is given."""

    pattern: str
    cause: str
    remedy: str


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

# In each list the first pattern that matches counts: a symptom that several causes share comes after all of them.
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
        _OTHER_BASE,
    ),
    ErrorPattern(
        "", "{reason}", "see the step's output; `flagbench render` writes the Dockerfile and all that it copies"
    ),
)
PULL = (_DISK, _OTHER_PLATFORM, _PRIVATE, ErrorPattern("", "{reason}", _OTHER_BASE))
PUSH = (
    ErrorPattern(
        _DENIED + "|denied|forbidden",
        "{reason}",
        "log in with an account that may push there (`docker login {host}`), or name another path",
    ),
    ErrorPattern("", "{reason}", "check the registry's name, its certificate, and the engine's network and proxy"),
)


def last_words(lines: Sequence[str]) -> str:
    """The reason that a docker command gives at the end of what it printed."""
    for line in reversed(lines):
        words = line.strip()
        if words and not words.startswith(_HINTS):
            return words
    return "docker gives no reason"


def match_pattern(patterns: Iterable[ErrorPattern], text: str, **words: str) -> ErrorPattern | None:
    """The first of the patterns that is in the text, with its groups and `words` in the `{}` fields."""
    for pattern in patterns:
        match = re.search(pattern.pattern, text, re.MULTILINE)
        if match is None:
            continue
        words |= match.groupdict(default="")
        return pattern._replace(cause=pattern.cause.format(**words), remedy=pattern.remedy.format(**words))
    return None
