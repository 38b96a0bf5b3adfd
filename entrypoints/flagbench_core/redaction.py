"""Finds credentials in text: in URLs, headers, assignments and options, and tokens with the prefix of a service.

Logs and messages are shown without credentials (`redact`); a job or an address that would write one down is refused
(`is_secret`, `has_userinfo`). Image-side code that writes a log or a record uses flagbench_cases.shared.redaction
instead, which also removes the user and the query of every URL, and calls this module for the rest.

A credential is recognised by its form or a fixed word before it (_PATTERNS), or by the name of the variable, option
or key whose value it is (_NAME, _SECRET_NAME). The time is linear in the length of the text, for three reasons: no
pattern starts inside a word; a repetition that may fail is bounded, by a few times the longest text that occurs there
in practice; and no repetition can match the same characters in two ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import unquote

REDACTED = "***"
"""The text that stands in place of a credential."""

# Parts of patterns

_QUOTED = (
    r"(?P<quote>\\{0,3}[\"'])"
    r"(?:"
    r"(?:\\.|(?!(?P=quote))[^\n\\])+?"  # to the first quote that is not escaped
    r"|(?!(?P=quote))[^\n]+"  # if all later quotes of the line are escaped: to the last of them
    r")(?P=quote)"
)
"""A text in quotes, which may be escaped because it is itself part of a quoted text.

A backslash is read with the character after it, and in no other way: if it could also be read alone, a text of n
backslashes without a closing quote could be read in 2^n ways.
"""
_NAME_END = r"(?:\\{0,3}[\"'])?\]?[ \t]*"
"""What may stand between a name and the `:` or `=` after it: the end of quotes or of an index, and spaces.

