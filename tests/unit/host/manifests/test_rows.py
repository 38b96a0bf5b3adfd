"""Published rows: of claims and of the catalogue they are one type, and each fault of a file is named by line."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from catalogs import CATALOG
from flagbench.manifests.documents import ManifestError
from flagbench.manifests.load import load_catalog
from flagbench.manifests.rows import CATALOGUE, Claim, PublishedValue, parse_lines, published_rows, read_catalogue
from flagbench_core.exit_codes import ExitCode
from unit.host.conftest import Edit

HEAD = "# project: a/b\n# commit: 0123456789012345678901234567890123456789\n# path: README.md\n# license: MIT\n"
COLUMN_LINE = "row,model,task,device,metric,value,unit\n"
VALUE = "1,llama3-8b,lora,H100,run_time,3.5,min\n"


ROWS = {row.id: row for row in published_rows(CATALOG)}


def test_a_claim_is_a_published_row_with_the_case_that_runs_it() -> None:
    claim = ROWS["llama3-8b/h100-1x8-fp8"]
    assert isinstance(claim, Claim)
    assert (claim.case, claim.run.gpus, claim.metrics[0].scope) == ("llama3-8b", 8, "device")
    assert (claim.model, claim.task, claim.device_id) == ("llama3-8b", "pretraining", "h100-sxm")
    assert claim.speed == claim.metric("tokens_per_second_per_device")


def test_a_row_that_is_only_cited_has_conditions_by_the_names_of_claims() -> None:
    row = ROWS["automodel/13"]
    assert not isinstance(row, Claim)
    assert (row.model, row.task, row.device_id) == ("llama3-70b", "lora", "h100-sxm")
    assert (row.count("devices"), row.count("nodes"), row.text("sequence_length")) == (8, 1, "4096")
    assert row.conditions["device_model"] == row.device == "DGX-H100"
    assert row.speed is not None
    assert (row.speed.value, row.speed.unit) == (1091.85, "tokens/s")
    assert row.source.commit == "36044ad3d139363fb6c73c24af2e7c6b65ec52f6"


def test_a_row_of_a_page_states_the_day_on_which_it_was_seen() -> None:
    row = ROWS["vllm-ci/1"]
    assert row.speed == PublishedValue("latency_mean", 0.834059, "s")
    assert row.software == "vLLM, release not stated"
    assert (row.source.url, row.source.commit) == ("https://buildkite.com", "2026-11-28")
    assert row.citation.endswith(", seen 2026-11-28")


def test_every_cited_value_is_read_as_printed() -> None:
    read = [(row.id, value.name, value.digits, value.unit) for row in ROWS.values() for value in row.metrics]
    printed = []
    for path in sorted((CATALOG.root / CATALOGUE).glob("*.csv")):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        for cell in csv.DictReader(lines):
            printed.append((f"{path.stem}/{cell['row']}", cell["metric"], cell["value"], cell["unit"]))
    claims = sum(len(claim.metrics) for claim in CATALOG.claims.values())
    assert read[claims:] == printed


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
        parse_lines(text, "a.csv", CATALOG.devices)
    assert [problem.line for problem in caught.value.problems] == lines


COMMIT_LINE = next(line for line in HEAD.splitlines(keepends=True) if line.startswith("# commit"))


@pytest.mark.parametrize(
    ("line", "replacement"),
    [
        ("# license: MIT\n", ""),
        (COMMIT_LINE, ""),
        (COMMIT_LINE, COMMIT_LINE + "# page: https://example.org\n# seen: 2026-01-31\n"),
        (COMMIT_LINE, "# page: https://example.org\n"),
        (COMMIT_LINE, "# page: example.org\n# seen: 2026-01-31\n"),
        (COMMIT_LINE, "# page: https://example.org\n# seen: in January\n"),
    ],
)
def test_a_file_without_license_or_source_is_refused(tmp_path: Path, line: str, replacement: str) -> None:
    """A source is files at a commit, or pages with the day on which they were seen."""
    (tmp_path / CATALOGUE).mkdir()
    text = HEAD.replace(line, replacement) + COLUMN_LINE + VALUE
    (tmp_path / CATALOGUE / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        read_catalogue(tmp_path, CATALOG.devices)
    assert [problem.line for problem in caught.value.problems] == [1]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ((HEAD + COLUMN_LINE + VALUE).encode("utf-16"), "a.csv:1: it is not UTF-8 text: "),
        (bytes(2**24 + 1), "a.csv:1: cannot be read: it has 16,777,217 bytes, more than the 16,777,216 allowed"),
        ((HEAD + COLUMN_LINE + VALUE.replace("H100", "H\x00100")).encode(), "a.csv:6: it contains a NUL character"),
        (HEAD.encode(), "a.csv:5: there is no header; the columns are "),
    ],
    ids=["encoding", "size", "nul", "header"],
)
def test_a_file_that_is_no_table_is_an_error_of_data(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / CATALOGUE).mkdir()
    (tmp_path / CATALOGUE / "a.csv").write_bytes(content)
    with pytest.raises(ManifestError, match=re.escape(problem)) as caught:
        read_catalogue(tmp_path, CATALOG.devices)
    assert caught.value.code == ExitCode.DATA


def test_other_commands_do_not_read_it(manifests: Path, edit: Edit) -> None:
    edit(manifests / CATALOGUE / "torchtune.csv", "# license: BSD-3-Clause\n", "")
    catalog = load_catalog(manifests)
    with pytest.raises(ManifestError):
        published_rows(catalog)
