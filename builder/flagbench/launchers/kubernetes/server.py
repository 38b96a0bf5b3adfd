"""A server's own validation: `kubectl apply --dry-run=server`, where kubectl is installed and a server answers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ANSWER_SECONDS = 5
"""For the first answer of a server; a dry run of two documents takes well under a second more."""
_DRY_RUN_SECONDS = 30
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
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)})
        apply = [kubectl, "apply", "--dry-run=server", "--validate=strict", timeout, "--filename=-"]
        done = _run(apply, items, _DRY_RUN_SECONDS)
    except subprocess.TimeoutExpired:
        return ServerCheck(False, False, "the server did not answer in time")
    except OSError as error:
        return ServerCheck(False, False, f"kubectl cannot be run: {error.strerror}")
    if done.returncode != 0 and _NOT_ALLOWED.search(done.stderr):
        return ServerCheck(False, False, _last_line(done.stderr))
    return ServerCheck(True, done.returncode != 0, done.stderr.strip())


def _run(command: list[str], text: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, input=text, capture_output=True, encoding="utf-8", errors="replace", timeout=seconds, check=False
    )


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
