"""The grammar of image references, and which images no registry is asked for."""

from __future__ import annotations

import pytest

from flagbench.errors import FlagbenchError
from flagbench.image_reference import (
    ImageReference,
    case_and_stack,
    image_of,
    is_ours,
    is_prefix,
    try_parse_reference,
)
from flagbench.images.build_options import BuildOptions
from flagbench.images.render.quoting import image_reference

DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("busybox", ImageReference("", "busybox")),
        ("team/x:1", ImageReference("", "team/x", "1")),
        ("localhost/x", ImageReference("localhost", "x")),
        ("r.io/a/b:c", ImageReference("r.io", "a/b", "c")),
        ("node:5000/x:1", ImageReference("node:5000", "x", "1")),
        (f"a@{DIGEST}", ImageReference("", "a", None, DIGEST)),
        (DIGEST, ImageReference("", "sha256", "0a" * 32)),
        ("Team/x:1", ImageReference("Team", "x", "1")),
        ("LOCALHOST/x", ImageReference("LOCALHOST", "x")),
        ("127.0.0.1/x", ImageReference("127.0.0.1", "x")),
        ("a_b/x", ImageReference("", "a_b/x")),
        (f"R.io:5000/a__b/c-d:V_1.2@{DIGEST}", ImageReference("R.io:5000", "a__b/c-d", "V_1.2", DIGEST)),
    ],
)
def test_a_reference_in_parts(text: str, reference: ImageReference) -> None:
    assert try_parse_reference(text) == reference


@pytest.mark.parametrize(
    "text",
    [
        *("", "A", "a:", "a@sha256:00", "a:1\n", "-x:1", "a b", "https://a", "a//b", "--privileged", "a:1@", "a:é"),
        *("a/B:1", "Team_a/x", "a.b_c/x", "a..b/x", "u:p@h/x:1", "[::1]:5000/a:1", "[::1]/a:1"),
    ],
)
def test_what_is_not_a_reference(text: str) -> None:
    assert try_parse_reference(text) is None


@pytest.mark.parametrize("text", ["a/B:1", "$(id):1", "a b", "a\nRUN id"])
def test_nothing_else_reaches_a_dockerfile(text: str) -> None:
    for take in (image_reference, lambda text: BuildOptions(base=text)):
        with pytest.raises(FlagbenchError):
            take(text)


def test_our_own_images() -> None:
    named = ("flagbench/glm:a100", f"flagbench/glm:a100@{DIGEST}", "localhost/flagbench/stack:cpu")
    assert all(map(is_ours, (*named, "docker.io/flagbench/glm:a100", "index.docker.io/flagbench/glm:a100")))
    others = ("r.io/flagbench/glm:a100", "localhost:5000/flagbench/glm:a100", "flagbench-mirror/cuda:11.8")
    assert not any(map(is_ours, (*others, "flagbench", "busybox")))


def test_case_and_stack() -> None:
    assert case_and_stack("glm:a100") == case_and_stack("flagbench/glm:a100") == ("glm", "a100")
    assert case_and_stack("glm") == ("glm", "")
    assert image_of("glm", "a100") == "flagbench/glm:a100"
    assert image_of("glm", "a100", "1.0") == "flagbench/glm:a100-1.0"


def test_what_is_a_prefix() -> None:
    assert all(map(is_prefix, ("host:5000/team", "r.io", "team", "Team")))
    assert not any(map(is_prefix, ("", "https://a", "host/Team", "a:1:2", f"a@{DIGEST}", "[::1]:5000", "a/", "a b")))
