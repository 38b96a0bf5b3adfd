"""msgspec's conversions, for code that runs in several threads.

msgspec builds its description of a type when the type is first used, and runs Python code meanwhile. A second thread
that uses the type then finds half of the description, and the process ends by a segmentation fault (seen with msgspec
0.22). The conversions hold the interpreter's lock in any case, so a lock of their own costs no time.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_ONE_AT_A_TIME = threading.Lock()


def convert(value: Any, to: type[T]) -> T:
    """As `msgspec.convert`. Raises msgspec.ValidationError."""
    with _ONE_AT_A_TIME:
        return msgspec.convert(value, to)
