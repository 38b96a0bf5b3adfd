"""Finds credentials in text: in URLs, headers, assignments and options, and tokens with the prefix of a service.

All other code uses this module to recognise credentials. Logs and messages are shown without them (`redact`); a job
or an address that would write one down is refused (`is_secret`, `has_userinfo`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

REDACTED = "***"

# The group `secret` is the part that is replaced. No pattern starts inside a word, and a repetition that may fail is
# bounded, so that the time is linear in the length of the text.
_USERINFO = re.compile(
    r"(?<=://)(?P<secret>[^\s/?#'\"<>]+"
    # A password with a slash. A port is not a password: https://host:8080/@scope.
    r"|[^\s/?#'\"<>:@\[]{0,128}:(?![0-9]{1,5}[/?#])(?=[^\s'\"<>@]{1,256}@)[^\s'\"<>@]+(?:@[^\s/?#'\"<>@]{0,512}(?=@))*)@"
)
_QUOTED = r"(?P<quote>\\{0,3}[\"'])(?:\\.|(?!(?P=quote))[^\n])+?(?P=quote)"
# Quotes around a name, and what may be left of them and of an index: environ["TOKEN"], {\"token\": ...
_NAME_END = r"(?:\\{0,3}[\"'])?\]?[ \t]*"
_HEADER_PART = r"[\w-]+=(?:\"[^\"\n]*\"|[^\s\"',]*)"
_SAYS_NO = r"(?:required|missing|denied|failed|invalid|expired|empty|unset|none|null|nil|true|false)\b"
"""The first word of a message about a credential, such as `token: missing`, which is no credential itself."""
_PATTERNS = (
    _USERINFO,
    # user:password@host; neither name:tag@sha256:digest nor package:name@1.2.
    re.compile(
        r"(?:(?<=[^\w.%+~:@/-]//)|(?<=^//)|(?<![\w.%+~:@/-]))(?!mailto:)(?P<secret>[\w.%+~-]{1,64}:"
        r"(?=[^\s/'\"<>@]{1,128}@)[^\s/'\"<>@]+(?:@[^\s/'\"<>@]{1,256}){0,3})@(?!sha(?:256|512):)(?=[A-Za-z\[]|[0-9]+(?:\.[0-9]+){3})"
    ),
    re.compile(
        r"(?P<secret>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----"
        r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----|\Z))",
        re.DOTALL,
    ),
    # Authorization: SCHEME TOKEN, Authorization: SCHEME NAME=VALUE, NAME=VALUE
    re.compile(
        r"\b(?:proxy-)?authorization"
        + _NAME_END
        + r"[:=][ \t]*(?!\*{3}|"
        + _SAYS_NO
        + r")(?P<secret>"
        + _QUOTED
        + r"|[\"']?"
        # A scheme, unless another header follows the word.
        r"(?:[A-Za-z][\w-]{0,40}[ \t]+(?!(?:proxy-)?authorization\b))?(?:"
        + _HEADER_PART
        + r"(?:,[ \t]*"
        + _HEADER_PART
        + r")*|[^\s\"']+))",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b(?:set-)?cookie" + _NAME_END + r":[ \t]*(?!\*{3})[\"']?(?P<secret>[^\s\"'][^\r\n\"']*)", re.IGNORECASE
    ),
    re.compile(
        r"\bx-[a-z-]{0,40}(?:token|key|secret)" + _NAME_END + r":[ \t]*[\"']?(?P<secret>[^\s\"']+)", re.IGNORECASE
    ),
    re.compile(r"\b(?:Bearer|Basic)\s+(?P<secret>[A-Za-z0-9+/._~-]{16,}={0,2})", re.IGNORECASE),
    # GitHub, GitLab, Slack, AWS, OpenAI, JSON web token, PyPI, Docker, NVIDIA, Vault; not sk-learn-nightly.
    re.compile(
        r"(?<![A-Za-z0-9])(?P<secret>(?:gh[opsru]_|github_pat_|gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-|xox[abeprs]-|AKIA"
        r"|ASIA|sk-(?=\S{0,80}[0-9])|eyJ|pypi-Ag|dckr_[a-z]{3}_|nvapi-|hv[sb]\.|ya29\.)[A-Za-z0-9][A-Za-z0-9_.-]{11,})"
    ),
    # Hugging Face, npm, OpenAI, Google; neither hf_hub_download nor npm_config_registry.
    re.compile(r"(?<![A-Za-z0-9])(?P<secret>(?:hf_|npm_|sk-)[A-Za-z0-9]{16,}|AIza[\w-]{30,})"),
    # ?X-Amz-Signature=..., &sig=...
    re.compile(r"[?&#](?:[\w-]{0,40}[-_])?sig(?:nature)?=(?P<secret>[^&\s\"'<>]+)", re.IGNORECASE),
    # ?key=..., &code=...
    re.compile(r"[?&](?:key|code)=(?![0-9]{1,4}\b)(?P<secret>[^&\s\"'<>]+)", re.IGNORECASE),
    # curl -u user:password; docker run -u 1000:0 names a group.
    re.compile(
        r"(?<!\S)(?:-[uU]|--(?:proxy-)?user)[ \t=]{1,8}[\"']?[^\s:\"'/]{1,64}:"
        r"(?!(?:[0-9]+|root|nogroup|users|docker|video|render|staff)(?![^\s\"']))(?P<secret>[^\s\"'/][^\s\"']*)"
    ),
    # docker login -p ..., and a netrc
    re.compile(r"\blogin\b[^\n]{0,200}?[ \t](?:-p|password)[ \t]+(?P<secret>[^\s\"']+)"),
)
"""Credentials that are recognised by their form, or by a fixed word before them."""

_NAME = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]+)(?P<between>" + _NAME_END + r"=(?!=)[ \t]*"
    r"|" + _NAME_END + r":(?![:=]|//)[ \t]*(?![\[{(])"
    r"|>"
    r"|[ \t]+(?=[^\s-])|[\"'],[ \t]*(?=[\"']))"
)
"""A name, and the characters between it and a value that may be a credential because of the name.

