"""From what a failing build printed to its cause and its remedy; most texts are a real engine's, apt's and pip's."""

import pytest

from flagbench.engines.diagnose import GENERIC_REMEDY, diagnose

from .conftest import output_of, recorded

RUN = "[2/3] RUN install.sh pip python -m pip install -r requirements.lock"
EXIT = "executor failed running [/bin/sh -c install.sh]: exit code: 1"
LOAD = "[internal] load metadata for registry.example/vendor/base:1"

RECORDED = {
    "pip_tls": "--ca-bundle",
    "pip_no_match": "--wheelhouse",
    "pip_hash": "flagbench lock",
    "pip_dns": "HTTPS_PROXY",
    "apt_dns": "--apt-source",
    "nospace": "docker system df",
    "killed": "MAX_JOBS",
    "pull_failure": "a proxy",
    "base_private": "docker login",
    "base_unknown": "name another with --base",
    "unknown_instruction": "correct the template",
    "missing_file": "COPY",
    "failing_step": GENERIC_REMEDY,
}
"""What a real engine printed, and a part of the remedy."""

WRITTEN = [
    (RUN, EXIT, "flagbench: torch of the base was 1.12.0a0 and is 2.6.0 now: why", "from_base"),
    (RUN, EXIT, "flagbench: Python is 3.11, the stack expects 3.8", "--base"),
    (RUN, EXIT, "Looking in links: /w\nERROR: No matching distribution found for x==1", "--wheelhouse"),
    (RUN, EXIT, "E: Unable to locate package tini", "--apt-source"),
    (RUN, EXIT, "g++: fatal error: Killed signal terminated program cc1plus", "MAX_JOBS"),
    (RUN, 'process "/bin/sh -c x" did not complete successfully: exit code: 137', "", "MAX_JOBS"),
    (RUN, EXIT, "exec /bin/sh: exec format error", "add a stack"),
    (RUN, EXIT, "ERROR: HTTP error 403 while getting https://index.example/x", "--pip-source"),
    (LOAD, "pull access denied, repository does not exist or may require authorization", "", "docker login"),
    (
        "[internal] load metadata for localhost/flagbench/stack:cpu",
        'failed to do request: Head "http://localhost/v2/flagbench/stack/manifests/cpu": dial tcp 127.0.0.1:80: '
        "connect: connection refused",
        "",
        "flagbench build",
    ),
    (LOAD, "toomanyrequests: You have reached your pull rate limit", "", "docker login"),
    (LOAD, "x509: certificate signed by unknown authority", "", "certs.d"),
    (LOAD, "no match for platform in manifest sha256:0: not found", "", "--base"),
    ("[stage-1 1/4] FROM registry.example/base:1@sha256:0", "unauthorized", "", "docker login"),
    ("pull registry.example/a:1", "unexpected EOF", "", "a proxy"),
]


@pytest.mark.parametrize(("name", "remedy"), RECORDED.items())
def test_a_recorded_failure_is_explained(name, remedy):
    assert remedy in output_of(recorded(name)).failure().remedy


@pytest.mark.parametrize(("step", "error", "lines", "remedy"), WRITTEN)
def test_a_known_text_is_explained(step, error, lines, remedy):
    assert remedy in diagnose(step, error, lines.splitlines()).remedy


def test_a_retried_connection_is_not_the_cause():
    lines = ["WARNING: Retrying after connection broken by 'NewConnectionError(...)'", "error: command 'gcc' failed"]
    assert diagnose(RUN, EXIT, lines).cause == "a command ended with exit code 1"


def test_a_command_that_only_mentions_a_symptom_is_not_diagnosed():
    step = "[2/2] RUN echo FROM registry.example/x:1 CERTIFICATE_VERIFY_FAILED"
    error = "executor failed running [/bin/sh -c echo CERTIFICATE_VERIFY_FAILED]: exit code: 2"
    assert diagnose(step, error, ["nothing of it"]).cause == "a command ended with exit code 2"
    assert diagnose(step, error).cause == "a command ended with exit code 2"


def test_text_from_outside_is_no_format_string():
    found = diagnose(RUN, EXIT, ["flagbench: {base} {0.__class__} %s"])
    assert found.cause == "{base} {0.__class__} %s"
