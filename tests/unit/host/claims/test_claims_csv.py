"""What `claims lint` reads: CSV with our columns, claims files; and how it refuses everything else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from catalogs import CATALOG
from flagbench.claims.csv_file import columns, read_csv
from flagbench.claims.lint import lint_file
from flagbench.claims.numbers import read_number
from flagbench.claims.rows import TableError
from flagbench_core.exit_codes import ExitCode
from pages import BLOCK
from unit.host.conftest import ROOT, Flagbench

from .test_claims_lint import CORRECT, FOLLOWS, PLANTED, table

PAGE = (ROOT / "docs" / "lint-a-table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "value", "low", "high"),
    [
        ("36.5", 36.5, 36.45, 36.55),
        ("2763", 2763, 2762.5, 2763.5),
        ("0.0350", 0.035, 0.03495, 0.03505),
        ("36.1%", 0.361, 0.3605, 0.3615),
        ("-1", -1, -1.5, -0.5),
        ("1e-05", 1e-5, 0.5e-5, 1.5e-5),
    ],
)
def test_a_number_has_the_interval_of_its_digits(text: str, value: float, low: float, high: float) -> None:
    cell = read_number(text)
    assert cell is not None
    assert (cell.value, cell.low, cell.high) == pytest.approx((value, low, high))


def test_a_row_means_what_its_columns_say() -> None:
    (row,) = read_csv(
        "\ufeff" + " \r\n" + table([{**CORRECT[1], "seed": "not published", "workers": ""}]), "x.csv", CATALOG
    )
    assert (row.number, row.line, row.name, row.case.name) == (1, 3, "eight", "distilbert")
    assert [card.name for card in row.cards] == [row.device] == ["NVIDIA A100-SXM4-40GB"]
    assert (row.nodes, row.devices, row.precision, row.number_of("batch_size")) == (1, 8, "tf32", 96)
    assert row.metrics["p_core"].value == 2180.8
    assert (row.blank, row.unstated) == ({"workers"}, {"seed"})


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("p_core", "fast"),
        *(("p_core", text) for text in ("nan", "inf", "1e400", "1e-400", "-", "%")),
        ("p_core", "1,942.6"),
        ("e2e_time", "361 s"),
        ("mfu", "25.3%"),
        ("acc", "/"),
        ("nodes", "0"),
        ("gpus", "8.0"),
        ("batch_size", "large"),
        ("precision", "TF32"),
        ("converged", "no"),
        ("case", "bert"),
        ("case", ""),
        ("p_infer_core", "1942.6"),
    ],
)
def test_a_cell_that_cannot_be_read_is_named(column: str, cell: str) -> None:
    with pytest.raises(TableError) as caught:
        read_csv(table([CORRECT[0], {**CORRECT[1], column: cell}]), "results.csv", CATALOG)
    assert caught.value.message.startswith(f"results.csv:3: {column}: ")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"case,p_core\n",
        b"id,p_core\na,1\n",
        b"case,p_core,p_core\nglm,1,2\n",
        b"case,throughput\nglm,1\n",
        b"case,p_core\nglm,1,942.6\n",
        b'case,p_core\nglm,"1\n',
        b"case,p_core\n" + b"x" * 140_000 + b",1\n",
        b"| case | p_core |\n| --- | --- |\n| glm | 1 |\n",
    ],
)
def test_what_is_no_table_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_bytes(content)
    with pytest.raises(TableError) as caught:
        lint_file(path, CATALOG)
    assert caught.value.code == ExitCode.DATA
    assert "results.csv" in caught.value.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("case: distilbert", "case: bert"),
        ("{name: p_core, value: 1942.6", "{name: p_cor, value: 1942.6"),
        ("value: 1942.6, unit: samples/s", "value: 1942.6, unit: tokens/s"),
        ("    source: nvidia\n", "    source: nobody\n"),
        ("    source: nvidia\n", ""),
        ("claims:\n", "claims: [\n"),
    ],
)
def test_a_claims_file_is_held_against_its_schema(old: str, new: str, tmp_path: Path) -> None:
    text = (CATALOG.root / "claims" / "distilbert.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(TableError) as caught:
        lint_file(path, CATALOG)
    assert re.match(rf"{path}:\d+: ", caught.value.message)


@pytest.mark.parametrize("sign", ["|", ";", "\t"])
def test_another_separator_than_a_comma_is_named(sign: str, tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text(f"case{sign}p_core\nglm{sign}1\n")
    with pytest.raises(TableError) as caught:
        lint_file(tmp_path / "results.csv", CATALOG)
    assert repr(sign) in caught.value.message


def test_an_unknown_column_is_told_with_the_known_ones(flagbench: Flagbench, tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("case,dtype,device\nglm,fp16,A100\n")
    ended = flagbench("claims lint", str(tmp_path / "results.csv"))
    assert ended.code == ExitCode.DATA
    assert "dtype" in ended.err
    assert "mean device_model" in ended.err
    assert all(column in ended.err for column in columns(CATALOG))


def test_the_page_is_what_the_command_prints(
    flagbench: Flagbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file, content), (_, command), (_, printed) = ((m["path"], m["text"]) for m in BLOCK.finditer(PAGE))
    (tmp_path / file).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = command.removeprefix("flagbench ").strip()
    ended = flagbench(words)
    assert (ended.code, ended.out) == (ExitCode.INVALID, printed)
    listed = json.loads(flagbench(f"{words} --json").out)
    assert (listed["file"], listed["rows"], listed["unknown_devices"]) == (file, 2, [])
    assert [finding["line"] for finding in listed["findings"]] == [3, 3]


def test_the_page_names_every_rule_and_only_known_columns() -> None:
    known, listed = (re.findall(r"^\| (`.*?) \|", part, re.MULTILINE) for part in PAGE.split("## Rules"))
    rules = {planted.split(" | ")[-1] for planted in PLANTED} | {rule for _, rule in FOLLOWS.values()}
    assert rules <= {name for cell in listed for name in re.findall(r"`([\w-]+)`", cell)}
    assert {name for cell in known for name in re.findall(r"`([a-z_0-9]+)`", cell)} <= columns(CATALOG).keys()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("claims lint {folder}/none.csv", ExitCode.DATA),
        ("claims lint {folder}/none.yaml", ExitCode.DATA),
        ("claims lint {folder}", ExitCode.DATA),
        ("claims lint {folder}/right.csv", ExitCode.OK),
        ("claims lint", ExitCode.OK),
    ],
)
def test_exit_codes(flagbench: Flagbench, tmp_path: Path, words: str, code: ExitCode) -> None:
    (tmp_path / "right.csv").write_text(table([CORRECT[1]]))
    assert flagbench(words.format(folder=tmp_path)).code == code
