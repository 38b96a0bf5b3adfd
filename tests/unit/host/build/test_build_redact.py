"""Credentials never reach a screen, also where the output cuts one in two."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flagbench.build.redact import Redactor
from flagbench.engines.base import BuildEvent, BuildFailed, StepDone, StepLog, StepStarted
from flagbench.redaction import REDACTED

SECRETS = ("user:planted", "planted")


def logged(events: Iterator[BuildEvent]) -> str:
    """Everything that was printed."""
    return "".join(event.text for event in events if isinstance(event, StepLog))


@given(st.lists(st.integers(0, 60), max_size=6))
def test_a_log_cut_anywhere_shows_nothing(cuts: list[int]) -> None:
    text = "Looking in https://user:planted@a/ and planted planted plant"
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [StepLog("1", text[first:last]) for first, last in pairwise(edges)]
    end = StepDone("1", "step", 1.0, cached=False)
    shown = logged(Redactor(SECRETS).events(iter([*pieces, end])))
    assert shown == f"Looking in https://{REDACTED}@a/ and {REDACTED} {REDACTED} plant"


def test_names_and_failures_show_nothing() -> None:
    redactor = Redactor(SECRETS)
    events = list(redactor.events(iter([StepStarted("1", "RUN planted"), StepDone("1", "x", 1.0, False, "planted")])))
    assert events == [StepStarted("1", f"RUN {REDACTED}"), StepDone("1", "x", 1.0, False, REDACTED)]
    failure = redactor.failure(BuildFailed("a planted b", remedy="planted", step="planted", lines=["user:planted"]))
    assert (failure.message, failure.remedy, failure.step) == (f"a {REDACTED} b", REDACTED, REDACTED)
    assert failure.lines == (REDACTED,)


def test_without_secrets_nothing_is_held_back() -> None:
    assert logged(Redactor(()).events(iter([StepLog("1", "as it is")]))) == "as it is"
