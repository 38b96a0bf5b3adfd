"""What looks like a secret: by the name of its variable, or by the value itself."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"PASSW|PASSPHRASE|(^|_)PWD$", re.IGNORECASE)
_NAME = re.compile(
    r"TOKENS?(?![A-Z])"  # a tokenizer is none
    r"|SECRET|CREDENTIAL|APIKEY|(API|ACCESS|PRIVATE|AUTH|SIGNING|ENCRYPTION)_?KEY|(^|_)(AUTH|KEY)$",
    re.IGNORECASE,
)
# A count or a switch, as in MAX_TOKENS=512. A password may look like one.
_PLAIN = re.compile(r"[0-9]+(\.[0-9]+)?|true|false", re.IGNORECASE)
_VALUE = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s]*@"  # an address with a user
    r"|-----BEGIN "  # PEM
    r"|\b(Bearer|Basic)\s+[A-Za-z0-9+/._~-]{16,}"  # a header
    # Prefixes by which services mark their keys, and a JSON web token. Long enough to be none of the words
    # that begin alike (hf_transfer, sk-learn).
    r"|(?<![A-Za-z0-9])(hf_|gh[opsru]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|sk-|eyJ)[A-Za-z0-9][A-Za-z0-9_-]{11,}"
    r"|(?i:[?&]([\w-]*[-_])?sig(nature)?=[^&\s])"  # a signed address
)
# As in https://host/path?access-key=... and user=a;password=...
_PARAMETER = re.compile(r"(?:^|[?&;\s])-{0,2}([A-Za-z][\w.-]*)=([^&;\s]+)")


def is_secret(name: str, value: str) -> bool:
    """Whether a variable holds a secret, or an address or text with one in it, as far as name and form can tell."""
    if _VALUE.search(value):
        return True
    return any(_named_secret(key, of_key) for key, of_key in ((name, value), *_PARAMETER.findall(value)))


def _named_secret(name: str, value: str) -> bool:
    words = name.replace("-", "_").replace(".", "_")
    return bool(_PASSWORD.search(words) or (_NAME.search(words) and not _PLAIN.fullmatch(value)))
