"""`--describe`: prints the configuration that arguments resolve to. It imports nothing that a run needs."""

from __future__ import annotations

import json
import sys

from flagbench_cases.node import cli
from flagbench_cases.node.request import refuse_removed_folder, resolve, unresolved
from flagbench_cases.shared import output, user_home
from flagbench_cases.shared.errors import CaseError


def describe(argv: list[str]) -> int:
    """Print the resolved configuration; returns the exit code. Raises CaseError for arguments that are not valid."""
    arguments = cli.parse(argv)
    if user_home.leave_removed_folder():
        refuse_removed_folder(arguments)
    request = resolve(arguments, unresolved(argv, arguments)).request
    stdout = output.keep_stdout()
    described = {
        "config": request.config,
        "config_digest": request.config_digest,
        "stack": request.stack["name"],
    }
    try:
        output.write_line(stdout, json.dumps(described, sort_keys=True, ensure_ascii=False), "the configuration")
    except CaseError as error:
        sys.stderr.write(f"error: {error.message}\nfix: {error.remedy}\n")
        return int(error.code)
    return 0
