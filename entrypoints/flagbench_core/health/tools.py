"""Runs a vendor's tool inside the process that reads health, whose own deadline ends both."""

from __future__ import annotations

import os
import subprocess
from typing import NamedTuple, Sequence


class ToolError(Exception):
    """A vendor's tool cannot be asked, or lists no device; the text says why."""


class ToolAnswer(NamedTuple):
    """What a tool printed."""

    stdout: str
    stderr: str


def run_tool(command: Sequence[str]) -> ToolAnswer:
    """What a tool prints, for any exit code. Raises ToolError if it cannot be started."""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, LC_ALL="C"),  # the parsers expect English output
            check=False,
        )
    except OSError as error:
        raise ToolError("%s cannot be run (%s)" % (command[0], error.strerror or error)) from None
    return ToolAnswer(done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
