"""Claims of several sources, rows without a stack, and cells as they were printed: what is checked of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flagbench.catalog.documents import ManifestError
from flagbench.catalog.load import load_catalog
from flagbench.catalog.printed import printed_number

Edit = Callable[[Path, str, str], None]
ONE, SEVERAL = "claims/distilbert.yaml", "claims/glm.yaml"
"""The first is made a file of one source by `one_source`."""
FIRST_ROW = '    row: "A100单机8卡（1x8） | fp32 | /"\n'


@pytest.fixture(autouse=True)
def one_source(manifests: Path) -> None:
    """Leave the claims of the first source in ONE, with that as the file's only one."""
    text = (manifests / ONE).read_text(encoding="utf-8")
    head, claims = text[: text.index("sources:\n")], text[text.index("claims:\n") :]
    source = text[text.index("  nvidia:\n") : text.index("  metax:\n")]
    source = source.replace("  nvidia:", "source:").replace("\n    ", "\n  ")
    claims = claims[: claims.index("  - id: distilbert/c500")].replace("    source: nvidia\n", "")
    (manifests / ONE).write_text(head + source + claims, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        (SEVERAL, FIRST_ROW + "    source: nvidia\n", FIRST_ROW, "claims[0].source: missing; known: dcu, iluvatar"),
        (
            SEVERAL,
            "    source: nvidia\n",
            "    source: nvidai\n",
            "unknown entry of `sources` 'nvidai'",
        ),
        (
            SEVERAL,
            "scope: job, source: nvidia-first",
            "scope: job, source: first",
            "metrics[0].source: unknown entry of `sources` 'first'",
        ),
        (SEVERAL, "sources:\n  nvidia:", "sources:\n  NVIDIA:", "'NVIDIA' does not match the pattern"),
        (ONE, FIRST_ROW, FIRST_ROW + "    source: other\n", "claims[0].source: unknown entry of `sources` 'other'"),
        (
            ONE,
            "    row:",
            "    no_stack: there is none of that kind\n    row:",
            "there is a stack, 'a100-cuda11.6'; remove",
        ),
        (
            ONE,
            "    stack: a100-cuda11.6\n",
            "    stack: null\n",
            "claims[0].no_stack: missing: a claim without a stack",
        ),
        (ONE, "stack: a100-cuda11.6", "stack: null\n    no_stack: none", "no_stack: has 4; needs at least 10"),
        (ONE, "value: 361, unit: s,", "value: 361, printed: 36l, unit: s,", "printed: '36l' is not the value 361"),
        (SEVERAL, 'printed: "80.52%"', 'printed: "80.5%"', "printed: '80.5%' is not the value 0.8052"),
    ],
)
def test_what_does_not_fit_is_named(
    manifests: Path, edit: Edit, name: str, old: str, new: str, expected: str
) -> None:
    edit(manifests / name, old, new)
    with pytest.raises(ManifestError) as caught:
        load_catalog(manifests)
    assert any(expected in str(problem) for problem in caught.value.problems)


def test_a_file_has_one_source_or_several_and_not_both_or_none(manifests: Path, edit: Edit) -> None:
    text = (manifests / ONE).read_text(encoding="utf-8")
    source = text[text.index("source:\n") : text.index("claims:\n")]
    needs = "manifests/claims/distilbert.yaml:6: needs either `source`"
    entry = source.replace("source:\n", "sources:\n  a:\n").replace("\n  ", "\n    ").replace("    a:", "  a:")
    for changed in ("", source + entry):
        (manifests / ONE).write_text(text.replace(source, changed), encoding="utf-8")
        with pytest.raises(ManifestError) as caught:
            load_catalog(manifests)
        assert any(str(problem).startswith(needs) for problem in caught.value.problems)


def test_each_claim_has_the_source_that_it_names() -> None:
    claims = load_catalog().claims
    assert claims["distilbert/a100-1x8-fp32"].source.file == "training/nvidia/distilbert-pytorch/README.md"
    assert claims["glm/c500-1x8-fp32"].source.file == "training/metax/glm-pytorch/README.md"
    assert claims["glm/a100-2x8-fp32-bs8"].source.commit == "1b5a0303"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("36.1%", "0.361"),
        ("0.0350", "0.0350"),
        ("2788", "2788"),
        ("1 %", "0.01"),
        ("/", None),
        ("nan", None),
        ("%", None),
    ],
)
def test_a_printed_cell_is_a_number_with_its_digits(text: str, number: str | None) -> None:
    found = printed_number(text)
    assert (None if found is None else str(found)) == number
