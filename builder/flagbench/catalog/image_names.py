"""The names of flagbench's own images, for which no registry is ever asked."""

from __future__ import annotations

REPOSITORY = "flagbench"
LOCAL = f"localhost/{REPOSITORY}"
"""Prefix of names used in FROM. An engine that lacks an image looks for a name without a host on Docker Hub, where
somebody else may own it; `localhost` never leaves the engine's machine."""


def is_ours(reference: str) -> bool:
    """Whether a reference names an image that only a build or a load can bring here."""
    for host in ("docker.io/", "index.docker.io/", "localhost/"):
        reference = reference.removeprefix(host)
    return reference.startswith(f"{REPOSITORY}/")
