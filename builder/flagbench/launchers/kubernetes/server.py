"""What kubectl does: a server's own validation of a job by a dry run, and the job's submission."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flagbench.errors import ExitCode, FlagbenchError
from flagbench.launchers import Health
from flagbench.launchers.kubernetes.documents import job_list

ANSWER_SECONDS = 5
"""For the first answer of a server; a dry run of two documents takes well under a second more."""
_APPLY_SECONDS = 30
_NOT_ALLOWED = re.compile(r"\(Unauthorized\)|cannot \w+ resource")
"""The server refuses the user, whatever the documents say."""


@dataclass(frozen=True)
class ServerCheck:
    """What a server said of documents."""

    validated: bool
    """Whether a server looked at them."""
    refused: bool
    said: str
    """Its own words, errors or warnings; where none looked at them, why."""


class _NoAnswer(Exception):
    """kubectl could not be run, or gave no answer in time."""


def health() -> Health:
    """Whether jobs can be checked by a server and submitted; kubectl is not started, and no server contacted."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return Health(False, "kubectl is not installed", "needed to check and to submit jobs, not to print them")
    return Health(True, f"{kubectl} (no server contacted)")


def check_on_server(documents: Sequence[dict[str, Any]]) -> ServerCheck:
    """Have the documents validated by the server that kubectl is pointed at. Nothing is created there."""
    timeout = f"--request-timeout={ANSWER_SECONDS}s"
    try:
        answer = _kubectl(["get", "--raw", "/version", timeout], (), ANSWER_SECONDS + 1)
        if answer.returncode != 0:
            return ServerCheck(False, False, _last_line(answer.stderr) or "no server answers")
        apply = ["apply", "--dry-run=server", "--validate=strict", timeout, "--filename=-"]
        done = _kubectl(apply, documents, _APPLY_SECONDS)
    except _NoAnswer as error:
        return ServerCheck(False, False, str(error))
    if done.returncode != 0 and _NOT_ALLOWED.search(done.stderr):
        return ServerCheck(False, False, _last_line(done.stderr))
    return ServerCheck(True, done.returncode != 0, done.stderr.strip())


def submit(documents: Sequence[dict[str, Any]]) -> str:
    """Apply the documents; returns what kubectl said of each. Raises FlagbenchError (engine) where it cannot."""
    if shutil.which("kubectl") is None:
        raise FlagbenchError(
            "--submit needs kubectl, which is not installed", remedy="install it, or apply the printed job elsewhere"
        )
    try:
        done = _kubectl(["apply", "--validate=strict", "--filename=-"], documents, _APPLY_SECONDS)
        if done.returncode == 0:
            return done.stdout.strip()
        reason = " ".join(done.stderr.split())
    except _NoAnswer as error:
        reason = str(error)
    raise FlagbenchError(
        f"kubectl could not apply the job: {reason}",
        remedy="`kubectl config current-context` names the cluster; `flagbench job --check` names what is wrong",
        code=ExitCode.ENGINE,
    )


def _kubectl(
    arguments: list[str], documents: Sequence[dict[str, Any]], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run kubectl with the documents as its input."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise _NoAnswer("kubectl is not installed")
    try:
        return subprocess.run(
            [kubectl, *arguments],
            input=json.dumps(job_list(documents)),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _NoAnswer("the server did not answer in time") from None
    except OSError as error:
        raise _NoAnswer(f"kubectl cannot be run: {error.strerror}") from None


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
