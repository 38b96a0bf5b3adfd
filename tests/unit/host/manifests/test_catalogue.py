"""The catalogue: its own files are sound, and each fault of a file is named by line."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from catalogs import CATALOG
from flagbench.manifests.catalogue import FOLDER, parse_rows, read_catalogue
from flagbench.manifests.documents import ManifestError
from flagbench_core.exit_codes import ExitCode

HEAD = "# project: a/b\n# commit: 0123456789012345678901234567890123456789\n# path: README.md\n# license: MIT\n"
COLUMN_LINE = "row,model,task,device,metric,value,unit\n"
VALUE = "1,llama3-8b,lora,H100,run_time,3.5,min\n"


def test_own_catalogue_is_sound() -> None:
    sources = read_catalogue(CATALOG)
    assert len(sources) >= 14
    assert all(source.license and source.rows for source in sources)
    assert CATALOG.cases["llama2-70b"].workload.model == "llama2-70b"


def test_every_value_is_read_as_printed() -> None:
    for source in read_catalogue(CATALOG):
        lines = (CATALOG.root / FOLDER / f"{source.name}.csv").read_text(encoding="utf-8").splitlines()
        cells = csv.DictReader(line for line in lines if not line.startswith("#"))
        printed = [(row["row"], row["metric"], row["value"], row["unit"]) for row in cells]
        read = [(str(row.row), name, *metric) for row in source.rows for name, metric in row.metrics.items()]
        assert read == printed


def test_what_shares_alike_is_attributed() -> None:
    files = [path.read_text(encoding="utf-8") for path in (CATALOG.root / "claims").glob("*.yaml")]
    (alike,) = (text for text in files if "stas00/ml-engineering" in text)
    assert "Stas Bekman" in alike
    assert "CC-BY-SA-4.0" in alike


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (HEAD + "row,colour\n1,red\n", [5]),
        (HEAD, [5]),
        (HEAD + VALUE, [5]),
        (HEAD + COLUMN_LINE + VALUE + VALUE.replace("3.5", "fast"), [7]),
        (HEAD + COLUMN_LINE + VALUE.replace("min", "furlongs") + VALUE.replace("lora", "chess"), [6, 7]),
        (HEAD + COLUMN_LINE + "1,llama3-8b\n", [6]),
        (HEAD + COLUMN_LINE + VALUE.replace("1,", "0,", 1), [6]),
        (HEAD + COLUMN_LINE.replace("device,", "device,device_id,") + VALUE.replace("H100,", "H100,h100,"), [6]),
    ],
)
def test_faults_are_named_by_line(text: str, lines: list[int]) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_rows(text, "a.csv", CATALOG.devices)
    assert [problem.line for problem in caught.value.problems] == lines


def test_a_file_without_license_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    text = HEAD.replace("# license: MIT\n", "") + COLUMN_LINE + VALUE
    (tmp_path / FOLDER / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        read_catalogue(replace(CATALOG, root=tmp_path))
    assert [problem.line for problem in caught.value.problems] == [1]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ((HEAD + COLUMN_LINE + VALUE).encode("utf-16"), "a.csv:1: it is not UTF-8 text: "),
        (bytes(2**24 + 1), "a.csv:1: cannot be read: it has 16,777,217 bytes, more than the 16,777,216 allowed"),
        ((HEAD + COLUMN_LINE + VALUE.replace("H100", "H\x00100")).encode(), "a.csv:6: it contains a NUL character"),
        (HEAD.encode(), "a.csv:5: there is no header; its columns are "),
    ],
    ids=["encoding", "size", "nul", "header"],
)
def test_a_file_that_is_no_table_is_an_error_of_data(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "a.csv").write_bytes(content)
    with pytest.raises(ManifestError, match=re.escape(problem)) as caught:
        read_catalogue(replace(CATALOG, root=tmp_path))
    assert caught.value.code == ExitCode.DATA


def test_other_commands_do_not_read_it() -> None:
    code = (
        "import sys, flagbench.cli.run, flagbench.cli.list; sys.exit('flagbench.manifests.catalogue' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
