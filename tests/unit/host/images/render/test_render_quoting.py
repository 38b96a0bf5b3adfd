"""Values on their way into a Dockerfile come out as they went in, or are refused."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flagbench.errors import FlagbenchError
from flagbench.images.render import quoting

PRINTABLE = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=30)
# As the reference of ENV has it: inside double quotes, a backslash escapes a quote, a dollar and itself.
QUOTED = re.compile(r'"(?:[^"\\$]|\\["\\$])*"')


@given(PRINTABLE)
@settings(max_examples=60, deadline=None)
def test_a_shell_reads_the_word_that_was_quoted(value: str) -> None:
    done = subprocess.run(["sh", "-c", f"printf %s {quoting.sh_quote(value)}"], capture_output=True, check=True)
    assert done.stdout.decode() == value


@given(PRINTABLE)
@settings(deadline=None)
def test_env_sets_the_value_that_was_quoted(value: str) -> None:
    quoted = quoting.env_value(value)
    assert QUOTED.fullmatch(quoted)
    assert re.sub(r'\\(["\\$])', r"\1", quoted[1:-1]) == value


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_a_comment_stays_on_its_line(value: str) -> None:
    line = quoting.one_line(value)
    assert line.isprintable()
    assert "\n" not in line
    assert quoting.one_line(line) == line


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\x00b", "a\x1b[0m", "a\u2028b", "a\x85b"])
@pytest.mark.parametrize("quote", [quoting.sh_quote, quoting.env_value, lambda value: quoting.exec_form([value])])
def test_a_control_character_is_refused(quote: Callable[[object], str], value: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        quote(value)
    assert repr(value) in str(caught.value)


def test_the_entry_point_is_json() -> None:
    assert json.loads(quoting.exec_form(["/usr/bin/tini", 'a"b', "c d"])) == ["/usr/bin/tini", 'a"b', "c d"]
