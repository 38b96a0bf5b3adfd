"""Links and commands in the pages exist, and generated parts follow their source."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from flagbench.cli.app import load
from flagbench.errors import FlagbenchError
from flagbench.manifests.load import load_catalog
from flagbench.records.read import read_record
from flagbench_core.exit_codes import ExitCode
from tools.generated.files import MEASURED, generated_files
from tools.generated.reference import METRICS

from .conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub links them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_unlocked_builds_are_for_the_stack_without_a_digest(name: str) -> None:
    """All other stacks with a public base are locked."""
    paragraphs = (ROOT / name).read_text(encoding="utf-8").split("\n\n")
    assert all("c500-maca3" in text for text in paragraphs if "--allow-unlocked" in text)


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    page = ROOT / name
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


@pytest.mark.parametrize("folder", ["docs", "docs/reference"])
def test_the_index_of_a_folder_links_its_pages(folder: str) -> None:
    index = ROOT / folder / "README.md"
    links = {(index.parent / link).resolve() for link in LINK.findall(index.read_text(encoding="utf-8"))}
    pages = {*index.parent.glob("*.md"), *index.parent.glob("*/README.md")} - {index}
    assert pages <= links


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of each flagbench command in a page's fences."""
    for _, text in FENCE.findall(page.read_text(encoding="utf-8")):
        for line in text.replace("\\\n", " ").splitlines():
            for part in re.split(r"\||&&|<", line):
                if re.match(r"\s*(\$ )?(\.venv/bin/)?flagbench ", part):
                    yield shlex.split(part.replace("$ ", "", 1), comments=True)[1:]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_a_page_is_one_that_there_is(name: str) -> None:
    for words in commands(ROOT / name):
        if words[0].startswith("-"):
            continue
        command, rest = load(words[0]), words[1:]
        if hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        context = command.context_class(command, resilient_parsing=True)
        command.make_parser(context).parse_args(list(rest))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the pages and of what they are generated from."""
    for name in ("docs", "builder", "entrypoints", "manifests", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run_generator(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """tools/docs.py of a checkout."""
    program = checkout / "tools" / "docs.py"
    return subprocess.run([sys.executable, program, *options], capture_output=True, text=True, check=False)


def test_an_edited_generated_part_is_written_again(checkout: Path) -> None:
    page, picture = checkout / "docs" / "what-was-tested.md", checkout / "docs" / "verdict" / "verdict.svg"
    before = page.read_text()
    page.write_text(before.replace("| `glm` | GLM-Large", "| `glm` | typed by hand"))
    picture.write_text("<svg/>")
    check = run_generator(checkout, "--check")
    assert check.returncode == ExitCode.USAGE
    assert check.stderr.startswith("error: out of date: docs/verdict/verdict.svg, docs/what-was-tested.md\n")
    assert run_generator(checkout).returncode == 0
    assert page.read_text() == before
    assert run_generator(checkout, "--check").returncode == 0


def test_a_record_of_a_device_makes_its_cell_measured(checkout: Path) -> None:
    measured = checkout / "docs" / "measured"
    record = json.loads((measured / "h200-glm.json").read_text())
    (measured / "mi300x-glm.json").write_text(json.dumps(record | {"stack": "rocm"}))
    page = generated_files(load_catalog(), checkout)[checkout / "docs" / "what-was-tested.md"]
    (row,) = (line for line in page.splitlines() if line.startswith("| `glm` | GLM-Large"))
    (stacks,) = (line for line in page.splitlines() if line.startswith("| case |"))
    cells = dict(zip(stacks.split("|"), row.split("|")))
    assert MEASURED in cells[" `rocm` "]
    assert MEASURED not in cells[" `cpu` "]


def test_the_memory_of_a_case_and_the_time_of_a_run_are_in_the_page(checkout: Path) -> None:
    page = generated_files(load_catalog(), checkout)[checkout / "docs" / "run-a-case.md"]
    record = read_record(ROOT / "docs" / "measured" / "h200-aquila-33b.json")
    first, second = (line.split("|") for line in page.splitlines() if "measured/h200-aquila-33b.json" in line)
    assert float(first[5]) == load_catalog().cases["aquila-33b"].memory[0].gib
    start, step, seconds = (float(cell) for cell in second[4:7])
    assert record.window is not None
    assert (start, seconds) == pytest.approx((record.timing.init, record.timing.e2e), abs=0.5)
    assert step == pytest.approx(record.window.step_median, rel=0.05)


def test_the_reference_explains_every_metric_of_a_model() -> None:
    for case in load_catalog().cases.values():
        if case.kind != "measure":
            assert {metric.name for metric in case.metrics} <= METRICS.keys(), case.name


def test_the_page_of_a_removed_case_is_stale(checkout: Path) -> None:
    page = checkout / "docs" / "reference" / "removed.md"
    page.write_text("# `removed`\n")
    assert "docs/reference/removed.md" in run_generator(checkout, "--check").stderr
    assert run_generator(checkout).returncode == 0
    assert not page.exists()


def test_a_part_that_nothing_generates_is_named(checkout: Path) -> None:
    (checkout / "docs" / "new.md").write_text("<!-- generated: nothing -->\n<!-- end -->\n")
    with pytest.raises(FlagbenchError, match=r"new\.md.*'nothing'") as caught:
        generated_files(load_catalog(), checkout)
    assert caught.value.code is ExitCode.USAGE


def test_the_picture_shows_its_record_and_asks_no_host() -> None:
    text = (ROOT / "docs" / "verdict" / "verdict.svg").read_text(encoding="utf-8")
    shown = "".join(ElementTree.fromstring(text).itertext())
    assert read_record(ROOT / "docs" / "verdict" / "record.json").record_id in shown
    assert "NOT_COMPARABLE" in shown
    assert set(re.findall(r"\w+://[^\s\"<]+", text)) <= {"http://www.w3.org/2000/svg"}