HF_TOKEN=..., --password=..., ?access-key=..., ;password=..., "password": "...", token: ..., --token ...
A comparison, a path of C++ or the rest of a URL is no value.
"""
_VALUE = re.compile(_QUOTED + r"|[\"']?[^\s\"'<>][^\s\"'<>]*")
_PARAMETER_VALUE = re.compile(r"[^&;,\s\"'<>]+")
"""A value in a URL, which ends at the next parameter."""
_SENTENCE = re.compile(r"[A-Za-z][a-z'-]{0,15}[ \t]+[A-Za-z(]")
"""The next words of a sentence, in place of a value: `invalid token: unexpected end`, `--token to the command`."""
_CALL = re.compile(r"[A-Za-z_][\w.]{0,80}[(\[]")

_PASSWORD_NAME = re.compile(r"PASSW|PASSPHRASE|(?:^(?!(?-i:PWD))|_)PWD$", re.IGNORECASE)
_SECRET_NAME = re.compile(
    r"TOKENS?(?![A-Z])"  # not TOKENIZERS_PARALLELISM
    r"|SECRET|CREDENTIAL|APIKEY|(^|_)AUTH$|(^|_)PASS$|ACCESS_?SIGNATURE|(GIT|HUB|LAB|GH|AZURE|DEVOPS)_PAT$"
    r"|(API|ACCESS|ACCOUNT|ADMIN|AUTH|CLIENT|DEPLOY|ENCRYPTION|HMAC|LICENSE|MASTER|PRIVATE|SERVICE|SHARED|SIGNING|SSH"
    r"|STORAGE)_?KEY"
    r"|(?-i:^[A-Z0-9_]*(?<!SORT)(?<!CACHE)(?<!PUBLIC)(?<!PRIMARY)_(KEY|PAT)$)",
    re.IGNORECASE,
)
"""Names of variables and options that hold a secret."""
_HARMLESS_NAME = re.compile(
    r"PUBLIC_?KEY|(^|_)(PAD|EOS|BOS|UNK|CLS|SEP|MASK)_TOKEN$|TOKENS?_(PER|TYPE|COUNT|IDS?)(_|$)"
    r"|(PULL|FROM)_?SECRETS?$|^__STORE_SECRET$|SECRET_?(NAME|REF)|AGENT_INJECT",
    re.IGNORECASE,
)
"""Names that _SECRET_NAME matches, and that hold no secret: those of tokenizers and of Kubernetes."""
_END = r"[,.;:)\]}]*"
_COUNT_NAME = re.compile(r"TOKENS(_|$)", re.IGNORECASE)
"""Names whose value is a count if it is a number: MAX_TOKENS=512. The number of another name may be a secret."""
_NUMBER = re.compile(r"[0-9]+([.:][0-9]+)*" + _END)
_NO_VALUE = re.compile(r"(?:" + _SAYS_NO + r"|\*{3})" + _END, re.IGNORECASE)
_SEVERAL_USERINFO = re.compile(r"://([^/@\s]+(?:@[^/@\s]+)*)@")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with every credential in it, and every one of `secrets`, replaced by `***`."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):  # a secret may be part of a longer one
        text = text.replace(secret, REDACTED)
    parts: list[str] = []
    position = 0
    for start, end in sorted(_credentials(text)):
        if start > position or not parts:  # a credential that touches the one before is part of it
            parts += [text[position:start], REDACTED]
        position = max(position, end)
    parts.append(text[position:])
    return "".join(parts)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable is a secret according to its name, or its value contains a credential.

    Stricter than `redact`: a number may be a secret too, unless the name is that of a count (MAX_TOKENS).
    """
    if any(_credentials(value)):
        return True
    if not is_secret_name(name) or _NO_VALUE.fullmatch(value):
        return False
    is_count = _NUMBER.fullmatch(value) and _COUNT_NAME.search(_words(name))
    return not is_count


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    words = _words(name)
    if _HARMLESS_NAME.search(words):
        return False
    return bool(_PASSWORD_NAME.search(words) or _SECRET_NAME.search(words))


