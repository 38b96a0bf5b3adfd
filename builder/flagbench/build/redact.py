"""Credentials taken out of everything that a build says, also where a piece of output cuts one in two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flagbench.engines.base import BuildEvent, BuildFailed, StepDone, StepLog, StepProgress, StepStarted
from flagbench.redaction import redact


class Redactor:
    """Replaces secrets in texts and in the events of one build."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets
        self._kept: dict[str, str] = {}

    def text(self, text: str) -> str:
        """The text without the secrets."""
        return redact(text, self._secrets)

    def events(self, events: Iterator[BuildEvent]) -> Iterator[BuildEvent]:
        """The events, their texts without the secrets. A log's end is held back while it may be half a secret."""
        for event in events:
            if isinstance(event, StepLog):
                ready = self._log(event)
                if ready:
                    yield StepLog(event.id, ready)
            elif isinstance(event, StepDone):
                rest = self._kept.pop(event.id, "")
                if rest:
                    yield StepLog(event.id, rest)
                yield replace(event, name=self.text(event.name), error=event.error and self.text(event.error))
            elif isinstance(event, StepStarted):
                yield replace(event, name=self.text(event.name))
            elif isinstance(event, StepProgress):
                yield replace(event, what=self.text(event.what))
            else:
                yield event

    def failure(self, error: BuildFailed) -> BuildFailed:
        """The same failure without the secrets."""
        return BuildFailed(
            self.text(error.message),
            remedy=self.text(error.remedy),
            step=error.step and self.text(error.step),
            lines=[self.text(line) for line in error.lines],
        )

    def _log(self, event: StepLog) -> str:
        text = self.text(self._kept.pop(event.id, "") + event.text)
        cut = min((self._beginning(text, secret) for secret in self._secrets), default=len(text))
        self._kept[event.id] = text[cut:]
        return text[:cut]

    @staticmethod
    def _beginning(text: str, secret: str) -> int:
        """Where at the end of the text the secret may have begun."""
        for length in range(min(len(secret) - 1, len(text)), 0, -1):
            if text.endswith(secret[:length]):
                return len(text) - length
        return len(text)
