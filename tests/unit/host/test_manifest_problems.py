"""Every fault in a manifest is named with its file, line, field and what is allowed; all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flagbench.catalog.documents import ManifestError
from flagbench.catalog.load import load_catalog
from flagbench.errors import ExitCode

Edit = Callable[[Path, str, str], None]
CASE, CLAIMS, STACK = "cases/distilbert.yaml", "claims/distilbert.yaml", "stacks/cpu.yaml"


def problems(root: Path) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load_catalog(root)
    assert caught.value.code is ExitCode.USAGE
    return [str(problem) for problem in caught.value.problems]


def line_of(root: Path, name: str, text: str) -> int:
    """The first line of a manifest that contains `text`."""
    lines = (root / name).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_enum_error_names_file_line_field_and_what_is_allowed(manifests: Path, edit: Edit) -> None:
    edit(
        manifests / CLAIMS,
        "{name: p_train, value: 1861.9, unit: samples/s",
        "{name: p_train, value: 1861.9, unit: sample/s",
    )
    line = line_of(manifests, CLAIMS, "sample/s,")
    assert problems(manifests) == [
        f"manifests/claims/distilbert.yaml:{line}: claims[0].metrics[2].unit: 'sample/s' is not allowed; "
        "allowed: samples/s, tokens/s, s, fraction, GiB, nats"
    ]


def named_problem(root: Path, field: str, *named: str) -> bool:
    """Whether a problem of this field is reported that names all of these."""
    return any(f": {field}: " in problem and all(name in problem for name in named) for problem in problems(root))


@pytest.mark.parametrize(
    ("name", "old", "new", "field", "named"),
    [
        (CASE, "task: text", "task: 7 # text", "task", ("string", "integer", "7")),
        (CASE, "title: Dist", "titel: Dist", "titel", ("'title'",)),
        (CASE, "title: Dist", "titel: Dist", "title", ("missing",)),
        (CASE, "schema: case/v1", "schema: case/v2", "schema", ("'case/v2'", "case/v1")),
        (STACK, 'python: "3.11"', "python: 3.11", "python", ("string", "number", "3.11")),
        (STACK, 'python: "3.11"', "python: '2.7'", "python", ("'2.7'", "^3\\.[0-9]+$")),
        (STACK, 'expects: {torch: "2.13"}', "expects: {}", "expects", ("empty", "1")),
        (CLAIMS, "nodes: 1\n", "nodes: 0\n", "claims[0].run.nodes", ("0", "at least 1")),
        (CASE, "divisions: [faithful]", "divisions: []", "divisions", ("empty", "1")),
        (CASE, "{name: p_core,", "{name: p_core, naem: x,", "metrics[0].naem", ("'name'",)),
    ],
)
def test_a_value_that_the_schema_does_not_allow(
    manifests: Path, edit: Edit, name: str, old: str, new: str, field: str, named: tuple[str, ...]
) -> None:
    edit(manifests / name, old, new)
    assert named_problem(manifests, field, *named)


@pytest.mark.parametrize(
    ("name", "old", "new", "field", "named"),
    [
        (CASE, "name: distilbert\n", "name: bert\n", "name", ("'bert'", "'distilbert'")),
        (CASE, "gate: p_core", "gate: p_cor", "gate", ("'p_cor'", "'p_core'")),
        (CASE, "default_precision: tf32", "default_precision: fp16", "default_precision", ("'fp16'",)),
        (CASE, "[hardware, work], held", "[hardwar, work], held", "metrics[0].depends_on", ("'hardwar'",)),
        (CASE, "held_by: p_core_host", "held_by: p_host", "metrics[0].held_by", ("'p_host'",)),
        (CASE, "path: train.batch_size,", "path: train.batch,", "settable.batch_size.path", ("'train.batch'",)),
        (
            CASE,
            "path: model.dropout, type: number",
            "path: model.dropout, type: integer",
            "settable.dropout",
            ("integer", "0.1"),
        ),
        (
            CASE,
            "      name: distilbert-tiny",
            "      nam: distilbert-tiny",
            "presets.tiny.model.nam",
            ("'nam'",),
        ),
        (
            CASE,
            "data: [data, weights]",
            "data: [data, seed]",
            "condition_groups.data[1]",
            ("'seed'", "'optimisation'"),
        ),
        (STACK, "aliases: [cpu]", "aliases: [a100]", "aliases[0]", ("'a100'", "'a100-cuda11.6'")),
        (
            STACK,
            "does_not_run: {}",
            "does_not_run: {distilbrt: the name is misspelt}",
            "does_not_run.distilbrt",
            ("'distilbrt'", "'distilbert'"),
        ),
        (
            "cases/llama2-7b-lora.yaml",
            "needs: [deepspeed]",
            "needs: [deepspeed, apex]",
            "needs[1]",
            ("'apex'", "cpu"),
        ),
        (CLAIMS, "id: distilbert/a100-1x8-fp32\n", "id: bert/a100\n", "claims[0].id", ("'bert/a100'",)),
        (CLAIMS, "a100-1x8-fp32-bs96", "a100-1x8-fp32", "claims[1].id", ("'distilbert/a100-1x8-fp32'",)),
        (CLAIMS, "stack: a100-cuda11.6", "stack: a100-cuda11.7", "claims[0].stack", ("'a100-cuda11.7'",)),
        (CLAIMS, "      seed: 0\n", "", "claims[0].conditions", ("seed", "'not published'")),
        (CLAIMS, "      seed: 0\n", "      seed: 0\n      sed: 0\n", "claims[0].conditions.sed", ("'sed'",)),
        (CLAIMS, "set: {}", "set: {batch: 3}", "claims[0].run.set.batch", ("'batch'",)),
        (CLAIMS, "set: {}", "set: {batch_size: 0}", "claims[0].run.set.batch_size", ("0", "at least 1")),
        (CLAIMS, "set: {}", "set: {target_acc: 1.5}", "claims[0].run.set.target_acc", ("1.5", "at most 1")),
        (
            CLAIMS,
            "precision: tf32\n      set",
            "precision: fp16\n      set",
            "claims[0].run.precision",
            ("'fp16'", "tf32"),
        ),
        (
            CLAIMS,
            "{name: e2e_time, value: 361, unit: s,",
            "{name: e2e_time, value: 361, unit: nats,",
            "claims[0].metrics[0].unit",
            ("'nats'", "e2e_time"),
        ),
        (CLAIMS, "{name: acc,", "{name: accuracy,", "claims[0].metrics[4].name", ("'accuracy'",)),
        (
            CLAIMS,
            "{name: p_whole, value: 1764.0",
            "{name: p_train, value: 1764.0",
            "claims[0].metrics[2].name",
            ("'p_train'",),
        ),
    ],
)
def test_a_value_that_contradicts_another(
    manifests: Path, edit: Edit, name: str, old: str, new: str, field: str, named: tuple[str, ...]
) -> None:
    edit(manifests / name, old, new)
    assert named_problem(manifests, field, *named)


def test_one_fault_of_a_case_is_not_repeated_for_its_claims(manifests: Path, edit: Edit) -> None:
    edit(manifests / CASE, "unit: samples\n", "unit: sample\n")
    assert len(problems(manifests)) == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("vendor: cpu", "vendor: cpu\nvendor: nvidia", "stacks/cpu.yaml:5: vendor: given twice, first in line 4"),
        ("vendor: cpu", "vendor: [cpu", "not valid YAML:"),
        ("vendor: cpu", "vendor: 2024-01-01", "stacks/cpu.yaml:4: vendor: '2024-01-01' reads as a date"),
        ("vendor: cpu", "vendor: .inf", "vendor: '.inf' is not a finite number"),
        ("vendor: cpu", "vendor: cpu\n3: x", "the key 3 is not a string"),
        ("expects: {torch", "<<: {a: b}\nexpects: {torch", "merge keys (<<) are not supported"),
        ("expects: {torch", "expects: &a {b: *a, torch", "expects.b: an alias stands inside what it names"),
        ("vendor: cpu", "vendor: !python/name:os.system x", "cannot be read: could not determine a constructor"),
    ],
)
def test_yaml_is_read_strictly(manifests: Path, edit: Edit, old: str, new: str, expected: str) -> None:
    edit(manifests / STACK, old, new)
    assert any(expected in problem for problem in problems(manifests))


def test_files_that_are_no_text_or_empty(manifests: Path) -> None:
    (manifests / STACK).write_bytes(b"\xff\xfe")
    (manifests / "stacks" / "empty.yaml").write_text("# nothing\n")
    found = problems(manifests)
    assert any("stacks/cpu.yaml:1: cannot be read" in problem for problem in found)
    assert any("stacks/empty.yaml:1: the file is empty" in problem for problem in found)


def test_all_problems_of_a_load_are_reported_the_first_twenty_shown(manifests: Path, edit: Edit) -> None:
    edit(manifests / STACK, "vendor: cpu", "vendor: acme")
    text = (manifests / CLAIMS).read_text(encoding="utf-8")
    (manifests / CLAIMS).write_text(text.replace("unit: samples/s", "unit: tokens/s").replace("seed: 0", "sed: 0"))
    with pytest.raises(ManifestError) as caught:
        load_catalog(manifests)
    count = len(caught.value.problems)
    assert count == 12 + 16 + 1
    assert caught.value.message.startswith(f"the manifests have {count} problems:")
    assert caught.value.message.endswith("... and 9 more")
