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
from flagbench.render import quoting

Check = Callable[[object], str]

PRINTABLE = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=30)
# As the reference of ENV has it: inside double quotes, a backslash escapes a quote, a dollar and itself.
QUOTED = re.compile(r'"(?:[^"\\$]|\\["\\$])*"')
NEVER_PLAIN = ["a\nRUN touch /x", "a\x00b", "$(touch x)", "`touch x`", "${HOME}", "a; touch x", 'a"b', "a'b", "a b"]
NEVER_PLAIN += ["{{ 7 * 7 }}", "тест", "a\\", "a\u2028b"]
PLAIN: dict[Check, tuple[str, list[str]]] = {
    quoting.image_reference: ("debian:bookworm-slim", ["", "-o", "a:b:", "a@sha256:1", "/a"]),
    quoting.apt_name: ("libstdc++6", ["", "-o", "a=1", "A"]),
    quoting.absolute_path: ("/opt/conda/bin/python3.8", ["", "bin/python3", "/", "/a//b"]),
    quoting.plain_name: ("a100-cuda11.6", ["", "-o", "../x", "."]),
    quoting.variable_name: ("TORCH_CUDA_ARCH_LIST", ["", "1A", "A=1", "a"]),
    quoting.python_version: ("3.12", ["", "3", "3.12.1", "2.7"]),
    quoting.index_url: (
        "https://download.pytorch.org/whl/cu118",
        ["", "https://user:secret@host/simple", "http://host/simple", "https:///simple", "https://host/{{ x }}"],
    ),
}


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
def test_a_control_character_is_refused(quote: Check, value: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        quote(value)
    assert repr(value) in str(caught.value)


def test_the_entry_point_is_json() -> None:
    assert json.loads(quoting.exec_form(["/usr/bin/tini", 'a"b', "c d"])) == ["/usr/bin/tini", 'a"b', "c d"]


@pytest.mark.parametrize(
    ("check", "value"),
    [(check, value) for check, (_, others) in PLAIN.items() for value in [*NEVER_PLAIN, *others]],
)
def test_what_is_written_unquoted_has_to_be_plain(check: Check, value: str) -> None:
    with pytest.raises(FlagbenchError) as caught:
        check(value)
    assert caught.value.remedy


@pytest.mark.parametrize(("check", "value"), [(check, value) for check, (value, _) in PLAIN.items()])
def test_what_manifests_hold_is_plain(check: Check, value: str) -> None:
    assert check(value) == value
