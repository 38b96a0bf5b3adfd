"""Who may push which base, and why a registry did not take an image."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flagbench.catalog.load import load_catalog
from flagbench.catalog.model import Redistribution
from flagbench.engines.base import ImageInfo
from flagbench.engines.diagnose import diagnose_push
from flagbench.errors import ExitCode, FlagbenchError
from flagbench.oci.push import require_redistributable

STACK = replace(load_catalog(claims=False).stacks["cpu"], base_image="debian:bookworm-slim")


def on(base: str) -> ImageInfo:
    """An image that stands on that base."""
    return ImageInfo("sha256:1", {"org.opencontainers.image.base.name": base}, 1, (), {}, ())


def test_a_base_that_everybody_may_redistribute() -> None:
    assert STACK.base_redistribution.status == "allowed"
    require_redistributable(STACK, on("debian:bookworm-slim"))


@pytest.mark.parametrize(
    ("base", "status"),
    [
        ("debian:bookworm-slim", "restricted"),
        ("debian:bookworm-slim", "unknown"),
        ("vendor.example/base:1", "allowed"),
        ("", "allowed"),
    ],
)
def test_any_other_base_needs_consent(base: str, status: str) -> None:
    stack = replace(STACK, base_redistribution=Redistribution(status, "a reason", None))
    with pytest.raises(FlagbenchError) as caught:
        require_redistributable(stack, on(base))
    assert caught.value.code is ExitCode.USAGE
    assert "--i-may-redistribute" in caught.value.remedy


@pytest.mark.parametrize(
    ("printed", "remedy"),
    [
        ("no basic auth credentials", "docker login r.example:5000"),
        ("unauthorized: authentication required", "docker login r.example:5000"),
        ("denied: requested access to the resource is denied", "another path"),
        ('Get "https://r.example/v2/": x509: certificate signed by unknown authority', "certs.d/r.example:5000"),
        ("http: server gave HTTP response to HTTPS client", "insecure-registries"),
        ('Get "https://r.example/v2/": dial tcp: lookup r.example: no such host', "network"),
        ("received unexpected HTTP status: 500 Internal Server Error", "push again"),
    ],
)
def test_why_a_registry_did_not_take_an_image(printed: str, remedy: str) -> None:
    assert remedy in diagnose_push("r.example:5000/team/flagbench/glm:cpu", printed).remedy
