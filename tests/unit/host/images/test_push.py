"""Who may push which base."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.docker import ImageInfo
from flagbench.images.push import require_redistributable
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.stack import Redistribution
from flagbench_core.exit_codes import ExitCode

STACK = load_catalog_without_claims().stacks["cpu"]


def on(base: str) -> ImageInfo:
    """An image that stands on that base."""
    return ImageInfo("sha256:1", {"org.opencontainers.image.base.name": base}, (), ())


def test_a_base_that_everybody_may_redistribute() -> None:
    assert STACK.base.redistribution.status == "allowed"
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
    stack = replace(STACK, base=replace(STACK.base, redistribution=Redistribution(status, "a reason", None)))
    with pytest.raises(FlagbenchError) as caught:
        require_redistributable(stack, on(base))
    assert caught.value.code is ExitCode.USAGE
    assert "--i-may-redistribute" in caught.value.remedy
