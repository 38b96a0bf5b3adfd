"""What Kubernetes accepts as a name, a label, a quantity or an image: pure rules, each a reason or None.

The rules are those of the API server's own validation (RFC 1123 names, qualified names, resource.Quantity),
which the published OpenAPI schemas leave out.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

MOST_NODES = 100_000
"""The most pods of an Indexed Job at a time (parallelism; there may be more completions)."""
MOST_PORT = 65535
LABEL_LENGTH = 63
SUBDOMAIN_LENGTH = 253
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_QUANTITY = re.compile(r"(?P<number>\+?(\d+\.?\d*|\.\d+))(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_HOST = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*(:[0-9]{1,5})?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_REGISTRY = re.compile(rf"{_HOST}(/{_PART})*")
_IMAGE = re.compile(
    rf"(?P<name>({_HOST}/)?{_PART}(/{_PART})*)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_POWERS = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_LONGEST_QUANTITY = 32


def label_fault(name: str) -> str | None:
    """Why `name` is no RFC 1123 label (the name of a namespace, a Service, a host or a container)."""
    if len(name) > LABEL_LENGTH:
        return f"has {len(name)} characters, at most {LABEL_LENGTH} are allowed"
    if not _LABEL.fullmatch(name):
        return "may hold lower-case letters, digits and '-', and begins and ends with a letter or digit"
    return None


def subdomain_fault(name: str) -> str | None:
    """Why `name` is no RFC 1123 subdomain (the name of a Secret or a claim for a volume)."""
    if len(name) > SUBDOMAIN_LENGTH:
        return f"has {len(name)} characters, at most {SUBDOMAIN_LENGTH} are allowed"
    if not _SUBDOMAIN.fullmatch(name):
        return "may hold lower-case letters, digits, '-' and '.', each part begins and ends with a letter or digit"
    return None


def key_fault(key: str) -> str | None:
    """Why `key` cannot be the key of a label or an annotation, or the name of a resource: `[DOMAIN/]WORD`."""
    prefix, slash, word = key.rpartition("/")
    if slash and (fault := subdomain_fault(prefix)):
        return f"its part before '/' {fault}"
    if len(word) > LABEL_LENGTH:
        return f"its name has {len(word)} characters, at most {LABEL_LENGTH} are allowed"
    if not _WORD.fullmatch(word):
        return "may hold letters, digits, '-', '_' and '.', and begins and ends with a letter or digit"
    return None


def label_value_fault(value: str) -> str | None:
    """Why `value` cannot be the value of a label; an empty one can."""
    if len(value) > LABEL_LENGTH:
        return f"has {len(value)} characters, at most {LABEL_LENGTH} are allowed"
    if value and not _WORD.fullmatch(value):
        return "may hold letters, digits, '-', '_' and '.', and begins and ends with a letter or digit"
    return None


def resource_fault(name: str) -> str | None:
    """Why `name` is no extended resource: `DOMAIN/WORD`, outside the domains that Kubernetes keeps for itself."""
    domain, slash, _ = name.rpartition("/")
    if not slash:
        return "is not written DOMAIN/NAME"
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or domain.startswith("requests."):
        return f"is in {domain}, which Kubernetes keeps for itself"
    return key_fault(name)


def variable_fault(name: str) -> str | None:
    """Why `name` is no environment variable that every cluster and every shell takes."""
    if not _VARIABLE.fullmatch(name):
        return "may hold letters, digits and '_', and does not begin with a digit"
    return None


def run_id_fault(run_id: str) -> str | None:
    """Why an image would refuse `run_id`: it becomes part of file names."""
    if not _RUN_ID.fullmatch(run_id):
        return "may hold up to 128 letters, digits, '.', '_' and '-', and begins with a letter or digit"
    return None


def text_fault(text: str) -> str | None:
    """Why `text` cannot reach a process unchanged: control characters and halves of characters cannot."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs"):
            return f"holds the control character {character!r}"
    return None


def subpath_fault(path: str) -> str | None:
    """Why `path` is no place inside a volume: relative, and never upwards."""
    if not path or path.startswith("/"):
        return "is not a relative path"
    if ".." in path.split("/"):
        return "leads upwards by '..'"
    return text_fault(path)


def registry_fault(prefix: str) -> str | None:
    """Why `prefix` cannot stand before an image's name: HOST[:PORT][/PATH]."""
    return None if _REGISTRY.fullmatch(prefix) else "is not HOST[:PORT][/PATH] with a path in lower case"


def image_parts(image: str) -> tuple[str, str | None, str | None] | None:
    """Name, tag and digest of a reference to an image; None where it is no such reference."""
    match = _IMAGE.fullmatch(image)
    return (match["name"], match["tag"], match["digest"]) if match else None


def has_registry(name: str) -> bool:
    """Whether the name of an image begins with a host; one without is looked for at docker.io."""
    host, slash, _ = name.partition("/")
    return bool(slash) and ("." in host or ":" in host or host == "localhost")


def image_fault(image: str) -> str | None:
    """Why `image` does not say which image is run: malformed, or without both tag and digest, or `latest`."""
    parts = image_parts(image)
    if parts is None:
        return "is not [HOST/]NAME:TAG or [HOST/]NAME@sha256:DIGEST"
    _, tag, digest = parts
    if digest is None and tag is None:
        return "has neither a tag nor a digest, which means :latest"
    if digest is None and tag == "latest":
        return "is tagged latest, which names another image tomorrow"
    return None


def quantity(value: object) -> Decimal | None:
    """A resource quantity (`"8"`, `"96Gi"`, `"500m"`, 1.5) as a number; None where it is not one, or negative."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    text = str(value)
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST_QUANTITY and text.isascii() else None
    if match is None:
        return None
    number, suffix = Decimal(match["number"]), match["suffix"] or ""
    if suffix in _BINARY:
        return number * Decimal(2 ** _BINARY[suffix])
    power = _POWERS[suffix] if suffix in _POWERS else int(suffix[1:])
    # Beyond any machine; Decimal would raise on the largest.
    return number.scaleb(power) if abs(power) <= 100 else None
