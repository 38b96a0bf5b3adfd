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
from flagbench.launchers.base import Health

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


def check_on_server(documents: Sequence[dict[str, Any]]) -> ServerCheck:
    """Have the documents validated by the server that kubectl is pointed at. Nothing is created there."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return ServerCheck(False, False, "kubectl is not installed")
    timeout = f"--request-timeout={ANSWER_SECONDS}s"
    try:
        answer = _run([kubectl, "get", "--raw", "/version", timeout], "", ANSWER_SECONDS + 1)
        if answer.returncode != 0:
            return ServerCheck(False, False, _last_line(answer.stderr) or "no server answers")
        apply = [kubectl, "apply", "--dry-run=server", "--validate=strict", timeout, "--filename=-"]
        done = _run(apply, _as_list(documents), _APPLY_SECONDS)
    except subprocess.TimeoutExpired:
        return ServerCheck(False, False, "the server did not answer in time")
    except OSError as error:
        return ServerCheck(False, False, f"kubectl cannot be run: {error.strerror}")
    if done.returncode != 0 and _NOT_ALLOWED.search(done.stderr):
        return ServerCheck(False, False, _last_line(done.stderr))
    return ServerCheck(True, done.returncode != 0, done.stderr.strip())


def submit(documents: Sequence[dict[str, Any]]) -> str:
    """Apply the documents; returns what kubectl said of each. Raises FlagbenchError (engine) where it cannot."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise FlagbenchError(
            "--submit needs kubectl, which is not installed", remedy="install it, or apply the printed job elsewhere"
        )
    apply = [kubectl, "apply", "--validate=strict", "--filename=-"]
    try:
        done = _run(apply, _as_list(documents), _APPLY_SECONDS)
    except subprocess.TimeoutExpired:
        reason = "no answer in time"
    except OSError as error:
        reason = str(error.strerror)
    else:
        if done.returncode == 0:
            return done.stdout.strip()
        reason = " ".join(done.stderr.split())
    raise FlagbenchError(
        f"kubectl could not apply the job: {reason}",
        remedy="`kubectl config current-context` names the cluster; `flagbench job --check` names what is wrong",
        code=ExitCode.ENGINE,
    )


def health() -> Health:
    """Whether jobs can be checked by a server and submitted. No process is started and no server is asked."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return Health(False, "kubectl is not installed", "needed to check and to submit jobs, not to print them")
    return Health(True, f"{kubectl} (no server contacted)")


def _as_list(documents: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})


def _run(command: list[str], text: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, input=text, capture_output=True, encoding="utf-8", errors="replace", timeout=seconds, check=False
    )


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