As in environ["TOKEN"] = ... and {\\"token\\": ...
"""
_HEADER_PART = r"[\w-]+=(?:\"[^\"\n]*\"|[^\s\"',]*)"
"""A parameter of a header, NAME=VALUE or NAME="VALUE"."""
_SAYS_NO = r"(?:required|missing|denied|failed|invalid|expired|empty|unset|none|null|nil|true|false)\b"
"""The first word of a message about a credential, such as `token: missing`, which is no credential itself."""
_END = r"[,.;:)\]}]*"
"""The punctuation that may follow a value."""
_NOT_A_PORT = r"(?![0-9]{1,5}[/?#])"
"""No port of a URL follows: the text after the colon of https://host:8080/@scope is no password."""
_NOT_A_DIGEST = r"(?!sha(?:256|512):)"
"""No digest of an image follows: name:tag@sha256:... is no login."""
_HOST = r"(?=[A-Za-z\[]|[0-9]+(?:\.[0-9]+){3})"
"""A host follows: a name, an IPv6 address in brackets, or an IPv4 address; not the version of package:name@1.2."""
_LOGIN_START = r"(?:(?<=[^\w.%+~:@/-]//)|(?<=^//)|(?<![\w.%+~:@/-]))(?!mailto:)"
"""The start of a login without a scheme: after // that is no part of a URL, or where a word starts."""
_SCHEME = r"(?:[A-Za-z][\w-]{0,40}[ \t]+(?!(?:proxy-)?authorization\b))?"
"""The scheme of a header, such as Bearer, if it has one. A word before another such header is no scheme."""
_HEADER_PARTS = _HEADER_PART + r"(?:,[ \t]*" + _HEADER_PART + r")*"
"""The parameters of a header: NAME=VALUE, NAME=VALUE."""

# Credentials with a form of their own or a fixed word before them. The group `secret` is the part that is replaced.

_USER_LENGTH = "{0,128}"
"""How long the user of a URL may be."""
_PASSWORD_LENGTH = "{1,256}"
"""How long the password of a URL may be, up to its first @."""
_REST_LENGTH = "{0,512}"
"""How long each part of a password after an @ in it may be."""


def _userinfo(delimiters: str) -> str:
    """The pattern of the user, or user and password, of a URL; `delimiters`: characters that end the URL.

    It finds `user:pass/word` in ://user:pass/word@host, and nothing in ://host:8080/@scope.
    """
    return (
        r"(?<=://)(?P<secret>"
        rf"[^/?#{delimiters}]+"  # as a URL should be written: a user, or user:password, which may contain @
        r"|"  # or a password that contains a slash, a question mark or a number sign
        rf"[^/?#:@\[{delimiters}]{_USER_LENGTH}:{_NOT_A_PORT}"  # the user
        rf"(?=[^@{delimiters}]{_PASSWORD_LENGTH}@)[^@{delimiters}]+"  # the password, up to its first @
        rf"(?:@[^/?#@{delimiters}]{_REST_LENGTH}(?=@))*"  # the rest of it, if another @ follows before the path
        r")@"
    )


_USERINFO = _userinfo(delimiters=r"\s'\"<>")
"""The user and password of a URL in a text, which also ends at a quote or an angle bracket."""
_USERINFO_OF_URL = _userinfo(delimiters=r"\s")
"""The user and password of a URL alone: it may contain quotes."""
_LOGIN_AT_HOST = (
    _LOGIN_START + r"(?P<secret>"
    r"[\w.%+~-]{1,64}:"  # the user
    r"(?=[^\s/'\"<>@]{1,128}@)[^\s/'\"<>@]+"  # the password, up to its first @
    r"(?:@[^\s/'\"<>@]{1,256}){0,3}"  # the rest of it, if it contains @
    r")@" + _NOT_A_DIGEST + _HOST
)
"""A login without a scheme: user:password@host, but neither name:tag@sha256:... nor package:name@1.2."""
_PRIVATE_KEY = (
    r"(?s)(?P<secret>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----"
    r".*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----|\Z))"
)
"""A private key in PEM format, to its last line or to the end of the text."""
_AUTHORIZATION = (
    r"(?i)\b(?:proxy-)?authorization" + _NAME_END + r"[:=][ \t]*"
    r"(?!\*{3}|" + _SAYS_NO + r")"  # neither replaced before nor a message: `Authorization: required`
    r"(?P<secret>" + _QUOTED + r"|[\"']?" + _SCHEME + r"(?:" + _HEADER_PARTS + r"|[^\s\"']+))"
)
"""A header `Authorization: SCHEME TOKEN`, `Authorization: SCHEME NAME=VALUE, NAME=VALUE`, or without a scheme."""
_COOKIE = r"(?i)\b(?:set-)?cookie" + _NAME_END + r":[ \t]*(?!\*{3})[\"']?(?P<secret>[^\s\"'][^\r\n\"']*)"
"""The cookies of a header, to the end of the line."""
_SECRET_HEADER = r"(?i)\bx-[a-z-]{0,40}(?:token|key|secret)" + _NAME_END + r":[ \t]*[\"']?(?P<secret>[^\s\"']+)"
"""A header of a service, such as `X-Auth-Token: ...` and `X-Api-Key: ...`."""
_BEARER = r"(?i)\b(?:Bearer|Basic)\s+(?P<secret>[A-Za-z0-9+/._~-]{16,}={0,2})"
"""A token after its scheme, outside of a header; shorter words are more likely part of a sentence."""
_SERVICE_TOKEN = (
    r"(?<![A-Za-z0-9])(?P<secret>(?:"
    r"gh[opsru]_|github_pat_"  # GitHub
    r"|gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-"  # GitLab
    r"|xox[abeprs]-"  # Slack
    r"|AKIA|ASIA"  # AWS
    r"|sk-(?=\S{0,80}[0-9])"  # OpenAI; sk-learn-nightly, which has no digit, is a package
    r"|eyJ"  # a JSON web token: the base64 of {"
    r"|pypi-Ag"  # PyPI
    r"|dckr_[a-z]{3}_"  # Docker
    r"|nvapi-"  # NVIDIA
    r"|hv[sb]\."  # Vault
    r"|ya29\."  # Google's OAuth
    r")[A-Za-z0-9][A-Za-z0-9_.-]{11,})"
)
"""A token with the prefix of a service."""
_PLAIN_SERVICE_TOKEN = r"(?<![A-Za-z0-9])(?P<secret>(?:hf_|npm_|sk-)[A-Za-z0-9]{16,}|AIza[\w-]{30,})"
"""A token of letters and digits alone, of Hugging Face, npm, OpenAI or Google; neither hf_hub_download nor
npm_config_registry."""
_URL_SIGNATURE = r"(?i)[?&#](?:[\w-]{0,40}[-_])?sig(?:nature)?=(?P<secret>[^&\s\"'<>]+)"
"""The signature of a presigned URL: ?X-Amz-Signature=..., &sig=..."""
_URL_KEY = r"(?i)[?&](?:key|code)=(?![0-9]{1,4}\b)(?P<secret>[^&\s\"'<>]+)"
"""The key of a URL, ?key=... or &code=..., unless it is a short number."""
_CURL_USER = (
    r"(?<!\S)(?:-[uU]|--(?:proxy-)?user)[ \t=]{1,8}"
    r"[\"']?[^\s:\"'/]{1,64}:"  # the user
    # not a user and a group of `docker run`: -u 1000:0, -u user:video
    r"(?!(?:[0-9]+|root|nogroup|users|docker|video|render|staff)(?![^\s\"']))"
    r"(?P<secret>[^\s\"'/][^\s\"']*)"
)
"""The password of `curl -u user:password`."""
_LOGIN_PASSWORD = r"\blogin\b[^\n]{0,200}?[ \t](?:-p|password)[ \t]+(?P<secret>[^\s\"']+)"
"""The password of `docker login -p ...`, or of a line of a netrc file."""
_PATTERNS = (
    _USERINFO,
    _LOGIN_AT_HOST,
    _PRIVATE_KEY,
    _AUTHORIZATION,
    _COOKIE,
    _SECRET_HEADER,
    _BEARER,
    _SERVICE_TOKEN,
    _PLAIN_SERVICE_TOKEN,
    _URL_SIGNATURE,
    _URL_KEY,
    _CURL_USER,
    _LOGIN_PASSWORD,
)
"""Credentials that are recognised by their form, or by a fixed word before them."""

# Credentials that are the value of a name

_NAME = (
    r"(?<![\w.-])(?P<name>[\w.-]+)(?:"
    # HF_TOKEN=..., --password=..., ?access-key=..., ;password=...; not a comparison, ==
    r"(?P<equals>" + _NAME_END + r"=(?!=)[ \t]*)"
    # token: ... and "password": "..."; neither a path of C++ (::) nor the rest of a URL, and no list or call
    r"|(?P<colon>" + _NAME_END + r":(?![:=]|//)[ \t]*(?![\[{(]))"
    # <SecretAccessKey>...
    r"|(?P<tag>>)"
    # --token ...
    r"|(?P<space>[ \t]+(?=[^\s-]))"
    # "--token", "..."
    r"|(?P<comma>[\"'],[ \t]*(?=[\"']))"
    r")"
)
"""A name and the separator between it and a value, which may be a credential because of the name.

The separator is one of the named groups; `lastgroup` of the match names it.
"""
_VALUE = _QUOTED + r"|[\"']?[^\s\"'<>][^\s\"'<>]*"
"""A value: a text in quotes, or all up to the next space."""
_PARAMETER_VALUE = r"[^&;,\s\"'<>]+"
"""A value in a URL, which ends at the next parameter."""
_SENTENCE = r"[A-Za-z][a-z'-]{0,15}[ \t]+[A-Za-z(]"
"""The next words of a sentence, in place of a value: `invalid token: unexpected end`, `--token to the command`."""
_CALL = r"[A-Za-z_][\w.]{0,80}[(\[]"
"""A call or an index in place of a value, in source code: `token = read(path)`."""
_PASSWORD_NAME = r"(?i)PASSW|PASSPHRASE|(?:^(?!(?-i:PWD))|_)PWD$"
"""Names of passwords; PWD alone, in capitals, is a shell's working directory."""
_SECRET_NAME = (
    r"(?i)TOKENS?(?![A-Z])"  # not TOKENIZERS_PARALLELISM
    r"|SECRET|CREDENTIAL|APIKEY|(^|_)AUTH$|(^|_)PASS$"
    r"|ACCESS_?SIGNATURE"  # Azure's shared access signatures
    r"|(GIT|HUB|LAB|GH|AZURE|DEVOPS)_PAT$"  # personal access tokens: github_pat, not search_pat
    r"|(API|ACCESS|ACCOUNT|ADMIN|AUTH|CLIENT|DEPLOY|ENCRYPTION|HMAC|LICENSE|MASTER|PRIVATE|SERVICE|SHARED|SIGNING|SSH"
    r"|STORAGE)_?KEY"
    # in capitals alone, any other key: MY_KEY, but neither my_key nor SORT_KEY
    r"|(?-i:^[A-Z0-9_]*(?<!SORT)(?<!CACHE)(?<!PUBLIC)(?<!PRIMARY)_(KEY|PAT)$)"
)
"""Names of variables and options that hold a secret."""
_HARMLESS_NAME = (
    r"(?i)PUBLIC_?KEY"
    r"|(^|_)(PAD|EOS|BOS|UNK|CLS|SEP|MASK)_TOKEN$"  # a tokenizer's special tokens
    r"|TOKENS?_(PER|TYPE|COUNT|IDS?)(_|$)"  # tokens_per_second, token_type_ids
    r"|(PULL|FROM)_?SECRETS?$|SECRET_?(NAME|REF)"  # names of Kubernetes Secrets: imagePullSecrets, secretName
    r"|^__STORE_SECRET$"  # the option --store-secret of `flagbench job`, the name of a Kubernetes Secret
    r"|AGENT_INJECT"  # annotations of Vault's agent injector: vault.hashicorp.com/agent-inject-secret-db
)
"""Names that _SECRET_NAME matches, and that hold no secret."""
_COUNT_NAME = r"(?i)TOKENS(_|$)"
"""Names whose value is a count if it is a number: MAX_TOKENS=512. The number of another name may be a secret."""
_NUMBER = r"[0-9]+([.:][0-9]+)*" + _END
"""A value that is a number, a version or a time."""
_NO_VALUE = r"(?i)(?:" + _SAYS_NO + r"|\*{3})" + _END
"""A value that says that there is none, or that was replaced by `***` before."""


@lru_cache(maxsize=None)
def _compile(pattern: str) -> re.Pattern[str]:
    """A pattern, compiled at its first use: all of them take 4 ms, which most commands need not spend."""
    return re.compile(pattern)


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
    if not is_secret_name(name) or _compile(_NO_VALUE).fullmatch(value):
        return False
    is_number = _compile(_NUMBER).fullmatch(value) is not None
    is_name_of_count = _compile(_COUNT_NAME).search(_words(name)) is not None
    return not (is_number and is_name_of_count)


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    words = _words(name)
    if _compile(_HARMLESS_NAME).search(words):
        return False
    return bool(_compile(_PASSWORD_NAME).search(words) or _compile(_SECRET_NAME).search(words))


def has_userinfo(text: str) -> bool:
    """Whether a URL in the text names a user."""
    return bool(_compile(_USERINFO).search(text))


def url_secrets(url: str) -> set[str]:
    """The user and password of a URL in every spelling in which a program may print them."""
    match = _compile(_USERINFO_OF_URL).search(url)
    if match is None:
        return set()
    userinfo = match["secret"]
    user, _, password = userinfo.partition(":")
    parts = [user]
    if password:
        parts = [userinfo, password]
    spellings = [*parts, *map(unquote, parts)]
    # An empty user, or colons alone (https://:@host), would be found in every text.
    return {spelling for spelling in spellings if spelling.strip(":")}


def _credentials(text: str) -> Iterator[tuple[int, int]]:
    """The start and the end of each credential in the text; credentials may overlap."""
    for pattern in _PATTERNS:
        for match in _compile(pattern).finditer(text):
            yield match.span("secret")
    yield from _named_credentials(text)


def _named_credentials(text: str) -> Iterator[tuple[int, int]]:
    """The start and the end of each value that follows the name of a secret."""
    position = 0
    while named := _compile(_NAME).search(text, position):
        position = named.end()
        if not is_secret_name(named["name"]) or not _leads_to_value(named):
            continue
        if _is_sentence(named) or _is_call(named):
            continue
        pattern = _VALUE
        if _is_in_url(named):
            pattern = _PARAMETER_VALUE
        value = _compile(pattern).match(text, position)
        if value is not None and _may_be_credential(named["name"], value[0]):
            position = value.end()
            yield value.span()


def _leads_to_value(named: re.Match[str]) -> bool:
    """Whether a match of _NAME is followed by a value, according to its separator and the character before it."""
    before = _character_before(named)
    name = named["name"]
    if named.lastgroup == "equals":
        return True
    if named.lastgroup == "colon":
        # Neither org/auth:tag nor the line of a test that passed.
        return before != "/" and name.lower() != "pass"
    if named.lastgroup == "tag":
        return before == "<"
    return name.startswith("--")


def _is_sentence(named: re.Match[str]) -> bool:
    """Whether a match of _NAME is part of a sentence, as in `invalid token: unexpected end of file`.

    A value after an equals sign is never a sentence: `password=correct horse`.
    """
    if named.lastgroup == "equals":
        return False
    return _compile(_SENTENCE).match(named.string, named.end()) is not None


def _is_call(named: re.Match[str]) -> bool:
    """Whether a match of _NAME is assigned the result of a call, in source code: `token = read(path)`.

    Code has one space after the equals sign; `token=abc(def` without it is a value.
    """
    if not named[0].endswith(("= ", "=\t")):
        return False
    return _compile(_CALL).match(named.string, named.end()) is not None


def _is_in_url(named: re.Match[str]) -> bool:
    """Whether a match of _NAME is a parameter of a URL or of a list: `?token=abc&b=2`, `type=x,password=abc,b=2`."""
    before = _character_before(named)
    return before != "" and before in "?&;,#"


def _character_before(named: re.Match[str]) -> str:
    """The character before a match; empty at the start of the text."""
    return named.string[max(named.start() - 1, 0) : named.start()]


def _may_be_credential(name: str, value: str) -> bool:
    """Whether the value of a secret's name may be a credential: neither `missing` nor `***` nor a count of tokens."""
    if _compile(_NO_VALUE).fullmatch(value):
        return False
    # A number after a name such as `tokens` is a count; a password may be a number.
    is_password = _compile(_PASSWORD_NAME).search(_words(name))
    return bool(is_password or not _compile(_NUMBER).fullmatch(value))


def _words(name: str) -> str:
    """A name in the form in which patterns match it: with underscores instead of other separators."""
    return re.sub("[^A-Za-z0-9]", "_", name)
