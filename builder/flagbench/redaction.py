"""Finds credentials in text: in URLs, headers, assignments, and tokens that a service marks as its own.

The one place that knows what a credential looks like. Logs and messages are shown without them (`redact`); a job or
a Dockerfile that would write one down is refused (`is_secret`, `is_secret_name`, `has_userinfo`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

REDACTED = "***"

# The group `secret` is the part that is replaced. No pattern starts inside a word or nests repetitions, so that the
# time is linear in the length of the text.
_USERINFO = re.compile(r"(?<=://)(?P<secret>[^\s/?#'\"<>]+)@")
_PATTERNS = (
    _USERINFO,
    re.compile(
        r"(?P<secret>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----"
        r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----|\Z))",
        re.DOTALL,
    ),
    # Authorization: Bearer ..., X-Auth-Token: ...
    re.compile(
        r"\b(?:(?:proxy-)?authorization|x-[a-z-]{0,40}(?:token|key|secret))[\"']?\s*:\s*[\"']?"
        r"(?:(?:basic|bearer|digest|negotiate|token)\s+)?(?P<secret>[^\s\"']+)",
        re.IGNORECASE,
    ),
    re.compile(r"\b(?:Bearer|Basic)\s+(?P<secret>[A-Za-z0-9+/._~-]{16,}={0,2})", re.IGNORECASE),
    # Hugging Face, GitHub, GitLab, Slack, AWS, OpenAI, JSON web token; neither hf_transfer nor sk-learn-nightly.
    re.compile(
        r"(?<![A-Za-z0-9])(?P<secret>(?:hf_|gh[opsru]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|sk-(?=\S{0,80}[0-9])|eyJ)"
        r"[A-Za-z0-9][A-Za-z0-9_.-]{11,})"
    ),
    # ?X-Amz-Signature=..., &sig=...
    re.compile(r"[?&](?:[\w-]*[-_])?sig(?:nature)?=(?P<secret>[^&\s\"'<>]+)", re.IGNORECASE),
)
# HF_TOKEN=..., --password=..., ?access-key=..., ;password=..., "password": "..."
_NAME = re.compile(r"(?<![\w.-])(?P<name>[\w.-]+)(?:=|\"\s*:\s*(?=\"))")
_VALUE = re.compile(r"\"[^\"]+\"|'[^']+'|[^\s\"'<>]+")
_PARAMETER_VALUE = re.compile(r"[^&;,\s\"'<>]+")

_PASSWORD_NAME = re.compile(r"PASSW|PASSPHRASE|(^|_)PWD$", re.IGNORECASE)
_SECRET_NAME = re.compile(
    r"TOKENS?(?![A-Z])"  # not TOKENIZERS_PARALLELISM
    r"|SECRET|CREDENTIAL|APIKEY|(API|ACCESS|PRIVATE|AUTH|SIGNING|ENCRYPTION)_?KEY|(^|_)(AUTH|KEY)$",
    re.IGNORECASE,
)
# MAX_TOKENS=512 is a count, not a secret. A password may be a number.
_PLAIN = re.compile(r"([0-9]+(\.[0-9]+)?|true|false)[,.;)\]}]*", re.IGNORECASE)
_SEVERAL_USERINFO = re.compile(r"://([^/@\s]+(?:@[^/@\s]+)*)@")


def redact(text: str, known: Iterable[str] = ()) -> str:
    """The text with every credential in it, and every `known` secret, replaced by `***`."""
    for secret in sorted(filter(None, known), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    kept, position = [], 0
    for start, end in sorted(_credentials(text)):
        if start >= position:
            kept += [text[position:start], REDACTED]
        position = max(position, end)
    return "".join([*kept, text[position:]])


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is a secret by its name, or its value holds a credential."""
    return _is_secret_value_of(name, value) or any(_credentials(value))


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return bool(_PASSWORD_NAME.search(_words(name)) or _SECRET_NAME.search(_words(name)))


def has_userinfo(text: str) -> bool:
    """Whether a URL in the text names a user."""
    return bool(_USERINFO.search(text))


def url_secrets(url: str) -> set[str]:
    """The user and password of a URL in every spelling in which a program may print them."""
    match = _SEVERAL_USERINFO.search(url)
    if match is None:
        return set()
    user, _, password = match[1].partition(":")
    parts = (match[1], password) if password else (user,)
    return {spelling for part in parts for spelling in (part, unquote(part)) if spelling.strip(":")}


def _credentials(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each credential in the text; they may overlap."""
    for pattern in _PATTERNS:
        for match in pattern.finditer(text):
            yield match.span("secret")
    position = 0
    while named := _NAME.search(text, position):
        position = named.end()
        if not is_secret_name(named["name"]):
            continue
        of_several = text[named.start() - 1 : named.start()] in ("?", "&", ";", ",")
        value = (_PARAMETER_VALUE if of_several else _VALUE).match(text, position)
        if value and _is_secret_value_of(named["name"], value[0]):
            position = value.end()
            yield value.span()


def _is_secret_value_of(name: str, value: str) -> bool:
    plain = _PLAIN.fullmatch(value) and not _PASSWORD_NAME.search(_words(name))
    return is_secret_name(name) and not plain


def _words(name: str) -> str:
    return name.replace("-", "_").replace(".", "_")
