"""How a build looks while it runs: live on a terminal, lines in a pipe, or nothing."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Protocol, TextIO

from flagbench.engines.base import BuildFailed, StepDone, StepLog, StepProgress, StepStarted

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from flagbench.build.result import TierResult
    from flagbench.engines.base import BuildEvent

_INTERNAL = "[internal] "
"""How the engine names what it does for itself."""
_QUICK = 0.05
"""Seconds under which an internal step is not worth a line."""

_NAME_WIDTH = 40
"""Characters of a step's name that stand before its last output, which a narrow terminal would cut off."""


class View(Protocol):
    """What is told about a build while it runs."""

    def begin(self, tier: str) -> None:
        """A tier is being built."""

    def event(self, event: BuildEvent) -> None:
        """Something happened in it."""

    def end(self, result: TierResult | None) -> None:
        """It is done, or was not to be done; None: it ended with an error."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def failed(self, error: BuildFailed) -> None:
        """A step failed: its last lines. The error itself is told where the command ends."""


class QuietView:
    """Tells failures only."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream

    def begin(self, tier: str) -> None:
        """Nothing."""

    def event(self, event: BuildEvent) -> None:
        """Nothing."""

    def end(self, result: TierResult | None) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def failed(self, error: BuildFailed) -> None:
        """The step and its last lines."""
        if error.step:
            self._print(f"failed: {error.step}")
        for line in error.lines:
            self._print(f"  | {line}")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class PlainView(QuietView):
    """A line for each step that ends, and each line that a step prints: for pipes and logs."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._partial: dict[str, str] = {}
        self._begun: set[str] = set()

    def begin(self, tier: str) -> None:
        """The tier's name."""
        self._print(f"building {tier}")

    def event(self, event: BuildEvent) -> None:
        """A line where one is due."""
        if isinstance(event, StepStarted):
            if event.id in self._begun or event.name.startswith(_INTERNAL):
                return
            self._begun.add(event.id)
            self._print(f"  begin  {step_name(event.name)}")
        elif isinstance(event, StepLog):
            *lines, rest = (self._partial.pop(event.id, "") + event.text).split("\n")
            self._partial[event.id] = rest
            for line in lines:
                self._line(line)
        elif isinstance(event, StepDone) and is_worth_telling(event):
            rest = self._partial.pop(event.id, "")
            if rest:
                self._line(rest)
            self._print(f"  {mark(event):>6} {step_name(event.name)}")

    def _line(self, line: str) -> None:
        # A carriage return rewrites a line, as progress bars do: what stands at the end counts.
        self._print(f"    {line.rstrip().rpartition(chr(13))[2]}")

    def end(self, result: TierResult | None) -> None:
        """The tags and the time, or that nothing was to be done."""
        self._begun.clear()
        self._partial.clear()
        if result is not None:
            self._print(summary(result))

    def note(self, text: str) -> None:
        """The text."""
        self._print(text)


class TerminalView(QuietView):
    """A live line for each running step with its time and last output; a lasting one for each that ended."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._progress: Progress | None = None
        self._tasks: dict[str, tuple[TaskID, str]] = {}

    def begin(self, tier: str) -> None:
        """A heading, and the live display."""
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        console = Console(file=self._stream)
        self._progress = Progress(
            SpinnerColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
        )
        self._progress.start()
        self._say(f"building {tier}")

    def event(self, event: BuildEvent) -> None:
        """Redraw what changed."""
        progress = self._progress
        if progress is None:
            return
        if isinstance(event, StepStarted):
            if event.id not in self._tasks:
                name = step_name(event.name)
                self._tasks[event.id] = (progress.add_task(name, total=None), name)
        elif isinstance(event, StepLog):
            self._describe(event.id, event.text)
        elif isinstance(event, StepProgress):
            total = f"/{event.total / 1e6:.1f}" if event.total else ""
            self._describe(event.id, f"{event.what} {event.current / 1e6:.1f}{total} MB")
        elif isinstance(event, StepDone):
            task = self._tasks.pop(event.id, None)
            if task is not None:
                progress.remove_task(task[0])
            if is_worth_telling(event):
                self._say(f"  {mark(event):>6} {step_name(event.name)}")

    def end(self, result: TierResult | None) -> None:
        """Leave the lasting lines alone on the screen."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        self._tasks.clear()
        if result is not None:
            self._say(summary(result))

    def note(self, text: str) -> None:
        """The text, above what is live."""
        self._say(text)

    def _describe(self, step: str, text: str) -> None:
        """What a step printed last, beside its name: pip's downloads are watched this way."""
        last = next((line.strip() for line in reversed(text.replace("\r", "\n").split("\n")) if line.strip()), "")
        if self._progress is None or step not in self._tasks or not last:
            return
        task, name = self._tasks[step]
        short = name if len(name) <= _NAME_WIDTH else f"{name[:_NAME_WIDTH]}..."
        self._progress.update(task, description=f"{short}  > {last}")

    def _say(self, text: str) -> None:
        if self._progress is None:
            self._print(text)
        else:
            from rich.text import Text

            self._progress.console.print(Text(text), soft_wrap=True)


def choose_view(*, quiet: bool, json: bool, stream: TextIO | None = None) -> View:
    """The view for this command: `--json` and `--quiet` tell failures alone, on stderr."""
    target = sys.stderr if stream is None else stream
    if quiet or json:
        return QuietView(target)
    return TerminalView(target) if target.isatty() else PlainView(target)


def is_worth_telling(event: StepDone) -> bool:
    """Whether a step that ended is of interest: the engine's own quick ones are not."""
    return not event.name.startswith(_INTERNAL) or event.seconds >= _QUICK or event.error is not None


def mark(event: StepDone) -> str:
    """What became of a step, in a word: `cached`, `failed` or how long it took."""
    if event.error is not None:
        return "failed"
    return "cached" if event.cached else f"{event.seconds:.1f}s"


def summary(result: TierResult) -> str:
    """The line a tier ends with."""
    if result.skipped:
        return f"{result.tags[0]} is up to date"
    return f"{result.tags[0]} built in {result.seconds:.1f}s; also {', '.join(result.tags[1:])}"


def step_name(name: str) -> str:
    """A step's name in one line, without the mounts that every installing step has in front of its command."""
    return re.sub(r"--mount=\S+ ", "", " ".join(name.replace("\\\n", " ").split()))
