"""The dry run of a server through kubectl: an executable of that name stands in for one that has a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flagbench.launchers.kubernetes import server
from flagbench.launchers.kubernetes.server import ServerCheck, check_on_server

DOCUMENTS = [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}]
JOB = "job distilbert:cpu --for kubernetes"
Kubectl = Callable[..., Path]
Flagbench = Callable[..., Any]


@pytest.fixture
def kubectl(no_kubectl: Path) -> Kubectl:
    """`kubectl(version=..., apply=...)`: shell lines for the two requests; returns the log of its arguments."""

    def write(version: str = "exit 0", apply: str = "exit 0") -> Path:
        log = no_kubectl / "log"
        script = no_kubectl / "kubectl"
        script.write_text(
            f'#!/bin/sh\nPATH=/usr/bin:/bin\necho "$@" >> {log}\n'
            f'case "$1" in\nget) {version};;\napply) cat > {no_kubectl}/applied; {apply};;\nesac\n'
        )
        script.chmod(0o755)
        return log

    return write


DENIED = "error: You must be logged in to the server (Unauthorized)"
FORBIDDEN = 'User "me" cannot create resource "jobs"'


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, ServerCheck(True, False, "")),
        ({"apply": "echo 'spec.x: Unsupported' >&2; exit 1"}, ServerCheck(True, True, "spec.x: Unsupported")),
        ({"apply": "echo 'Warning: PodSecurity' >&2"}, ServerCheck(True, False, "Warning: PodSecurity")),
        ({"version": "echo refused >&2; exit 1"}, ServerCheck(False, False, "refused")),
        ({"apply": f"echo '{DENIED}' >&2; exit 1"}, ServerCheck(False, False, DENIED)),
        ({"apply": f"echo '{FORBIDDEN}' >&2; exit 1"}, ServerCheck(False, False, FORBIDDEN)),
    ],
)
def test_a_server_is_given_the_documents_creates_nothing_and_is_quoted(
    kubectl: Kubectl, no_kubectl: Path, answers: dict[str, str], expected: ServerCheck
) -> None:
    log = kubectl(**answers)
    assert check_on_server(DOCUMENTS) == expected
    if "version" not in answers:
        assert {"--dry-run=server", "--validate=strict"} <= set(log.read_text().splitlines()[-1].split())
        assert json.loads((no_kubectl / "applied").read_text())["items"] == DOCUMENTS


def test_a_server_that_never_answers(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ANSWER_SECONDS", -0.9)
    kubectl(version="exec sleep 600")
    assert not check_on_server(DOCUMENTS).validated


def test_a_kubectl_that_is_missing_or_cannot_be_run(no_kubectl: Path) -> None:
    assert check_on_server(DOCUMENTS) == ServerCheck(False, False, "kubectl is not installed")
    (no_kubectl / "kubectl").write_text("#!/nonexistent\n")
    (no_kubectl / "kubectl").chmod(0o755)
    assert not check_on_server(DOCUMENTS).validated


@pytest.mark.parametrize(("apply", "code"), [("exit 0", 0), ("echo 'Invalid value' >&2; exit 1", 2)])
def test_the_command_ends_by_what_the_server_says(
    kubectl: Kubectl, tmp_path: Path, flagbench: Flagbench, apply: str, code: int
) -> None:
    kubectl(apply=apply)
    assert flagbench(f"{JOB} --out {tmp_path}/job.yaml").code == 0
    ended = flagbench(f"job --check {tmp_path}/job.yaml --json")
    printed = json.loads(ended.out)
    assert (ended.code, printed["problems"]) == (code, [])
    assert printed["server"] == {"validated": True, "refused": code == 2, "said": "Invalid value" * (code == 2)}
    shown = flagbench(f"job --check {tmp_path}/job.yaml")
    assert (shown.code, "not validated" in shown.err) == (code, False)


def test_a_job_is_submitted(kubectl: Kubectl, no_kubectl: Path, flagbench: Flagbench) -> None:
    log = kubectl(apply="echo job.batch/fb created")
    assert flagbench(f"{JOB} --name fb --submit")[:2] == (0, "job.batch/fb created\n")
    (applied,) = log.read_text().splitlines()
    assert "--dry-run" not in applied
    items = json.loads((no_kubectl / "applied").read_text())["items"]
    assert [item["kind"] for item in items] == ["Service", "Job"]
    assert flagbench(f"{JOB} --name fb --run-id r --submit --json").json == {"job": "fb", "run_id": "r"}


def test_a_job_that_cannot_be_submitted(kubectl: Kubectl, flagbench: Flagbench) -> None:
    kubectl(apply="echo 'Error from server (Forbidden)' >&2; exit 1")
    code, out, err = flagbench(f"{JOB} --submit")
    assert (code, out, "Forbidden" in err) == (15, "", True)


@pytest.mark.usefixtures("no_kubectl")
def test_submission_needs_kubectl(flagbench: Flagbench) -> None:
    ended = flagbench(f"{JOB} --submit")
    assert (ended.code, "kubectl" in ended.err) == (2, True)
    assert not server.health().ok


def test_health_names_the_kubectl_that_is_used(kubectl: Kubectl, no_kubectl: Path) -> None:
    kubectl(version="exit 1")
    assert server.health().ok
    assert str(no_kubectl / "kubectl") in server.health().detail