def has_userinfo(text: str) -> bool:
    """Whether a URL in the text names a user."""
    return bool(_USERINFO.search(text))


def url_secrets(url: str) -> set[str]:
    """The user and password of a URL in every spelling in which a program may print them."""
    match = _SEVERAL_USERINFO.search(url)
    if match is None:
        return set()
    user, _, password = match[1].partition(":")
    parts = [user]
    if password:
        parts = [match[1], password]
    spellings = [*parts, *map(unquote, parts)]
    return {spelling for spelling in spellings if spelling.strip(":")}


def _credentials(text: str) -> Iterator[tuple[int, int]]:
    """The start and the end of each credential in the text; credentials may overlap."""
    for pattern in _PATTERNS:
        for match in pattern.finditer(text):
            yield match.span("secret")
    yield from _named_credentials(text)


def _named_credentials(text: str) -> Iterator[tuple[int, int]]:
    """The start and the end of each value that follows the name of a secret."""
    position = 0
    while named := _NAME.search(text, position):
        position = named.end()
        name, between = named["name"], named["between"]
        before = text[max(named.start() - 1, 0) : named.start()]  # the character before the name, or none
        if not is_secret_name(name) or not _leads_to_value(before, name, between):
            continue
        if "=" not in between and _SENTENCE.match(text, position):
            continue
        if between.endswith(("= ", "=\t")) and _CALL.match(text, position):
            continue
        pattern = _VALUE
        if before and before in "?&;,#":
            pattern = _PARAMETER_VALUE
        value = pattern.match(text, position)
        if value is None or _NO_VALUE.fullmatch(value[0]):
            continue
        # A number after a name such as `tokens` is a count; a password may be a number.
        if _PASSWORD_NAME.search(_words(name)) or not _NUMBER.fullmatch(value[0]):
            position = value.end()
            yield value.span()


def _leads_to_value(before: str, name: str, between: str) -> bool:
    """Whether a name is followed by a value, according to the characters before it and those between both."""
    if between == ">":
        return before == "<"
    if "=" in between:
        return True
    if ":" in between:
        # Neither org/auth:tag nor the line of a test that passed.
        return before != "/" and name.lower() != "pass"
    return name.startswith("--")


def _words(name: str) -> str:
    """A name in the form in which patterns match it: with underscores instead of other separators."""
    return re.sub("[^A-Za-z0-9]", "_", name)
