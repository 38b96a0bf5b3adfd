"""What Kubernetes accepts as a name, a label or a quantity: rules for typed options, each a reason or None.

They are those of RFC 1123 names, qualified names and resource.Quantity. No maintained Python library has them; they
hold for options alone, so that an error names the option. Edited documents are the server's to check.
"""

from __future__ import annotations

import re
from decimal import Decimal

from flagbench.images import find_reference, is_prefix
from flagbench.options import text_fault

LABEL_LENGTH = 63
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_WORD = r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
_ENDS = "begins and ends with a letter or digit"
_QUANTITY = re.compile(r"(?P<number>\+?(\d+\.?\d*|\.\d+))((?P<unit>[KMGTPE]i|[numkMGTPE])|[eE](?P<power>[+-]?\d+))?")
_POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_LONGEST_QUANTITY = 32


def label_fault(name: str) -> str | None:
    """Why `name` is not an RFC 1123 label (the name of a namespace, a Service, a host or a container)."""
    return _name_fault(name, _LABEL, LABEL_LENGTH, f"lower-case letters, digits and '-', and {_ENDS}")


def subdomain_fault(name: str) -> str | None:
    """Why `name` is not an RFC 1123 subdomain (the name of a Secret or a PersistentVolumeClaim)."""
    return _name_fault(name, _SUBDOMAIN, 253, f"lower-case letters, digits, '-' and '.', each part {_ENDS}")


def label_value_fault(value: str) -> str | None:
    """Why `value` cannot be the value of a label; an empty one can."""
    return (
        _name_fault(value, _WORD, LABEL_LENGTH, f"letters, digits, '-', '_' and '.', and {_ENDS}") if value else None
    )


def _name_fault(name: str, pattern: str, longest: int, allowed: str) -> str | None:
    if len(name) > longest:
        return f"has {len(name)} characters, at most {longest} are allowed"
    return None if re.fullmatch(pattern, name) else f"may contain {allowed}"


def key_fault(key: str) -> str | None:
    """Why `key` cannot be the key of a label or an annotation, or the name of a resource: `[DOMAIN/]WORD`."""
    prefix, slash, word = key.rpartition("/")
    if slash and (fault := subdomain_fault(prefix)):
        return f"its part before '/' {fault}"
    return label_value_fault(word) if word else "has no name"


def resource_fault(name: str) -> str | None:
    """Why `name` is not an extended resource: `DOMAIN/WORD`, outside the domains that Kubernetes reserves."""
    domain, slash, _ = name.rpartition("/")
    if not slash:
        return "is not written DOMAIN/NAME"
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or domain.startswith("requests."):
        return f"is in {domain}, which is reserved for Kubernetes"
    return key_fault(name)


def variable_fault(name: str) -> str | None:
    """Why `name` is not an environment variable that every cluster and every shell takes."""
    valid = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    return None if valid else "may contain letters, digits and '_', and does not begin with a digit"


def subpath_fault(path: str) -> str | None:
    """Why `path` is not a folder inside a volume: relative, and never upwards."""
    if not path or path.startswith("/"):
        return "is not a relative path"
    if ".." in path.split("/"):
        return "leads upwards by '..'"
    return text_fault(path)


def registry_fault(prefix: str) -> str | None:
    """Why `prefix` cannot precede an image's name: HOST[:PORT][/PATH]."""
    return None if is_prefix(prefix) else "is not HOST[:PORT][/PATH] with a path in lower case"


def image_fault(image: str) -> str | None:
    """Why `image` does not say which image is run: malformed, or without both tag and digest, or `latest`."""
    reference = find_reference(image)
    if reference is None:
        return "is not [HOST/]NAME:TAG or [HOST/]NAME@sha256:DIGEST"
    if reference.digest is None and reference.tag is None:
        return "has neither a tag nor a digest, which means :latest"
    if reference.digest is None and reference.tag == "latest":
        return "is tagged latest, which names another image tomorrow"
    return None


def devices_fault(text: str) -> str | None:
    """Why `text` is not a number of devices."""
    return None if re.fullmatch(r"[1-9][0-9]{0,3}", text) else "is not a number of devices"


def quantity_fault(text: str) -> str | None:
    """Why `text` is not the quantity of a resource that a pod can have."""
    return None if quantity(text) else "is not a quantity above 0"


def quantity(text: str) -> Decimal | None:
    """A resource quantity (`8`, `96Gi`, `500m`) as a number; None where it is not one, or negative."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST_QUANTITY and text.isascii() else None
    if match is None:
        return None
    number, unit = Decimal(match["number"]), match["unit"]
    if unit in _BINARY:
        return number * Decimal(2 ** _BINARY[unit])
    power = int(match["power"] or _POWERS.get(unit, 0))
    # Beyond any machine; Decimal would raise on the largest.
    return number.scaleb(power) if abs(power) <= 100 else None
