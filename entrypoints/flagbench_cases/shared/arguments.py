"""An argument parser that raises UsageError."""

import argparse
import re
import sys
from typing import Any, NoReturn

from flagbench_cases.shared import output
from flagbench_cases.shared.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of exiting, so that a usage error leaves a record too."""

    def error(self, message: str) -> NoReturn:
        # An unrecognised argument may be a misplaced secret, so its value is not shown.
        message = re.sub(r"(unrecognized arguments: )(.*)", lambda m: m.group(1) + _names(m.group(2)), message)
        raise UsageError(message, "see python -m flagbench_cases --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or version. Raises CaseError (14) if stdout cannot be written."""
        if (file or sys.stdout) is sys.__stdout__:
            output.write_line(1, message.rstrip("\n"), "the help")
        else:
            super()._print_message(message, file)


def _names(words: str) -> str:
    return " ".join(word.split("=", 1)[0] for word in words.split() if word.startswith("-")) or "(words)"
