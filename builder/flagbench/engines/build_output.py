"""What `docker build` prints, read for its steps and for why it failed.

Plain progress gives a step a number: `#5 [2/3] RUN ...`, then `#5 0.245 a line that it printed`, then
`#5 DONE 0.3s`, `#5 CACHED` or `#5 ERROR: ...`. Plain or drawn on a terminal, a failed build ends with the name and
the last lines of the failed step between two lines of dashes, and with the error.
"""

from __future__ import annotations

import re
from collections import deque
from textwrap import shorten

from flagbench.engines.base import BuildFailed, Step
from flagbench.engines.diagnose import diagnose

SHOWN_LINES = 20
# A cause may be far above the end: pip reports a certificate long before it gives up.
_KEPT_LINES = 200
_NUMBERED = re.compile(r"#(\d+) (.*)")
_LOGGED = re.compile(r"\d+\.\d+(?: (.*))?$")
_FRAMED = re.compile(r"(?:#\d+ )?\d+\.\d+ (.*)")
_ENDED = re.compile(r"DONE \d+(?:\.\d+)?s$|ERROR: ")
_DONE = re.compile(r"DONE (\d+(?:\.\d+)?)s$")
_FRAME = "------"
# Cursor movements, colours and window titles of the progress that is drawn on a terminal.
_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
# An excerpt of the Dockerfile, hints, and the drawn progress itself.
_NO_ERROR = re.compile(r"\s*(?:=>|\d+ \||-{5,}$|\[\+\]|Dockerfile:\d|See '|View build details)|\s+> ")
_ERROR = re.compile(r"ERROR|error|failed|executor")


class BuildOutput:
    """Reads the lines of one build, pull or push as they come."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._names: dict[str, str] = {}
        self._logs: dict[str, deque[str]] = {}
        self._failed_step: str | None = None
        self._framed: deque[str] | None = None
        self._framed_log: deque[str] = deque(maxlen=_KEPT_LINES)
        self._errors: deque[str] = deque(maxlen=SHOWN_LINES)

    def read(self, line: str) -> None:
        """Take one line, with or without its end."""
        line = _ESCAPE.sub("", line).rstrip("\r\n")
        if line == _FRAME:
            self._framed = None
        elif line.startswith(" > ") and line.endswith(":"):
            self._framed = self._framed_log if self._failed_step is None else deque()
            self._failed_step = self._failed_step or line[3:-1]
        elif self._framed is not None:
            found = _FRAMED.match(line)
            self._framed.append(_rewritten(found[1] if found else line))
        elif numbered := _NUMBERED.match(line):
            self._numbered(*numbered.groups())
        elif line.strip() and not _NO_ERROR.match(line):
            self._errors.append(line.strip())

    def failure(self, what: str = "cannot build", step: str | None = None) -> BuildFailed:
        """Why it failed, explained; `step` names what was done where the output does not."""
        step = self._failed_step or step
        last = next(reversed(self._errors), "")
        error = next((line for line in reversed(self._errors) if _ERROR.match(line)), last)
        lines, where = list(self._errors), ""
        if self._failed_step is not None:
            lines = self._log(self._failed_step)
            where = f" (in the step {shorten(self._failed_step, 100, placeholder='...')})"
        cause, remedy = diagnose(step, error, lines)
        return BuildFailed(f"{what}: {cause}{where}", remedy=remedy, step=step, lines=lines[-SHOWN_LINES:])

    @property
    def errors(self) -> str:
        """What the client said outside of any step."""
        return "\n".join(self._errors)

    def _numbered(self, number: str, text: str) -> None:
        if logged := _LOGGED.match(text):
            # After output without a line break the step's end is on the same line.
            printed, ended, text = (logged[1] or "").rpartition(f"#{number} ")
            if not (ended and _ENDED.match(text)):
                printed, text = logged[1] or "", ""
            self._logs.setdefault(number, deque(maxlen=_KEPT_LINES)).append(_rewritten(printed))
            if not text:
                return
        name = self._names.setdefault(number, text)
        if text == "CACHED":
            self.steps.append(Step(name, 0.0, cached=True))
        elif done := _DONE.match(text):
            self.steps.append(Step(name, float(done[1]), cached=False))

    def _log(self, step: str) -> list[str]:
        """What the failed step printed: its whole log where it was seen, else the lines in the frame."""
        number = next((number for number, name in self._names.items() if name == step), "")
        lines = [*self._logs.get(number, self._framed_log)]
        while lines and not lines[-1].strip():
            lines.pop()
        return lines


def _rewritten(line: str) -> str:
    """A carriage return rewrites a line, as progress bars do: the last state counts."""
    return line.rpartition("\r")[2]
