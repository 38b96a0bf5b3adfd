"""The answer of an engine to a build: lines of JSON, read as events until the image or the failure."""

from __future__ import annotations

import base64
import binascii
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flagbench.engines.base import BuildEvent, BuildFailed, Built, EngineError, StepDone, StepLog
from flagbench.engines.diagnose import diagnose, shorten
from flagbench.engines.trace import TraceError, TraceReader
from flagbench.redaction import redact

SHOWN_LINES = 20
# What is looked at for a cause reaches further back: pip tells of a certificate long before it gives up.
_KEPT_LINES = 200
_AGAIN = "build again; if it stays so, look into the engine's log and at its version with `docker version`"


def read_build(lines: Iterable[bytes]) -> Iterator[BuildEvent]:
    """The events of a build, `Built` last.

    Raises:
        BuildFailed: the engine says that it failed.
        EngineError: a line is not what an engine sends, or the answer ends before the image or the failure.
    """
    trace, tails = TraceReader(), _Tails()
    image: str | None = None
    for line in lines:
        if not line.strip():
            continue
        message = decode(line)
        if error := failure(message):
            raise tails.failed(error)
        aux = message.get("aux")
        if message.get("id") == "moby.buildkit.trace":
            for event in _events(trace, aux):
                tails.note(event)
                yield event
        elif isinstance(aux, dict) and isinstance(aux.get("ID"), str):
            image = aux["ID"]
    if image is None:
        raise EngineError("the engine's answer ended before the build did", remedy=_AGAIN)
    yield Built(image)


def decode(line: bytes) -> dict[str, Any]:
    """A line of an engine's answer as an object. Raises EngineError where it is none."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise EngineError(f"the engine's answer cannot be read: {redact(repr(line[:80]))}", remedy=_AGAIN)
    return message


def failure(message: dict[str, Any]) -> str | None:
    """The error that a message tells of: engines before 28 give it twice, later ones as `errorDetail` alone."""
    detail = message.get("errorDetail")
    if isinstance(detail, dict):
        return redact(str(detail.get("message") or message.get("error") or "the engine gives no reason"))
    error = message.get("error")
    return redact(str(error)) if error else None


def _events(trace: TraceReader, aux: Any) -> Iterator[BuildEvent]:
    try:
        yield from trace.read(base64.b64decode(aux, validate=True))
    except (TraceError, TypeError, binascii.Error) as error:
        raise EngineError(f"the engine's progress cannot be read: {error}", remedy=_AGAIN) from None


@dataclass
class _Tails:
    """The last lines of each step, and the step that failed."""

    lines: dict[str, deque[str]] = field(default_factory=dict)
    step: StepDone | None = None

    def note(self, event: BuildEvent) -> None:
        if isinstance(event, StepLog):
            tail = self.lines.setdefault(event.id, deque([""], maxlen=_KEPT_LINES))
            first, *rest = event.text.split("\n")
            tail[-1] += first
            tail.extend(rest)
        # Steps beside the failing one end as cancelled, before it or after.
        elif isinstance(event, StepDone) and event.error and (not self.step or "canceled" in str(self.step.error)):
            self.step = event

    def failed(self, error: str) -> BuildFailed:
        """The failure, explained."""
        if self.step is None:
            found = diagnose(None, error)
            return BuildFailed(f"cannot build: {found.cause}", remedy=found.remedy)
        # A carriage return rewrites a line, as progress bars do: what stands at the end counts.
        tail = [redact(line.rstrip("\r").rpartition("\r")[2]) for line in self.lines.get(self.step.id, ())]
        while tail and not tail[-1].strip():
            tail.pop()
        found = diagnose(self.step.name, error, tail)
        return BuildFailed(
            f"cannot build: {found.cause} (in the step {shorten(redact(self.step.name))})",
            remedy=found.remedy,
            step=redact(self.step.name),
            lines=tail[-SHOWN_LINES:],
        )
