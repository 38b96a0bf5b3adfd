"""What looks like a secret: by the name of its variable, or by the value itself."""

from __future__ import annotations

import re

_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|APIKEY|(API|ACCESS|PRIVATE|AUTH|SIGNING|ENCRYPTION)_?KEY|(^|_)(PWD|AUTH|KEY)$",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s]*@"  # an address with a user
    r"|-----BEGIN "  # PEM
    r"|\b(Bearer|Basic)\s+[A-Za-z0-9+/._~-]{16,}"  # a header
    # Prefixes by which services mark their keys, and a JSON web token. Long enough to be none of the words
    # that begin alike (hf_transfer, sk-learn).
    r"|(?<![A-Za-z0-9])(hf_|gh[opsru]_|github_pat_|glpat-|xox[abeprs]-|AKIA|ASIA|sk-|eyJ)[A-Za-z0-9][A-Za-z0-9_-]{11,}"
)
_PARAMETER = re.compile(r"(?:^|[?&;\s])-{0,2}([A-Za-z][\w.-]*)=[^&;\s]")
_SIGNATURE = re.compile(r"(^|_)SIG(NATURE)?$", re.IGNORECASE)


def secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret, as far as a name can tell."""
    return _NAME.search(name) is not None


def secret_value(value: str) -> bool:
    """Whether the value is a secret, or an address or text with one in it, as far as its form can tell."""
    if _VALUE.search(value):
        return True
    # As in https://host/path?access-key=... and user=a;password=...
    keys = (key.replace("-", "_").replace(".", "_") for key in _PARAMETER.findall(value))
    return any(_NAME.search(key) or _SIGNATURE.search(key) for key in keys)
