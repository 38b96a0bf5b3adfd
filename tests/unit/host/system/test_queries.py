"""A question to a program always ends in an answer."""

from __future__ import annotations

import pytest

from flagbench.system.queries import Ending, ask


@pytest.mark.parametrize(
    ("command", "ending", "code"),
    [
        (["/no/such/program"], Ending.MISSING, None),
        (["/dev/null"], Ending.FAILED, None),  # not executable
        (["sh", "-c", "exit 3"], Ending.FAILED, 3),
        (["sh", "-c", "yes"], Ending.FAILED, None),  # printed too much
        (["sh", "-c", "echo $NAME"], Ending.ANSWERED, 0),
    ],
)
def test_how_a_question_ends(command: list[str], ending: Ending, code: int | None) -> None:
    answer = ask(command, environment={"NAME": "value"})
    assert (answer.ending, answer.code, answer.problem is None) == (ending, code, ending is Ending.ANSWERED)
