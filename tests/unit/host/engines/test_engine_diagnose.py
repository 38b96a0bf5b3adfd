"""From what a failing build printed to its cause and its remedy; most texts are a real engine's, apt's and pip's."""

import pytest

from flagbench.engines.diagnose import GENERIC_REMEDY, diagnose

from .conftest import output_of, recorded

RUN = "[2/3] RUN install.sh pip python -m pip install -r requirements.lock"
EXIT = "executor failed running [/bin/sh -c install.sh]: exit code: 1"
LOAD = "[internal] load metadata for registry.example/vendor/base:1"

RECORDED = {
    "pip_tls": ("certificate is not trusted", "--ca-bundle"),
    "pip_no_match": ("no file of six==9.9.9", "--wheelhouse"),
    "pip_hash": ("six==1.16.0 is not the file that the stack's lock names", "flagbench lock"),
    "pip_dns": ("pip could not reach the package index", "--pip-source"),
    "apt_dns": ("apt could not find the host deb.invalid", "--apt-source"),
    "nospace": ("disk of the engine is full", "docker system df"),
    "killed": ("a process was killed", "MAX_JOBS"),
    "pull_failure": ("registry of the base registry.invalid/vendor/base:1 cannot be reached", "--base"),
    "base_private": ("does not let you pull the base localhost:5011/private/base:1", "docker login"),
    "base_unknown": ("has no base localhost:5011/vendor/base:11.6", "--base"),
    "pax": ("PAX header", "GNU-format"),
    "secret": ("mounts a secret", "inputs"),
    "base_noname": ("no base image was named", "--base"),
    "unknown_instruction": ("line 2: unknown instruction: RUM", "flagbench render"),
    "missing_file": ("build context has no /nothing", "COPY"),
    "failing_step": ("a command ended with exit code 3", GENERIC_REMEDY),
}

WRITTEN = [
    (RUN, EXIT, "flagbench: torch of the base was 1.12.0a0 and is 2.6.0 now: why", "an install made it", "from_base"),
    (RUN, EXIT, "flagbench: Python is 3.11, the stack expects 3.8", "the stack expects 3.8", "--base"),
    (
        RUN,
        EXIT,
        "Looking in links: /w\nERROR: No matching distribution found for x==1",
        "wheelhouse",
        "pip download",
    ),
    (RUN, EXIT, "ERROR: In --require-hashes mode, all requirements must be pinned", "has no hash", "lock"),
    (RUN, EXIT, "E: Unable to locate package tini", "no package tini", "--apt-source"),
    (RUN, EXIT, "E: Failed to fetch http://a.example/x  404  Not Found", "fetch http://a.example/x", "--apt-source"),
    (RUN, EXIT, "g++: fatal error: Killed signal terminated program cc1plus", "killed", "MAX_JOBS"),
    (RUN, 'process "/bin/sh -c x" did not complete successfully: exit code: 137', "", "killed", "MAX_JOBS"),
    (RUN, EXIT, "exec /bin/sh: exec format error", "another processor", "add a stack"),
    (RUN, EXIT, "ERROR: HTTP error 403 while getting https://index.example/x", "refuses access", "--pip-source"),
    (None, "the --mount option requires BuildKit. Refer to https://docs.example", "", "without BuildKit", "20.10"),
    (None, "failed to create LLB definition: invalid reference format", "", "malformed", "registry/name:tag"),
    (
        LOAD,
        "pull access denied, repository does not exist or may require authorization",
        "",
        "private",
        "docker login",
    ),
    (
        "[internal] load metadata for localhost/flagbench/stack:cpu",
        'failed to do request: Head "http://localhost/v2/flagbench/stack/manifests/cpu": dial tcp 127.0.0.1:80: '
        "connect: connection refused",
        "",
        "no image localhost/flagbench/stack:cpu",
        "flagbench build",
    ),
    (LOAD, "toomanyrequests: You have reached your pull rate limit", "", "refuses more pulls", "docker login"),
    (LOAD, "x509: certificate signed by unknown authority", "", "does not trust", "certs.d"),
    (LOAD, "no match for platform in manifest sha256:0: not found", "", "platform asked for", "add a stack"),
    (
        "[stage-1 1/4] FROM registry.example/base:1@sha256:0",
        "unauthorized",
        "",
        "base registry.example/base:1",
        "login",
    ),
    ("pull registry.example/a:1", "manifest unknown", "", "has no base registry.example/a:1", "--base"),
    ("pull registry.example/a:1", "dial tcp: lookup: no such host", "", "cannot be reached", "--base"),
    ("pull registry.example/a:1", "unexpected EOF", "", "cannot be reached", "--base"),
]


@pytest.mark.parametrize(("name", "cause", "remedy"), [(name, *said) for name, said in RECORDED.items()])
def test_a_recorded_failure_is_explained(name, cause, remedy):
    failed = output_of(recorded(name)).failure()
    assert cause in failed.message
    assert remedy in failed.remedy


@pytest.mark.parametrize(("step", "error", "lines", "cause", "remedy"), WRITTEN)
def test_a_known_text_is_explained(step, error, lines, cause, remedy):
    found = diagnose(step, error, lines.splitlines())
    assert cause in found.cause
    assert remedy in found.remedy


def test_a_broken_connection_that_was_tried_again_is_not_the_cause():
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
