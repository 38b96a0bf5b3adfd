"""BuildKit's progress messages: protobuf read without a protobuf library, turned into build events.

An engine sends its progress as `moby.buildkit.trace`: base64 of a StatusResponse as BuildKit's
api/services/control/control.proto defines it. Read here, by field number:

    StatusResponse  1 vertexes, 2 statuses, 3 logs
    Vertex          1 digest, 3 name, 4 cached, 5 started, 6 completed, 7 error
    VertexStatus    1 id, 2 vertex, 4 current, 5 total
    VertexLog       1 vertex, 3 stream, 4 msg
    Timestamp       1 seconds, 2 nanos

Fields of any other number are skipped, so that a newer engine's are no error.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, field

from flagbench.engines.base import BuildEvent, StepDone, StepLog, StepProgress, StepStarted

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
Value = int | bytes


class TraceError(ValueError):
    """Bytes that are no StatusResponse."""


@dataclass
class _Step:
    name: str = ""
    started: float | None = None
    running: bool = False
    decoders: dict[int, codecs.IncrementalDecoder] = field(default_factory=dict)
    progress: dict[str, tuple[int, int]] = field(default_factory=dict)


class TraceReader:
    """Turns the messages of one build into events; knows which steps are under way."""

    def __init__(self) -> None:
        self._steps: dict[str, _Step] = {}

    def read(self, message: bytes) -> Iterator[BuildEvent]:
        """The events of one StatusResponse. Raises TraceError where the bytes are none."""
        vertexes, statuses, logs = [], [], []
        for number, value in fields(message):
            if number == 1:
                vertexes.append(_message(value))
            elif number == 2:
                statuses.append(_message(value))
            elif number == 3:
                logs.append(_message(value))
        ended: list[BuildEvent] = []
        for vertex in vertexes:
            started, done = self._vertex(vertex)
            if started:
                yield started
            if done:
                ended.append(done)
        # A step's last words come in the message that says it ended, or before: they are told first.
        for log in logs:
            yield from self._log(log)
        for status in statuses:
            yield from self._status(status)
        yield from ended

    def _vertex(self, raw: bytes) -> tuple[StepStarted | None, StepDone | None]:
        got = dict(fields(raw))
        id_ = _text(got.get(1))
        step = self._steps.setdefault(id_, _Step())
        step.name = _text(got.get(3)) or step.name
        begun = None
        if 5 in got and (started := _seconds(got[5])) != step.started:
            # A step that has ended may be begun again: BuildKit asks a source twice, say.
            step.started, step.running = started, True
            begun = StepStarted(id_, step.name)
        if 6 not in got or not step.running:
            return begun, None
        step.running = False
        seconds = max(0.0, _seconds(got[6]) - (step.started or 0.0))
        error = _text(got.get(7)) or None
        return begun, StepDone(id_, step.name, seconds, bool(_number(got.get(4))), error)

    def _log(self, raw: bytes) -> Iterator[BuildEvent]:
        got = dict(fields(raw))
        id_, stream = _text(got.get(1)), _number(got.get(3))
        step = self._steps.setdefault(id_, _Step())
        decoder = step.decoders.setdefault(stream, codecs.getincrementaldecoder("utf-8")("replace"))
        if text := decoder.decode(_message(got.get(4, b""))):
            yield StepLog(id_, text)

    def _status(self, raw: bytes) -> Iterator[BuildEvent]:
        got = dict(fields(raw))
        id_, what = _text(got.get(2)), _text(got.get(1))
        amounts = _number(got.get(4)), _number(got.get(5))
        step = self._steps.setdefault(id_, _Step())
        if step.progress.get(what) != amounts:
            step.progress[what] = amounts
            yield StepProgress(id_, what, *amounts)


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a protobuf message, in their order: number, and an int or the bytes it holds.

    Fixed-width fields, of which a trace has none that matter, come as the bytes they are. Raises
    TraceError where the message is cut off or malformed.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise TraceError("a field of number 0")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise TraceError(f"a field of the unknown kind {kind}")
        if length > len(message) - at:
            raise TraceError(f"a field of {length} bytes where {len(message) - at} are left")
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    # Seven bits a byte, lowest first; 64 bits need at most ten bytes.
    value = 0
    for count, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    raise TraceError("a number that does not end")


def _message(value: Value) -> bytes:
    if isinstance(value, int):
        raise TraceError("a number where bytes belong")
    return value


def _number(value: Value | None) -> int:
    if isinstance(value, bytes):
        raise TraceError("bytes where a number belongs")
    return value or 0


def _text(value: Value | None) -> str:
    return "" if value is None else _message(value).decode("utf-8", "replace")


def _seconds(value: Value) -> float:
    """A Timestamp as seconds since 1970."""
    got = dict(fields(_message(value)))
    return _number(got.get(1)) + _number(got.get(2)) / 1e9
