"""The one grammar of image references: `case:stack`, `[HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST]`, and image ids."""

from __future__ import annotations

import re
from dataclasses import dataclass

REPOSITORY = "flagbench"
LOCAL = f"localhost/{REPOSITORY}"
"""Prefix of names used in FROM. An engine that lacks an image looks for a name without a host on Docker Hub, where
somebody else may own it; `localhost` never leaves the engine's machine."""
_HUB_HOSTS = ("", "docker.io", "index.docker.io", "registry-1.docker.io")
_LOCAL_HOSTS = ("", "docker.io", "index.docker.io", "localhost")

# As github.com/distribution/reference defines them, without hosts in IPv6 notation and digests other than sha256.
_HOST_PART = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"{_HOST_PART}(\.{_HOST_PART})*(:[0-9]{{1,5}})?"
_PATH_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
DIGEST = r"sha256:[0-9a-f]{64}"
_REFERENCE = re.compile(
    rf"(?P<name>({_HOST}/)?{_PATH_PART}(/{_PATH_PART})*)"
    rf"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?(@(?P<digest>{DIGEST}))?"
)


@dataclass(frozen=True)
class ImageReference:
    """A parsed reference."""

    host: str
    """Registry, `host[:port]`; empty where the reference names none, which means Docker Hub."""
    path: str
    """Repository on that registry."""
    tag: str | None = None
    digest: str | None = None
    """`sha256:` and 64 hexadecimal digits."""

    @property
    def tagged(self) -> str:
        """Host, repository and tag, without digest."""
        if not self.tag:
            return self.name
        return f"{self.name}:{self.tag}"

    @property
    def name(self) -> str:
        """Host and repository, without tag and digest."""
        if not self.host:
            return self.path
        return f"{self.host}/{self.path}"


def parse_reference(text: str) -> ImageReference:
    """The parsed reference. Raises ValueError if `text` is not one."""
    reference = find_reference(text)
    if reference is None:
        raise ValueError(f"{text!r} is not an image reference")
    return reference


def find_reference(text: str) -> ImageReference | None:
    """The parsed reference; None if `text` is not one. An id, `sha256:...`, is one too."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return None
    first, slash, rest = match["name"].partition("/")
    # As Docker's splitDockerDomain decides whether the first part is a host or a folder of Docker Hub.
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost" or first != first.lower())
    if not is_host:
        return ImageReference("", match["name"], match["tag"], match["digest"])
    if re.fullmatch(_HOST, first) is None:
        return None  # such as a.b_c
    return ImageReference(first, rest, match["tag"], match["digest"])


def is_prefix(text: str) -> bool:
    """Whether `text` can precede a repository: `HOST[:PORT][/PATH]`."""
    return find_reference(f"{text}/repository") is not None


def is_on_docker_hub(text: str) -> bool:
    """Whether `text` names a repository of Docker Hub."""
    reference = find_reference(text)
    return reference is not None and reference.host in _HUB_HOSTS


def is_ours(text: str) -> bool:
    """Whether `text` names one of flagbench's own images: only a build or a load brings it, no registry is asked."""
    reference = find_reference(text)
    if reference is None:
        return False
    return reference.host in _LOCAL_HOSTS and reference.path.startswith(f"{REPOSITORY}/")


def case_and_stack(text: str) -> tuple[str, str]:
    """The two halves of `[flagbench/]case:stack`; the second is empty where there is no colon."""
    case, _, stack = text.removeprefix(f"{REPOSITORY}/").partition(":")
    return case, stack


def image_of(case: str, stack: str, version: str | None = None) -> str:
    """The name of a case's image on a stack: the moving tag, or the one of a version of flagbench."""
    if not version:
        return f"{REPOSITORY}/{case}:{stack}"
    return f"{REPOSITORY}/{case}:{stack}-{version}"
