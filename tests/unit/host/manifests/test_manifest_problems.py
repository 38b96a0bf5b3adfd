"""Every fault in a manifest is named with its file, line, field and what is allowed; all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flagbench.manifests.documents import ManifestError
from flagbench.manifests.load import load_catalog
from flagbench.schema import field_name
from flagbench_core.exit_codes import ExitCode

Edit = Callable[[Path, str, str], None]
CASE, LORA, STACK = "cases/distilbert.yaml", "cases/llama2-7b-lora.yaml", "stacks/cpu.yaml"
H100, CUDA = "devices/h100-sxm.yaml", "stacks/cuda13.yaml"
CLAIMS, GLM, A100 = "claims/distilbert.yaml", "claims/glm.yaml", "stacks/a100-cuda11.6.yaml"
GLM_CASE, QWEN, DEVICE = "cases/glm.yaml", "cases/qwen2.5-7b-lora.yaml", "devices/a100-pcie-40gb.yaml"
FIRST_ROW = '    row: "A100单机8卡（1x8） | fp32 | /"\n'


def problems(root: Path) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load_catalog(root)
    assert caught.value.code is ExitCode.USAGE
    return [str(problem) for problem in caught.value.problems]


def is_named(root: Path, field: str, words: str) -> bool:
    """Whether a problem of this field is reported that has all of these words."""
    return any(f": {field}: " in problem and all(w in problem for w in words.split()) for problem in problems(root))


def test_a_problem_names_file_line_field_and_what_is_allowed(manifests: Path, edit: Edit) -> None:
    edit(manifests / CLAIMS, "value: 1861.9, unit: samples/s", "value: 1861.9, unit: sample/s")
    lines = (manifests / CLAIMS).read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "sample/s," in text)
    assert problems(manifests) == [
        f"manifests/claims/distilbert.yaml:{line}: claims[0].metrics[2].unit: 'sample/s' is not allowed; "
        "allowed: GB/s, GiB, TFLOP/s, fraction, nats, requests/s, s, samples/s, tokens/s"
    ]


@pytest.mark.parametrize("levels", [100, 256, 990])
def test_any_depth_is_a_problem_of_its_file(manifests: Path, edit: Edit, levels: int) -> None:
    edit(manifests / CASE, "title: ", f"title: {'[' * levels}{']' * levels} #")
    [problem] = problems(manifests)
    assert problem.startswith("manifests/cases/distilbert.yaml:")


@pytest.mark.parametrize(
    ("name", "old", "new", "field", "words"),
    [
        # What the schema does not allow.
        (CASE, "task: text", "task: 7 # text", "task", "string integer 7"),
        (
            CASE,
            "learning_rate: 5.0e-5",
            "learning_rate: 5e-5",
            "presets.reference.train.learning_rate",
            "'5e-5' 5.0e-5",
        ),
        (CLAIMS, "commit: 1b5a0303", "commit: 1234567", "sources.nvidia.commit", "quotes"),
        (CLAIMS, "commit: 1b5a0303", "commit: none", "sources.nvidia.commit", "'none' commit day"),
        (CASE, "title: Dist", "titel: Dist", "titel", "'title'"),
        (CASE, "precisions: [tf32, fp32, bf16]", "precisions: []", "precisions", "empty 1"),
        (DEVICE, "flops: 19.5e+12", "flops: 19.5", "peaks.fp64.flops", "19.5 at least"),
        (DEVICE, "not_published: [fp8]", "not_published: []", "peaks", "fp8"),
        (STACK, "monitor: cpu", "monitor: acme-smi", "monitor", "'acme-smi' cpu, mx-smi, nvml"),
        (STACK, "- psutil==", "- psutil>=", "build.packages[4]", "name==version"),
        (STACK, 'python: "3.11"', "python: '2.7'", "python", "'2.7' ^3\\.[0-9]+$"),
        (CLAIMS, "nodes: 1\n", "nodes: 0\n", "claims[0].run.nodes", "0 at least 1"),
        (CLAIMS, "nodes: 1\n", "nodes: 1.0\n", "claims[0].run.nodes", "int float"),
        (GLM, "sources:\n  nvidia:", "sources:\n  NVIDIA:", "sources", "'NVIDIA' pattern"),
        (H100, "datasheet: https", "datasheet: http", "datasheet", "'http"),
        (H100, "  tf32: {", "  fp4: {", "peaks", "'fp4' fp64 int8"),
        # What contradicts another value.
        (H100, "id: h100-sxm", "id: h100", "id", "'h100' 'h100-sxm'"),
        (H100, "  int8: {", "  #", "peaks", "int8 not_published not_found"),
        (H100, "match: [NVIDIA H100 80GB HBM3]", "match: [NVIDIA H200]", "match[0]", "'NVIDIA H200' h200-sxm"),
        (CUDA, "- h100-sxm\n", "- h100-smx\n", "devices[0]", "'h100-smx' 'h100-sxm'"),
        (CASE, "name: distilbert\n", "name: bert\n", "name", "'bert' 'distilbert'"),
        (CASE, "default_precision: tf32", "default_precision: fp16", "default_precision", "'fp16'"),
        (GLM_CASE, "metric: p_core_host\n", "metric: p_cor\n", "flops.published.metric", "'p_cor' 'p_core'"),
        (CASE, "distilbert-matmul/v1", "distilbert/v1", "flops.formula", "'distilbert/v1' distilbert-matmul/v1"),
        (CASE, "path: train.batch_size,", "path: train.batch,", "settable.batch_size.path", "'train.batch'"),
        (CASE, "dropout, type: number", "dropout, type: integer", "presets.reference.model.dropout", "integer 0.1"),
        (CASE, "  name: distilbert-tiny", "  nam: distilbert-tiny", "presets.tiny.model.nam", "'nam'"),
        (CASE, "      layers: 1\n", "      layers: one\n", "presets.tiny.model.layers", "text number"),
        (CASE, "data: [data, weights]", "data: [data, seed]", "condition_groups.data[1]", "'seed' yaml:126"),
        (CASE, "      warmup_steps: 20\n", "", "presets.reference", "train train.warmup_steps"),
        (LORA, "choices: [torch, deepspeed]", "choices: [torch]", "settable.engine", "torch, deepspeed"),
        (LORA, "      name: torch\n", "", "presets.reference", "missing: engine.name"),
        (QWEN, "{lora: {projections:", "{lora: {places:", "absent.model.lora.places", "'places'"),
        (
            CASE,
            "batch_size: train.batch_size\n",
            "batch_size: train.batch\n",
            "conditions.batch_size",
            "'train.batch'",
        ),
        (
            CASE,
            "  workers: data.workers\n  eval",
            "  worker: data.workers\n  eval",
            "conditions.worker",
            "'worker' 'workers'",
        ),
        (CASE, 'text: "%g/%g/%g"', 'text: "%g/%g"', "conditions.dropout.text", "2 3"),
        (CASE, "by: data.source", "by: data.nowhere", "conditions.data.by", "'data.nowhere'"),
        (CASE, "{value: synthetic}", "{text: synthetic}", "conditions.data.values.synthetic", "by"),
        (CASE, "step: train.batch_size", "step: train.batches", "counts.samples_per_step", "'train.batches'"),
        (GLM_CASE, "share: 0.01\n", "share: 0.04\n", "quirks[9].time.share", "0.04 0.03"),
        (
            CASE,
            "corrected\n    publisher: Useful",
            "kept\n    publisher: Useful",
            "quirks[0]",
            "missing tokens-counted",
        ),
        (GLM_CASE, "low: 1\n", "low: 11\n", "ranges.choices.low", "11 10"),
        (STACK, "image: debian:bookworm-slim", "image: null", "base.obtain", "missing"),
        (A100, "run: {}", "run: {distilbert: it takes weeks}", "claims[0].stack", "'a100-cuda11.6' 'distilbert'"),
        (STACK, "aliases: [cpu]", "aliases: [a100]", "aliases[0]", "'a100' 'a100-cuda11.6'"),
        (STACK, "run: {}", "run: {distilbrt: it is misspelt}", "does_not_run.distilbrt", "'distilbrt' 'distilbert'"),
        (A100, "run: {}", "run: {}\nfamilies: [serve]", "claims[0].stack", "'a100-cuda11.6' 'distilbert'"),
        (STACK, "run: {}", "run: {}\nfamilies: [serv]", "families[0]", "'serv' 'serve'"),
        (STACK, "- megatron-core==", "- Torch==", "build.optional[0]", "'torch' build.packages"),
        (A100, "name: megatron-core", "name: Flash_Attn", "build.other_python[0]", "'flash-attn' build.compiled"),
        (LORA, "needs: [deepspeed]", "needs: [deepspeed, apex]", "needs[1]", "'apex' cpu"),
        (CLAIMS, "id: distilbert/a100-1x8-fp32\n", "id: bert/a100\n", "claims[0].id", "'bert/a100'"),
        (CLAIMS, "a100-1x8-fp32-bs96", "a100-1x8-fp32", "claims[1].id", "'distilbert/a100-1x8-fp32'"),
        (CLAIMS, "stack: a100-cuda11.6", "stack: a100-cuda11.7", "claims[0].stack", "'a100-cuda11.7'"),
        (CLAIMS, "stack: a100-cuda11.6\n", "stack: null\n", "claims[0].no_stack", "missing"),
        (CLAIMS, "    row:", "    no_stack: there is none\n    row:", "claims[0].no_stack", "'a100-cuda11.6' remove"),
        (CLAIMS, "      seed: 0\n", "", "claims[0].conditions", "seed 'not published'"),
        (CLAIMS, "set: {}", "set: {batch_size: 0}", "claims[0].run.set.batch_size", "0 at least 1"),
        (CLAIMS, "tf32\n      set", "fp16\n      set", "claims[0].run.precision", "'fp16' tf32"),
        (CLAIMS, "value: 361, unit: s,", "value: 361, unit: nats,", "claims[0].metrics[0].unit", "'nats' e2e_time"),
        (CLAIMS, "value: 361,", "value: 361, printed: 36l,", "claims[0].metrics[0].printed", "'36l' 361"),
        (CLAIMS, "{name: acc,", "{name: accuracy,", "claims[0].metrics[4].name", "'accuracy'"),
        (CLAIMS, "{name: p_whole, value", "{name: p_train, value", "claims[0].metrics[2].name", "'p_train'"),
        (GLM, 'printed: "80.52%"', 'printed: "80.5%"', "claims[11].metrics[0].printed", "'80.5%' 0.8052"),
        (GLM, FIRST_ROW + "    source: nvidia\n", FIRST_ROW, "claims[0].source", "missing dcu, iluvatar"),
        (GLM, "    source: nvidia\n", "    source: nvidai\n", "claims[0].source", "'nvidai' 'nvidia'"),
        ("catalogue/cases.yaml", "  glm: ", "  gml: ", "cases.gml", "'gml' 'glm'"),
        ("catalogue/cases.yaml", "task: lora", "task: loras", "cases.llama2-7b-lora.task", "'loras' lora"),
    ],
)
def test_a_value_that_does_not_fit_is_named(
    manifests: Path, edit: Edit, name: str, old: str, new: str, field: str, words: str
) -> None:
    edit(manifests / name, old, new)
    for path in manifests.glob("claims/*.yaml"):
        if path != manifests / name and path.name != "distilbert.yaml":
            path.unlink()  # Nothing of them is expected, and they are most of what is read.
    assert is_named(manifests, field, words)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        (
            CASE,
            {
                "gate": ("gate: p_core", "gate: p_cor"),
                "metrics[0].depends_on[0]": ("[hardware, work], held", "[hardwar, work], held"),
                "metrics[0].held_by": ("held_by: p_core_host", "held_by: p_host"),
                "memory[0].precision": ("gib: 12.1, precision: tf32", "gib: 12.1, precision: fp8"),
                "shapes[0]": ("condition_groups:\n", "shapes: [modle]\ncondition_groups:\n"),
            },
        ),
        (
            CLAIMS,
            {
                "claims[0].run.set.batch": ("set: {}", "set: {batch: 3}"),
                "claims[0].conditions.sed": ("      seed: 0\n", "      seed: 0\n      sed: 0\n"),
            },
        ),
    ],
    ids=["case", "claims"],
)
def test_every_name_must_be_known(
    manifests: Path, edit: Edit, name: str, changes: dict[str, tuple[str, str]]
) -> None:
    for old, new in changes.values():
        edit(manifests / name, old, new)
    with pytest.raises(ManifestError) as caught:
        load_catalog(manifests)
    assert {field_name(problem.path) for problem in caught.value.problems} == set(changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({}, False), ({"source": None}, True), ({"sources": {}}, True)],
    ids=["one source", "none", "both"],
)
def test_a_file_has_one_source_or_several_and_not_both_or_none(
    manifests: Path, changes: dict[str, Any], named: bool
) -> None:
    file = yaml.safe_load((manifests / CLAIMS).read_text(encoding="utf-8"))
    file["source"] = file.pop("sources")["nvidia"]
    claims = [{k: v for k, v in claim.items() if k != "source"} for claim in file["claims"]]
    file = {k: v for k, v in {**file, "claims": claims, **changes}.items() if v is not None}
    (manifests / CLAIMS).write_text(yaml.safe_dump(file, allow_unicode=True), encoding="utf-8")
    if named:
        assert any("needs either `source`" in problem for problem in problems(manifests))
    else:
        own = [claim for claim in load_catalog(manifests).claims.values() if claim.case == "distilbert"]
        assert {claim.source.project for claim in own} == {"FlagPerf"}


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
        ("expects: {torch", "expects: &a {b: *a, torch", "expects.b: aliases (*) are not supported"),
        ("vendor: cpu", "vendor: !python/name:os.system x", "cannot be read: could not determine a constructor"),
    ],
)
def test_yaml_is_read_strictly(manifests: Path, edit: Edit, old: str, new: str, expected: str) -> None:
    edit(manifests / STACK, old, new)
    assert any(expected in problem for problem in problems(manifests))


def test_nested_aliases_are_not_expanded(manifests: Path) -> None:
    lines = ["a0: &a0 [1, 2]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))]
    (manifests / "stacks" / "bomb.yaml").write_text("\n".join(lines))
    found = [problem for problem in problems(manifests) if "aliases (*) are not supported" in problem]
    assert len(found) == 29 * 9


def test_files_that_are_no_text_or_empty(manifests: Path) -> None:
    (manifests / STACK).write_bytes(b"schema: stack/v1\nname: \xff\xfe\n")
    (manifests / "stacks" / "empty.yaml").write_text("# nothing\n")
    found = problems(manifests)
    assert any("stacks/cpu.yaml:2: not valid UTF-8: byte 0xff" in problem for problem in found)
    assert any("stacks/empty.yaml:1: the file is empty" in problem for problem in found)


def test_all_problems_of_a_load_are_reported(manifests: Path, edit: Edit) -> None:
    edit(manifests / STACK, "vendor: cpu", "vendor: Acme Corp")
    text = (manifests / CLAIMS).read_text(encoding="utf-8")
    (manifests / CLAIMS).write_text(text.replace("unit: samples/s", "unit: tokens/s").replace("seed: 0", "sed: 0"))
    with pytest.raises(ManifestError) as caught:
        load_catalog(manifests)
    count = len(caught.value.problems)
    assert count == text.count("unit: samples/s") + 2 * text.count(" seed: 0") + 1
    assert caught.value.message.startswith(f"the manifests have {count} problems:")
    assert caught.value.message.endswith(f"... and {count - 20} more")
