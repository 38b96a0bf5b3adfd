"""What single cells and columns of a table say: units, values that are no measurement, comments, long numbers."""

from __future__ import annotations

import pytest

from catalogs import CATALOG
from flagbench.claims.interpret import interpret
from flagbench.claims.lint import lint_content
from flagbench.claims.rows import Row
from flagbench.claims.tables import read_table

A100 = "case,device,nodes,devices,precision,batch_size"
ONE, EIGHT = "distilbert,NVIDIA A100-SXM4-40GB,1,1,tf32,32", "distilbert,NVIDIA A100-SXM4-40GB,1,8,tf32,32"


def only_row(text: str) -> Row:
    (row,) = interpret(read_table(text.encode(), "table"), CATALOG).rows
    return row


def rules_of(text: str) -> list[tuple[int, str]]:
    found = lint_content(text.encode(), "table", CATALOG).findings
    return [
        (each.row, each.rule) for each in found if each.rule not in ("missing-condition", "missing", "unverifiable")
    ]


@pytest.mark.parametrize("value", ["0", "-1", "-1942.6"])
def test_a_value_that_is_no_measurement_is_found_once_and_blames_no_other_row(value: str) -> None:
    table = f"{A100},p_core,tokens/s\n{ONE},{value},{value}\n{EIGHT},1942.6,\n"
    assert {found for found in rules_of(table) if found[1] != "not-positive"} == set()
    assert (1, "not-positive") in rules_of(table)


def test_a_proportional_copy_of_what_is_no_measurement_is_not_looked_for() -> None:
    header = f"{A100},p_core,p_train,p_whole,e2e_time,acc"
    other = ONE.replace("NVIDIA A100-SXM4-40GB", "MetaX C500")
    rows = f"{ONE},-1,100.1,90.1,2000.5,0.915\n{other},-1,200.2,180.2,1000.25,0.915\n"
    assert "not-positive" in {rule for _, rule in rules_of(f"{header}\n{rows}")}


@pytest.mark.parametrize(
    ("header", "cell", "seconds"),
    [
        ("e2e_time", "1.2 h", 4320.0),
        ("e2e_time (min)", "90 s", 90.0),
        ("e2e_time (min)", "1.5", 90.0),
        ("e2e_time (min)", "1.5e3 s", 1500.0),
        ("e2e_time", "3600 (1 h)", 3600.0),
        ("e2e_time", "1.2小时", 4320.0),
        ("e2e_time", "1:02:03", 3723.0),
    ],
)
def test_a_unit_in_a_cell_counts_more_than_the_header_s(header: str, cell: str, seconds: float) -> None:
    assert only_row(f"{A100},{header}\n{ONE},{cell}\n").metrics["e2e_time"].value == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("cells", "field", "value"),
    [
        ("mem_peak (MiB);33400 MiB", "mem_peak", 33400 / 1024),
        ("mem_peak (MiB);33400", "mem_peak", 33400 / 1024),
        ("mem_peak;32.7 GiB", "mem_peak", 32.7),
        ("mem_peak;3.34e4 MiB", "mem_peak", 33400 / 1024),
        ("mem_peak;33400/40960 MiB", "mem_peak", 33400 / 1024),
        ("mem_peak;33.4/40.0", "mem_peak", 33.4),
        ("p_core;1942.6 (1.9k)", "p_core", 1942.6),
        ("p_core;1.9k", "p_core", 1900.0),
        ("p_core;1942.6 samples/s", "p_core", 1942.6),
        ("p_core,throughput;1942.6,1800", "p_core", 1942.6),
        ("throughput,p_core;1800,1942.6", "p_core", 1942.6),
        ("throughput;1800", "p_core", 1800.0),
    ],
)
def test_what_a_cell_says(cells: str, field: str, value: float) -> None:
    headers, texts = cells.split(";")
    assert only_row(f"{A100},{headers}\n{ONE},{texts}\n").metrics[field].value == pytest.approx(value)


@pytest.mark.parametrize("column", ["torch", "cuda", "driver", "division"])
def test_rows_of_different_software_or_division_say_nothing_of_each_other(column: str) -> None:
    one, eight = f"{ONE},200,one\n", f"{EIGHT},2400,other\n"
    assert (2, "scaling") not in rules_of(f"{A100},p_core,{column}\n{one}{eight}")
    assert (2, "scaling") in rules_of(f"{A100},p_core,{column}\n{one}{eight.replace('other', 'one')}")


@pytest.mark.parametrize(
    "text",
    [
        "a100: [{case: distilbert, device: A100, p_core: 100}]\nc500: [{case: distilbert, device: C500, p_core: -1}]",
        "[{case: distilbert, device: A100, metrics: {p_core: {value: -1, unit: samples/s}}}]",
        '{"rows": [{"case": "distilbert", "metrics": {"p_core": {"value": -1}}}]}',
        "# case,device,p_core\ndistilbert,A100,-1\n",
        "#,case,device,p_core\n1,distilbert,A100,-1\n",
        "- {case: distilbert, device: A100, p_core: {value: -1, unit: samples/s}, e2e_time: {value: 5, unit: s}}",
        "rows: [{case: distilbert, p_core: -1}]\nsources: [{name: one, url: x}, {name: two, url: y}]",
    ],
)
def test_no_part_of_a_table_is_left_out(text: str) -> None:
    assert "not-positive" in {rule for _, rule in rules_of(text)}


@pytest.mark.parametrize(
    ("header", "cell"),
    [
        ("e2e_time", "1" + "0" * 320 + ":00:00"),
        ("nodes2,e2e_time", "1," + "9" * 5000),
        ("sequence_length", "1e200"),
        ("choices", "1e250"),
        ("config", "9" * 5000 + " GPUs"),
        ("layout", "tp" + "9" * 5000),
        ("mfu", "0.0" + "1" * 60),
    ],
)
@pytest.mark.parametrize("case", ["distilbert", "glm", "llama2_70B"])
def test_long_numbers_are_read_or_refused(header: str, cell: str, case: str) -> None:
    line = ONE.replace("distilbert", case)
    lint_content(f"{A100},p_core,{header}\n{line},1942.6,{cell}\n".encode(), "table", CATALOG)


@pytest.mark.parametrize(
    "text",
    [
        "# case,device,p_core,p_train\ncase,device,p_core\ndistilbert,A100,1942.6\n",
        "case,device,p_core\ndistilbert,A100,1942.6\n# case,device,p_core\n# nodes, gpus, precision as printed\n",
        "rows: [{case: distilbert, p_core: 1942.6}]\nsources: [{name: one, url: x}]",
        "case;p_core\ndistilbert;1942.6\n",
    ],
)
def test_comments_and_lists_of_other_things_are_no_rows(text: str) -> None:
    assert only_row(text).metrics["p_core"].value == 1942.6


def test_a_speed_whose_spread_reaches_zero_is_compared_with_others() -> None:
    header = f"{A100},p_core,p_train,p_whole,e2e_time,acc"
    other = ONE.replace("NVIDIA A100-SXM4-40GB", "MetaX C500")
    rows = f"{ONE},10 +- 20,100.1,90.1,2000.5,0.915\n{other},10 +- 20,200.2,180.2,1000.25,0.915\n"
    lint_content(f"{header}\n{rows}".encode(), "table", CATALOG)
