"""Signals that ask this process to stop: noted from the first moment until the record is printed, never fatal.

It is imported before all else of this package, and imports next to nothing: until then a signal leaves no record.
"""

import signal
import types
from typing import Any, Dict, Optional

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Truthy once a signal has come. One that the caller ignores stays ignored, as SIGHUP under nohup."""

    def __init__(self) -> None:
        self.number: Optional[int] = None
        self._before: Dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Optional[types.FrameType]) -> None:
        if self.number is None:
            self.number = number

    def __bool__(self) -> bool:
        return self.number is not None

    @property
    def words(self) -> str:
        """What came, for the record."""
        return "interrupted by %s" % signal.Signals(self.number).name if self.number else "not interrupted"
