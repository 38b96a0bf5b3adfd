"""Parses and makes image references: `case:stack`, `[HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST]`, and image ids.

All commands use this module, so that a reference means the same everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NAMESPACE = "flagbench"
"""The first part of the paths of our images: flagbench/CASE:STACK."""
LOCAL = f"localhost/{NAMESPACE}"
"""The prefix of the names of our images in FROM. An engine that lacks an image looks for a name without a host on
Docker Hub, where somebody else may own it; `localhost` never leaves the engine's machine."""
_HUB_HOSTS = ("", "docker.io", "index.docker.io", "registry-1.docker.io")
"""The hosts under which Docker Hub answers. A reference without a host means Docker Hub, too."""
_LOCAL_HOSTS = ("", "docker.io", "index.docker.io", "localhost")
"""The hosts in the names that engines give to images that were built or loaded on their machine.

An engine adds that of Docker Hub, under one of two names, or `localhost`. No engine adds registry-1.docker.io.
"""

# As github.com/distribution/reference defines them, without hosts in IPv6 notation and digests other than sha256.
_HOST_PART = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"{_HOST_PART}(\.{_HOST_PART})*(:[0-9]{{1,5}})?"
_PATH_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
DIGEST = r"sha256:[0-9a-f]{64}"
"""The pattern of a digest, which is also the form of an image's id."""
_REFERENCE = re.compile(
    rf"(?P<name>({_HOST}/)?{_PATH_PART}(/{_PATH_PART})*)"
    rf"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?(@(?P<digest>{DIGEST}))?"
)


@dataclass(frozen=True)
class ImageReference:
    """A parsed reference."""

    host: str
    """The registry, `host[:port]`; empty if the reference names none, which means Docker Hub."""
    path: str
    """The repository on that registry."""
    tag: str | None = None
    digest: str | None = None
    """`sha256:` and 64 hexadecimal digits."""

    @property
    def tagged(self) -> str:
        """The reference without its digest: host, repository and tag."""
        if not self.tag:
            return self.name
        return f"{self.name}:{self.tag}"

    @property
    def name(self) -> str:
        """The reference without tag and digest: host and repository."""
        if not self.host:
            return self.path
        return f"{self.host}/{self.path}"


def parse_reference(text: str) -> ImageReference:
    """The parsed reference. Raises ValueError if `text` is not one."""
    reference = try_parse_reference(text)
    if reference is None:
        raise ValueError(f"{text!r} is not an image reference")
    return reference


def try_parse_reference(text: str) -> ImageReference | None:
    """The parsed reference; None if `text` is not one.

    An image's id, `sha256:<64 hex>`, has the form of a reference. It is parsed as the path `sha256` with the digits
    as its tag, and `tagged` is the id again.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return None
    host, slash, path = match["name"].partition("/")
    if not slash or not _looks_like_host(host):
        return ImageReference("", match["name"], match["tag"], match["digest"])
    if re.fullmatch(_HOST, host) is None:
        return None  # such as a.b_c
    return ImageReference(host, path, match["tag"], match["digest"])


def _looks_like_host(first_part: str) -> bool:
    """Whether the first part of a name is a host, not a folder of Docker Hub, as in Docker's splitDockerDomain."""
    if first_part == "localhost":
        return True
    return "." in first_part or ":" in first_part or first_part != first_part.lower()


def is_prefix(text: str) -> bool:
    """Whether `text` can precede a repository: `HOST[:PORT][/PATH]`."""
    return try_parse_reference(f"{text}/repository") is not None


def is_on_docker_hub(text: str) -> bool:
    """Whether `text` names a repository of Docker Hub."""
    reference = try_parse_reference(text)
    return reference is not None and reference.host in _HUB_HOSTS


def is_ours(text: str) -> bool:
    """Whether `text` names one of our own images. They are built or loaded; no registry is asked for them."""
    reference = try_parse_reference(text)
    if reference is None:
        return False
    return reference.host in _LOCAL_HOSTS and reference.path.startswith(f"{NAMESPACE}/")


def case_and_stack(text: str) -> tuple[str, str]:
    """The case and the stack of `[flagbench/]case:stack`; the stack is empty if there is no colon."""
    case, _, stack = text.removeprefix(f"{NAMESPACE}/").partition(":")
    return case, stack


def image_of(case: str, stack: str, version: str | None = None) -> str:
    """The name of a case's image on a stack. Its tag moves with each build, unless a `version` is given."""
    if not version:
        return f"{NAMESPACE}/{case}:{stack}"
    return f"{NAMESPACE}/{case}:{stack}-{version}"
