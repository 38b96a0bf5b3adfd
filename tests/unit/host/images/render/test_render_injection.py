"""No value of a manifest or a lock adds an instruction or a word to a Dockerfile: each is quoted or refused."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.lockfile import canonical
from flagbench.images.render.case import render_case
from flagbench.images.render.stack import render_stack
from flagbench.images.render.templates import Templates
from flagbench.manifests.model import Case, Catalog
from flagbench.manifests.stack import OtherPython, Stack

from .conftest import Instruction, in_build, instructions, lock_of

Change = Callable[[Stack, Case, str], tuple[Stack, Case]]
Render = Callable[..., list[Instruction]]

EVIL = ["x\nRUN touch /y", "x\r\nRUN touch /y", "x\x00y", "$(touch /y)", "`touch /y`", "${HOME}", "x; touch /y"]
EVIL += ["x && touch /y #", 'x" y "z', "x' y 'z", 'x", "y', "x y", "x \\", "{{ 7 * 7 }}{% raw %}", "<<EOF"]
EVIL += ["тест\u2028RUN x", "тест"]


def of_stack(field: str) -> Change:
    return lambda stack, case, value: (replace(stack, **{field: value}), case)


def in_base(stack: Stack, **fields: Any) -> Stack:
    return replace(stack, base=replace(stack.base, **fields))


def of_base(stack: Stack, case: Case, value: str) -> tuple[Stack, Case]:
    return in_base(stack, image=value), case


def of_build(**fields: Callable[[str], Any]) -> Change:
    return lambda stack, case, value: (in_build(stack, **{f: made(value) for f, made in fields.items()}), case)


def of_compiled(field: str, made: Callable[[str], Any] = str) -> Change:
    def change(stack: Stack, case: Case, value: str) -> tuple[Stack, Case]:
        package = replace(stack.build.compiled[0], **{field: made(value)})
        return in_build(stack, compiled=(package,)), replace(case, needs=(canonical(package.name),))

    return change


def of_other_python(name: str, python: str) -> Change:
    def change(stack: Stack, case: Case, value: str) -> tuple[Stack, Case]:
        package = OtherPython(name or value, "1.0", python or value, "a reason")
        return in_build(stack, other_python=(package,)), replace(case, needs=(canonical(package.name),))

    return change


def of_toolkit(field: str, made: Callable[[str], Any] = str) -> Change:
    def change(stack: Stack, case: Case, value: str) -> tuple[Stack, Case]:
        assert stack.build.toolkit is not None
        return in_build(stack, toolkit=replace(stack.build.toolkit, **{field: made(value)})), case

    return change


# In a Dockerfile as it is: the text before an evil value, and more values that are refused.
REFUSED: dict[str, tuple[Change, str, list[str]]] = {
    "stack": (of_stack("name"), "", ["", "-o", "../x", "."]),
    "case": (lambda stack, case, value: (stack, replace(case, name=value)), "", ["", "bert", "stack", "../x"]),
    "base": (of_base, "", ["", "-o", "a:b:", "a@sha256:1", "/a"]),
    "python": (of_stack("python"), "", ["", "3", "3.12.1", "2.7"]),
    "interpreter": (of_build(interpreter=str), "/opt/", ["bin/python3", "/", "/a//b"]),
    "apt": (of_build(apt=lambda value: (value,)), "", ["", "-o", "a=1", "A"]),
    "index": (
        of_build(indexes=lambda value: (value,)),
        "https://host/",
        ["", "https://user:secret@host/simple", "http://host/simple", "https:///simple"],
    ),
    "variable": (
        of_build(env=lambda value: {value: "1"}),
        "",
        ["", "1A", "A=1", "a", "HOME", "PYTHONPATH", "FLAGBENCH_STACK"],
    ),
    "compiled package": (of_compiled("name"), "", ["", "-o", "../x"]),
    "its variable": (of_compiled("env", lambda value: {value: "1"}), "", ["", "1A"]),
    "its apt": (of_compiled("apt", lambda value: (value,)), "", ["", "-o"]),
    "toolkit": (of_toolkit("image"), "", ["", "-o", "a@sha256:1"]),
    "its folder": (of_toolkit("folder"), "/usr/", ["", "/", "usr/local"]),
    "its files": (of_toolkit("files", lambda value: (value,)), "bin/", ["", "/bin", "bin/"]),
    "package for another Python": (of_other_python("", "3.10"), "", ["-o"]),
    "the other Python": (of_other_python("plain", ""), "", ["", "3"]),
}
# In quotes, or in a comment.
TAKEN: dict[str, Change] = {
    "stack's title": of_stack("title"),
    "how to obtain the base": lambda stack, case, value: (in_base(stack, image=None, obtain=value), case),
    "left out": of_build(left_out=lambda value: {value: value}),
    "value of a variable": of_build(env=lambda value: {"A": value}),
    "case's title": lambda stack, case, value: (stack, replace(case, title=value)),
    "version to compile": of_compiled("version"),
    "reason to compile": of_compiled("reason"),
    "variable to compile with": of_compiled("env", lambda value: {"A": value}),
}


@pytest.fixture
def render(templates: Templates) -> Render:
    """The instructions of both tiers."""

    def both(stack: Stack, case: Case, **lock: Any) -> list[Instruction]:
        locked = lock_of(stack, **lock)
        heavy = render_stack(stack, locked, templates)
        code = {f"flagbench_cases/cases/{name}/workload.py": b"" for name in ("distilbert", "stack")}
        return instructions(heavy) + instructions(render_case(case, stack, heavy, locked, code, templates))

    return both


@pytest.mark.parametrize("field", REFUSED)
def test_what_is_not_plain_is_refused(field: str, full: Stack, catalog: Catalog, render: Render) -> None:
    change, prefix, more = REFUSED[field]
    for value in [*(prefix + evil for evil in EVIL), *more]:
        with pytest.raises(FlagbenchError) as caught:
            render(*change(full, catalog.cases["distilbert"], value))
        shown = repr(canonical(value) if field == "package for another Python" else value)[1:-1]
        assert shown in str(caught.value), value


@pytest.mark.parametrize("value", [*EVIL, "sha256:1"])
def test_a_digest_of_a_lock_that_is_none_is_refused(
    value: str, full: Stack, catalog: Catalog, render: Render
) -> None:
    with pytest.raises(FlagbenchError):
        render(full, catalog.cases["distilbert"], digest=value)


@pytest.mark.parametrize("field", TAKEN)
def test_no_value_adds_an_instruction_or_a_word(field: str, full: Stack, catalog: Catalog, render: Render) -> None:
    change, case = TAKEN[field], catalog.cases["distilbert"]
    plain = [(i.name, len(i.words)) for i in render(*change(full, case, "plain"))]
    for value in EVIL:
        if "variable" in field and not value.isprintable():
            with pytest.raises(FlagbenchError):
                render(*change(full, case, value))
        else:
            evil = render(*change(full, case, value))
            assert [(i.name, len(i.words)) for i in evil] == plain, value
            if field == "variable to compile with":
                (run,) = (i for i in evil if "source=steps/compile-" in i.text)
                assert f"A={value}" in shlex.split(run.text)
