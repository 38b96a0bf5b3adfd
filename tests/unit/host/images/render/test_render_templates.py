"""Templates: which one is used, how a person's overrides a block, and what an error in one says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.render.stack import render_stack
from flagbench.images.render.templates import Templates, image_packages, images_root, shipped_images
from flagbench.manifests.load import load_catalog
from flagbench.manifests.stack import Stack
from flagbench_core.exit_codes import ExitCode

from .conftest import Render, lock_of

Write = Callable[..., Path]


def test_a_persons_template_overrides_one_block(write: Write, full: Stack, stack_image: Render) -> None:
    mine = write("{{ super() }}RUN echo {{ stack.name | sh_quote }}", "user")
    plain, changed = (stack_image(full, template).dockerfile.splitlines() for template in (None, mine))
    assert [line for line in changed if line not in plain] == ["RUN echo a100-cuda11.8"]
    assert [line for line in plain if line not in changed] == []


def test_a_block_may_use_the_macros(write: Write, full: Stack, stack_image: Render) -> None:
    mine = write(
        '{% extends "stack.j2" %}{% import "macros.j2" as macros %}\n'
        '{% block apt %}\n{{ macros.install("apt") }}\n    sh /media/install.sh apt tini git\n{% endblock %}'
    )
    assert "target=/media \\\n    sh /media/install.sh apt tini git\n" in stack_image(full, mine).dockerfile


def test_template_of_a_stack_beside_the_manifests_is_used(tmp_path: Path, write: Write, full: Stack) -> None:
    path = tmp_path / "templates" / "stacks" / f"{full.name}.j2"
    path.parent.mkdir(parents=True)
    write("# mine", "last").rename(path)
    text = render_stack(full, lock_of(full), Templates(tmp_path)).dockerfile
    assert text.endswith("\n# mine\n")
    assert "check_stack.py after" in text, "what it does not override is flagbench's own"


@pytest.mark.parametrize(
    ("block", "line", "said"),
    [
        ("\n{{ stack.naem }}\n", 3, "naem"),
        ("\n{{ nobody }}\n", 3, "nobody"),
        ("{{ 1 / 0 }}", 2, "division by zero"),
        ('{{ "a" + 1 }}', 2, "str"),
        ("\n{% if %}\n", 3, "xpected"),
        ("{{ 1 | nofilter }}", 2, "nofilter"),
        ('{% include "no.j2" %}', 2, "no template no.j2"),
    ],
)
def test_an_error_in_a_template_names_file_line_and_name(
    block: str, line: int, said: str, write: Write, full: Stack, stack_image: Render
) -> None:
    mine = write(f'{{% extends "stack.j2" %}}\n{{% block user %}}{block}{{% endblock %}}')
    with pytest.raises(FlagbenchError) as caught:
        stack_image(full, mine)
    assert said in str(caught.value)
    assert caught.value.message.startswith(f"{mine}:{line}: ")
    assert caught.value.code == ExitCode.BUILD_FAILED


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("FROM scratch\n", ExitCode.BUILD_FAILED),
        ('{% extends "macros.j2" %}', ExitCode.BUILD_FAILED),
        ('{% extends "stacks/nosuch.j2" %}', ExitCode.BUILD_FAILED),
        ('{% extends "stack.j2" %}\n{% block pakages %}{% endblock %}', ExitCode.BUILD_FAILED),
        (None, ExitCode.USAGE),
    ],
)
def test_a_template_that_would_change_nothing_is_refused(
    text: str | None, code: ExitCode, write: Write, tmp_path: Path
) -> None:
    with pytest.raises(FlagbenchError) as caught:
        Templates(shipped_images(), tmp_path / "none.j2" if text is None else write(text))
    assert caught.value.code == code


def test_images_and_code_beside_the_manifests_come_first(manifests: Path) -> None:
    catalog = load_catalog(manifests)
    assert images_root(catalog) == shipped_images()
    assert [(package / "__init__.py").is_file() for package in image_packages(catalog)] == [True, True]
    images, package = manifests.parent / "images", manifests.parent / "entrypoints" / "flagbench_cases"
    for folder in (images, package):
        folder.mkdir(parents=True)
    assert images_root(catalog) == images
    assert image_packages(catalog)[0] == package
