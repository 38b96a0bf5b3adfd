"""An argument parser that raises UsageError and names the command that was typed."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from flagbench_cases.shared import manifests, output
from flagbench_cases.shared.errors import UsageError
from flagbench_cases.shared.system import in_image


def command_name() -> str:
    """What is typed before the arguments: `docker run IMAGE` of an image, whose name is not known inside."""
    if in_image():
        return "docker run IMAGE"
    return "python -m flagbench_cases"


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of exiting, so that a usage error leaves a record too."""

    def add_case(self) -> None:
        """Add the case, the first argument. The entry point of an image has it, so its help does not ask for it."""
        names = ", ".join(manifests.case_names())
        text = f"one of: {names}"
        if in_image():
            text = argparse.SUPPRESS
        self.add_argument("case", help=text)

    def error(self, message: str) -> NoReturn:
        # An unrecognised argument may be a misplaced secret, so its value is not shown.
        prefix = "unrecognized arguments: "
        before, separator, words = message.partition(prefix)
        if separator:
            message = before + prefix + _names(words)
        raise UsageError(message, f"see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or version. Raises CaseError (NOT_STORED) if stdout cannot be written."""
        if (file or sys.stdout) is sys.__stdout__:
            output.write_line(1, message.rstrip("\n"), "the help")
        else:
            super()._print_message(message, file)


def _names(words: str) -> str:
    """The options among words, without their values."""
    names = [word.split("=", 1)[0] for word in words.split() if word.startswith("-")]
    return " ".join(names) or "(words)"
