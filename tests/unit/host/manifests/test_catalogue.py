"""The catalogue: its own files are sound, and each fault of a file is named by line."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from catalogs import CATALOG
from flagbench.manifests.catalogue import (
    FOLDER,
    check_catalogue,
    parse_catalogue,
    read_cases,
    read_catalogue,
)
from flagbench.manifests.documents import ManifestError

HEAD = "# project: a/b\n# commit: 0123456789012345678901234567890123456789\n# path: README.md\n# license: MIT\n"
COLUMN_LINE = "row,model,task,device,metric,value,unit\n"
VALUE = "1,llama3-8b,lora,H100,run_time,3.5,min\n"


def test_own_catalogue_is_sound() -> None:
    files = read_catalogue(CATALOG.root)
    check_catalogue(files, CATALOG)
    assert len(files) >= 15
    assert all(file.source.license and file.values for file in files)
    assert read_cases(CATALOG.root)["llama2-70b"].model == "llama2-70b"


def test_each_value_has_its_line() -> None:
    for file in read_catalogue(CATALOG.root):
        path = CATALOG.root / FOLDER / f"{file.name}.csv"
        lines = path.read_text(encoding="utf-8").splitlines()
        header = next(line for line in lines if not line.startswith("#"))
        for value in file.values:
            cells = next(csv.DictReader([header, lines[value.line - 1]]))
            assert (cells["row"], cells["value"]) == (str(value.row), value.value)


def test_what_shares_alike_is_attributed() -> None:
    by_name = {file.name: file.source for file in read_catalogue(CATALOG.root)}
    assert all(source.attribution for source in by_name.values() if "SA" in source.license)
    assert by_name["mamf"].license == "CC-BY-SA-4.0"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (HEAD + "row,colour\n1,red\n", [5]),
        (HEAD, [5]),
        (HEAD + COLUMN_LINE + VALUE + VALUE.replace("3.5", "fast"), [7]),
        (HEAD + COLUMN_LINE + VALUE.replace("min", "furlongs") + VALUE.replace("lora", "chess"), [6, 7]),
        (HEAD + COLUMN_LINE + "1,llama3-8b\n", [6]),
        (HEAD + COLUMN_LINE + VALUE.replace("1,", "0,", 1), [6]),
    ],
)
def test_faults_are_named_by_line(text: str, lines: list[int]) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_catalogue(text, "a.csv")
    assert [problem.line for problem in caught.value.problems] == lines


def test_a_file_without_license_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    text = HEAD.replace("# license: MIT\n", "") + COLUMN_LINE + VALUE
    (tmp_path / FOLDER / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        read_catalogue(tmp_path)
    assert [problem.line for problem in caught.value.problems] == [1]


def test_other_commands_do_not_read_it() -> None:
    code = (
        "import sys, flagbench.cli.run, flagbench.cli.list; sys.exit('flagbench.manifests.catalogue' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
