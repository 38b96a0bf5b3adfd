"""What `claims lint` reads: tables in the forms in which publishers have them, and what is no table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from catalogs import CATALOG
from flagbench.claims.columns import column
from flagbench.claims.interpret import interpret
from flagbench.claims.lint import lint_content
from flagbench.claims.numbers import read_number
from flagbench.claims.rows import Row
from flagbench.claims.table import TableError
from flagbench.claims.tables import read_table
from flagbench.errors import ExitCode

from .conftest import Flagbench
from .test_claims_lint import CORRECT, FOLLOWS, PLANTED, table

PAGE = (Path(__file__).parents[3] / "docs" / "lint-a-table.md").read_text(encoding="utf-8")
FLAGPERF = """
| 指标名称 | 指标值 | 特殊说明 |
| --- | --- | --- |
| 模型 | DistilBERT | |
| 硬件设备简称 | nvidia A100 | |

- 加速卡型号: NVIDIA A100-SXM4-40GB

| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | **p_core** | acc | mem | \\*MFU |
| ---- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| A100单机8卡（1x8） | tf32 | bs=96,lr=0.00015 | / | 2019.1 | 2135.8 | 2181.0 | 0.912 | 33.4/40.0 | 25.3% |
"""
FORMS = {
    "comma": "model,accelerator,GPUs,dtype,bs,p_core,p_train,p_whole,mem,MFU\n"
    'distilbert,NVIDIA A100-SXM4-40GB,8,TF32,96,"2,181.0","2,135.8","2,019.1",33.4/40.0,25.3%\n',
    "decimal comma": "\ufeffcase;device;gpus;precision;batch size;p_core;p_train;p_whole;mem (GiB);"
    "mem_total;mfu (%)\r\n"
    "distilbert;A100-SXM4-40GB;8;tf32;96;2.181,0;2.135,8;2.019,1;33,4;40,0;25,3\r\n",
    "tabs": "workload\tGPU\tconfig\tprecision\tbatch\tsamples/s per GPU\tp_train\tp_whole\tMemory, MiB\tMFU\n"
    "DistilBERT SST-2\tA100-40GB\t8 x A100\ttf32\t96\t272.625\t2135.8\t2019.1\t34202\t0.253\n",
    "yaml": "- case: distilbert\n  device: NVIDIA_A100-SXM4-40GB\n  run: {nodes: 1, gpus: 8}\n"
    "  precision: {label: tf32}\n"
    "  conditions: {batch_size: 96}\n  p_core: 2181.0\n  p_train: 2135.8\n  p_whole: 2019.1\n"
    "  mem: 33.4/40\n  mfu: 0.253\n",
    "json": '{"results": [{"case": "distilbert", "device": "A100-SXM4-40GB", "devices": 8, "precision": "tf32", '
    '"batch_size": 96, "metrics": [{"name": "p_core", "value": 2181.0, "unit": "samples/s"}, '
    '{"name": "p_train", "value": 2135.8}, {"name": "p_whole", "value": 2019.1}, '
    '{"name": "mem_peak", "value": 33.4, "of": 40.0, "unit": "GiB"}, {"name": "mfu", "value": 0.253}]}]}',
    "a metric on each line": "case,accelerator,nodes,gpus,precision,fix_hp,metric,value,unit\n"
    + "".join(
        f'distilbert,A100-SXM4-40GB,1,8,tf32,"bs=96",{name},{value},{unit}\n'
        for name, value, unit in (
            ("p_core", "2181.0", "samples/s"),
            ("p_train", "2135.8", "samples/s"),
            ("p_whole", "2019.1", "samples/s"),
            ("mem", "33.4/40.0", "GiB used/total"),
            ("MFU", "25.3", "percent"),
        )
    ),
    "markdown": FLAGPERF,
    "a run in each column": "metric,A\nmodel,distilbert\ndevice,A100-SXM4-40GB\nGPUs,8\nprecision,tf32\n"
    "batch size,96\np_core,2181.0\np_train,2135.8\np_whole,2019.1\nmem,33.4/40.0\nMFU,25.3%\n",
    "below a title": "Results of July,,,,,,,,,,\n\nmodel,task,gpu,GPUs,precision,bs,p_core,p_train,p_whole,mem,mfu\n"
    "distilbert,fine-tuning,A100-SXM4-40GB,8,tf32,96,2181.0,2135.8,2019.1,33.4/40,0.253\n",
}


def rows_of(text: str) -> tuple[Row, ...]:
    return interpret(read_table(text.encode(), "table"), CATALOG).rows


@pytest.mark.parametrize("form", FORMS)
def test_a_row_means_the_same_in_every_form(form: str) -> None:
    (row,) = rows_of(FORMS[form])
    assert row.case is not None
    assert (row.case.name, [card.name for card in row.cards]) == ("distilbert", ["NVIDIA A100-SXM4-40GB"])
    assert (row.nodes, row.devices, row.precision, row.number_of("batch_size")) == (1, 8, "tf32", 96)
    speeds = {name: row.metrics[name].value for name in ("p_core", "p_train", "p_whole", "mem_peak", "mfu")}
    expected = {"p_core": 2181.0, "p_train": 2135.8, "p_whole": 2019.1, "mem_peak": 33.4, "mfu": 0.253}
    assert speeds == pytest.approx(expected, rel=1e-4)
    assert lint_content(FORMS[form].encode(), "table", CATALOG).findings == ()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(encoding: str) -> None:
    assert len(read_table(FLAGPERF.encode(encoding), "table").rows) == 1


@pytest.mark.parametrize(
    ("text", "value", "low", "high"),
    [
        ("36.5", 36.5, 36.45, 36.55),
        ("2763", 2763, 2762.5, 2763.5),
        ("0.0350", 0.035, 0.03495, 0.03505),
        ("36.1%", 0.361, 0.3605, 0.3615),
        ("1,942.6", 1942.6, 1942.55, 1942.65),
        ("1 942.6 samples/s", 1942.6, 1942.55, 1942.65),
        ("1.942,6", 1942.6, 1942.55, 1942.65),
        ("4,017", 4017, 4016.5, 4017.5),
        ("\uff13\uff16.\uff15", 36.5, 36.45, 36.55),
        ("**36.5**", 36.5, 36.45, 36.55),
        ("~36.5", 36.5, 36.45, 36.55),
        ("42.4 \u00b1 0.3", 42.4, 42.1, 42.7),
        ("1:02:03", 3723, 3722.5, 3723.5),
        ("-1", -1, -1.5, -0.5),
        ("1e-05", 1e-5, 0.5e-5, 1.5e-5),
    ],
)
def test_a_number_has_the_interval_of_its_digits(text: str, value: float, low: float, high: float) -> None:
    cell = read_number(text)
    assert cell is not None
    assert (cell.value, cell.low, cell.high) == pytest.approx((value, low, high))


@pytest.mark.parametrize("text", ["", "fast", "nan", "inf", "1e400", "-", "%", "TP8"])
def test_what_is_no_number(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("label", "device", "nodes", "devices"),
    [
        ("A100单机8卡（1x8）", "A100", 1, 8),
        ("A100单机单卡（1x1）", "A100", 1, 1),
        ("A100两机16卡（2x8）", "A100", 2, 16),
        ("C500四机32卡（4x8）", "C500", 4, 32),
        ("H100 4x8", "H100", 4, 32),
        ("8x H200", "H200", 1, 8),
        ("config_A100x1x8", "A100", 1, 8),
        ("2 nodes x 8 GPUs", "", 2, 16),
        ("8 GPUs", "", 1, 8),
        ("DGX A100, 8 cards", "DGX A100", 1, 8),
        ("H200 x 8, batch 96", "H200", 1, 8),
    ],
)
def test_a_label_has_device_nodes_and_devices(label: str, device: str, nodes: int, devices: int) -> None:
    (row,) = rows_of(f'case,config,p_core\ndistilbert,"{label}",1942.6\n')
    assert (row.device, row.nodes, row.devices) == (device, nodes, devices)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("llama2_70B", "llama2-70b"),
        ("Llama 2 7B LoRA", "llama2-7b-lora"),
        ("llama2_7b_finetune:pytorch_2.0.1", "llama2-7b-lora"),
        ("GLM-Large", "glm"),
        ("Aquila_33b", "aquila-33b"),
        ("chatglm3_6b", None),
        ("bert", None),
    ],
)
def test_a_case_by_its_publishers_names(name: str, case: str | None) -> None:
    (row,) = rows_of(f"model,p_core\n{name},1942.6\n")
    assert (None if row.case is None else row.case.name) == case


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n \n",
        b"\xff\xfe\x00",
        b"case,p_core\n" + b"x" * 140_000 + b",1\n",
        b"x" * 140_000 + b",p_core\nglm,1\n",
        b"\x89PNG\r\n\x1a\n\0\0",
        b"just a line of text\nand another\n",
        b"p_core,mfu\n",
        b"p_core,p_core\n1,2\n",
        b"case,p_core\ndistilbert,1,942.6\n",
        b"a: [1, 2\n",
        b"- 1\n- 2\n",
        b"[" * 100_000,
        b"- " * 100_000,
        b"case: glm\nclaims: [1]\n",
    ],
)
def test_what_is_no_table_is_refused(content: bytes) -> None:
    with pytest.raises(TableError) as error:
        lint_content(content, "results.csv", CATALOG)
    assert error.value.code == ExitCode.DATA
    assert "results.csv" in error.value.message


def test_the_command_lists_findings_and_columns_that_no_rule_uses(flagbench: Flagbench, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_bytes(table([{**CORRECT[1], "p_core": "2050.1", "colour": "blue"}]))
    ended = flagbench("claims lint", str(path))
    assert ended.code == ExitCode.INVALID
    assert [line.split(": ")[:3] for line in ended.out.splitlines()] == [
        ["NVIDIA A100-SXM4-40GB 8", "p_core", "rates-in-order"],
        ["NVIDIA A100-SXM4-40GB 8", "mfu", "mfu-does-not-fit"],
    ]
    assert "colour" in ended.err
    found = json.loads(flagbench("claims lint --json", str(path)).out)
    assert (found["rows"], found["unused_columns"], found["rows_without_case"]) == (1, ["colour"], 0)
    assert {(finding["line"], finding["rule"]) for finding in found["findings"]} >= {(2, "rates-in-order")}
    path.write_bytes(table([CORRECT[1]]))
    assert (flagbench("claims lint", str(path)).code, flagbench("claims lint", str(path)).out) == (ExitCode.OK, "")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("claims lint {folder}/none.csv", ExitCode.DATA),
        ("claims lint {folder}", ExitCode.DATA),
        ("claims lint {folder}/table.csv --case nope", ExitCode.USAGE),
        ("claims lint --case glm", ExitCode.USAGE),
        ("claims lint {folder}/table.csv --case distilbert", ExitCode.INVALID),
        ("claims lint", ExitCode.OK),
    ],
)
def test_exit_codes(flagbench: Flagbench, tmp_path: Path, words: str, code: ExitCode) -> None:
    (tmp_path / "table.csv").write_text("device,p_core\nH200,1\n")
    assert flagbench(words.format(folder=tmp_path)).code == code


def test_the_page_names_every_rule_and_only_known_columns() -> None:
    rules = {expected[2] for *_, expected in PLANTED} | {rule for _, rule in FOLLOWS.values()}
    fields, listed = (re.findall(r"^\| (`.*?) \|", part, re.MULTILINE) for part in PAGE.split("## Rules"))
    assert rules <= {name for cell in listed for name in re.findall(r"`([\w-]+)`", cell)}
    names = {name for cell in fields for name in re.findall(r"`([a-z_0-9]+)`", cell)} - {"claims"}
    assert {name for name in names if column(name) is None} == set()
