"""Writes the termination message of a Kubernetes pod: the outcome of the run in one line that outlives the logs.

The kubelet reads the file after the container has ended and keeps at most 4096 bytes in the pod's status.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from flagbench_cases.record.assemble import strict
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.shared.redaction import redact

TERMINATION_VARIABLE = "FLAGBENCH_TERMINATION_LOG"
"""The environment variable with the path of the message, which our pod manifests set."""
MAX_MESSAGE_BYTES = 4096
"""The kubelet's limit."""


def of_record(record: dict[str, Any], gate: str | None, code: int, lost: str | None = None) -> dict[str, Any]:
    """Return the message of node 0: the record's status, its gate metric (see `Request.gate`) and its id.

    `code` is the exit code of the process; `lost`: why the record could not be written everywhere it was requested.
    """
    return {
        "state": record["status"]["state"],
        "exit_code": code,
        "reason": _join_reasons(record["status"]["reason"], lost),
        "gate": _gate_metric(record, gate),
        "record_id": record["record_id"],
    }


def _gate_metric(record: dict[str, Any], gate: str | None) -> dict[str, Any] | None:
    for metric in record["metrics"]:
        if metric["name"] == gate:
            return {key: metric[key] for key in ("name", "value", "unit")}
    return None


def of_outcome(outcome: Outcome, code: int | None = None, lost: str | None = None) -> dict[str, Any]:
    """Return the message of a node other than node 0, which writes a bundle but no record.

    `code` is the exit code of the process, by default that of the outcome; `lost`: why the node's bundle could not be
    written everywhere it was requested.
    """
    if code is None:
        code = int(outcome.exit_code)
    return {
        "state": outcome.state,
        "exit_code": code,
        "reason": _join_reasons(outcome.reason, lost),
        "gate": None,
        "record_id": None,
    }


def _join_reasons(*reasons: str | None) -> str | None:
    return "; ".join(reason for reason in reasons if reason) or None


def to_line(message: dict[str, Any]) -> str:
    """Return the message as one line of ASCII, shorter than MAX_MESSAGE_BYTES: its reason is cut if necessary."""
    kept_reason = redact(message["reason"] or "")
    shown_reason = kept_reason
    while True:
        line = json.dumps(strict(dict(message, reason=shown_reason or None)), separators=(",", ":"))
        if len(line) < MAX_MESSAGE_BYTES or not kept_reason:
            return line
        # By a tenth at a time, since one character may need several bytes in JSON.
        kept_reason = kept_reason[: len(kept_reason) * 9 // 10]
        shown_reason = kept_reason + "..."


def write(message: dict[str, Any]) -> None:
    """Write the message to the file named by FLAGBENCH_TERMINATION_LOG, if set. A failure is only a warning."""
    path = os.environ.get(TERMINATION_VARIABLE)
    if not path:
        return
    try:
        # Written in place: the kubelet bind-mounts the file, so it cannot be replaced.
        with open(path, "w", encoding="ascii") as file:
            file.write(to_line(message) + "\n")
    except OSError as error:
        sys.stderr.write(
            f"warning: the termination message could not be written to {path} ({error.strerror or error})\n"
        )
        sys.stderr.flush()
