"""Templates: which one is used, how that of a stack overrides a block, and what an error in one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from flagbench.errors import FlagbenchError
from flagbench.images.render.stack import render_stack
from flagbench.images.render.templates import Templates, image_packages, images_root, shipped_images
from flagbench.manifests.load import load_catalog
from flagbench.manifests.stack import Stack
from flagbench_core.exit_codes import ExitCode

from .conftest import lock_of


def render_with(template: str, full: Stack, images: Path) -> list[str]:
    """The lines of a stack's Dockerfile if images/ has this template for it."""
    path = images / "templates" / "stacks" / f"{full.name}.j2"
    path.parent.mkdir(parents=True)
    path.write_text(template, encoding="utf-8")
    return render_stack(full, lock_of(full), Templates(images)).dockerfile.splitlines()


def test_the_template_of_a_stack_overrides_one_block(full: Stack, templates: Templates, tmp_path: Path) -> None:
    template = (
        '{% extends "stack.j2" %}{% import "macros.j2" as macros %}\n'
        '{% block apt %}\n{{ super() }}{{ macros.install("apt") }}\n    sh /media/install.sh apt git\n{% endblock %}'
    )
    plain = render_stack(full, lock_of(full), templates).dockerfile.splitlines()
    changed = render_with(template, full, tmp_path)
    assert {line for line in changed if line not in plain} == {"    sh /media/install.sh apt git"}
    assert [line for line in plain if line not in changed] == []


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
    block: str, line: int, said: str, full: Stack, tmp_path: Path
) -> None:
    with pytest.raises(FlagbenchError) as caught:
        render_with(f'{{% extends "stack.j2" %}}\n{{% block user %}}{block}{{% endblock %}}', full, tmp_path)
    assert said in str(caught.value)
    assert f"stacks/{full.name}.j2:{line}: " in caught.value.message
    assert caught.value.code == ExitCode.BUILD_FAILED


def test_images_and_code_beside_the_manifests_come_first(manifests: Path) -> None:
    catalog = load_catalog(manifests)
    assert images_root(catalog) == shipped_images()
    assert [(package / "__init__.py").is_file() for package in image_packages(catalog)] == [True, True]
    images, package = manifests.parent / "images", manifests.parent / "entrypoints" / "flagbench_cases"
    for folder in (images, package):
        folder.mkdir(parents=True)
    assert images_root(catalog) == images
    assert image_packages(catalog)[0] == package
