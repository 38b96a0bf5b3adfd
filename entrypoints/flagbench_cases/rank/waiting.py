"""How long a rank's main thread was ready to run and waited for a processor."""

from __future__ import annotations

_FILE = "/proc/thread-self/schedstat"  # nanoseconds run, nanoseconds waited, times run; of the calling thread


class ProcessorTime:
    """Processor time of the calling thread from its creation on."""

    def __init__(self, path: str = _FILE) -> None:
        self._path = path
        self._before = self._read()

    def used(self) -> dict[str, float]:
        """`ran` and `waited`, seconds; empty where the kernel does not count them."""
        before, after = self._before, self._read()
        if before is None or after is None:
            return {}
        return {name: max(0, after[name] - before[name]) / 1e9 for name in after}

    def _read(self) -> dict[str, int] | None:
        try:
            with open(self._path, encoding="ascii") as file:
                ran, waited = map(int, file.read().split()[:2])
        except (OSError, ValueError):
            return None
        return {"ran": ran, "waited": waited}
