"""From what a failing docker command printed to its cause and its remedy; most texts are a real engine's."""

from pathlib import Path

import pytest

from flagbench.images.docker_errors import BUILD, PULL, PUSH, find_reason, match_pattern


def explain(patterns, text):
    """The cause and the remedy of a command that printed this."""
    return match_pattern(patterns, text, reason=find_reason(text.splitlines()), host="r.example")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("pip_tls", "--ca-bundle"),
        ("pip_no_match", "--wheelhouse"),
        ("pip_hash", "flagbench lock"),
        ("apt_dns", "--apt-source"),
        ("nospace", "docker system df"),
        ("base_private", "docker login"),
        ("base_unknown", "--base"),
    ],
)
def test_a_recorded_failure_is_explained(name, remedy):
    recorded = Path(__file__).parent / "recorded" / f"{name}.txt"
    assert remedy in explain(BUILD, recorded.read_text(encoding="utf-8")).remedy


@pytest.mark.parametrize(
    ("patterns", "text", "remedy"),
    [
        (BUILD, "#8 0.2 flagbench: torch of the base was 1.12.0a0 and is 2.6.0 now", "from_base"),
        (BUILD, "0.210 flagbench: the base's python is Python 3.11, the stack is for 3.8", "--base"),
        (BUILD, "#8 0.2 E: Unable to locate package tini", "--apt-source"),
        (
            BUILD,
            "failed to create LLB definition: no match for platform in manifest sha256:e2: not found",
            "flagbench lock",
        ),
        (PULL, "no matching manifest for linux/amd64 in the manifest list entries", "flagbench lock"),
        (PULL, "pull access denied for a, repository does not exist or may require 'docker login'", "docker login"),
        (PULL, "toomanyrequests: You have reached your pull rate limit", "docker login"),
        (PULL, "manifest for debian:1 not found: manifest unknown", "--base"),
        (PUSH, "no basic auth credentials", "docker login r.example"),
        (PUSH, "denied: requested access to the resource is denied", "docker login"),
        (PUSH, 'Get "https://r.example/v2/": x509: certificate signed by unknown authority', "certificate"),
    ],
)
def test_a_known_text_is_explained(patterns, text, remedy):
    assert remedy in explain(patterns, text).remedy


@pytest.mark.parametrize(
    "text",
    [
        "#8 [2/4] RUN echo CERTIFICATE\n#8 0.1 gcc failed\nERROR: exit code: 3\n\nView build details: desktop://x\n",
        "#8 0.1 flagbench: taken from an earlier build: x\nERROR: exit code: 3\nSee 'docker build --help'.",
    ],
)
def test_any_other_failure_is_told_in_docker_s_words(text):
    assert explain(BUILD, text).cause == "ERROR: exit code: 3"


def test_text_from_outside_is_no_format_string():
    assert explain(BUILD, "flagbench: {base} {0.__class__} %s").cause == "{base} {0.__class__} %s"
