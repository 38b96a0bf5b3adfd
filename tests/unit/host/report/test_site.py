"""The pages of a report: which there are, where they link to, and what a record may not do to them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flagbench.console.page import Table
from flagbench.records.folder_blobs import FolderBlobs
from flagbench.records.read import read_record
from flagbench.records.store import Store
from flagbench.report import site
from flagbench.report.record_page import record_page
from unit.host.conftest import REPLAY, ROOT, Flagbench

STORED = ROOT / "tests" / "replay" / "08a01ae" / "store"
RECORD = "20261125T221337Z-distilbert-cpu-1x2-586a51db"
HOSTILE = "<script>alert(1)</script>\x1b[2J"


class Page(HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element with its attributes."""
        self.elements.append((tag, dict(attrs)))

    @property
    def links(self) -> set[str]:
        """What its links name, without addresses on other hosts."""
        found = {str(attributes["href"]) for tag, attributes in self.elements if tag == "a"}
        return {link for link in found if not link.startswith("https://")}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A copy of the store of another release, with a record of roofs."""
    folder = Path(shutil.copytree(STORED, tmp_path / "stored"))
    roofs = ROOT / "tests" / "replay" / "records" / "run-roofs-2.json"
    Store(FolderBlobs(folder)).put(roofs.read_bytes())
    return folder


def report(flagbench: Flagbench, store: Path, out: Path) -> dict[str, str]:
    """The pages of a store by their names."""
    ended = flagbench("report", "--store", str(store), "--out", str(out))
    assert (ended.code, ended.out.strip()) == (0, str(out / "index.html"))
    return {path.name: path.read_text(encoding="utf-8") for path in out.iterdir()}


def test_every_link_has_a_page_and_pages_are_the_same_twice(
    flagbench: Flagbench, stored: Path, tmp_path: Path
) -> None:
    pages = report(flagbench, stored, tmp_path / "first")
    assert report(flagbench, stored, tmp_path / "second") == pages
    kinds = [name.partition("-")[0] for name in pages]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "index.html": 1,
        "claim": 6,
        "device": 1,
        "series": 2,
        "record": 14,
    }
    linked = set().union(*(Page(text).links for text in pages.values()))
    assert linked == set(pages)
    tags = {tag for text in pages.values() for tag, _ in Page(text).elements}
    assert tags.isdisjoint({"script", "img", "iframe", "object"})


def test_only_the_newest_records_have_a_page(
    flagbench: Flagbench, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "MOST_RECORD_PAGES", 2)
    pages = report(flagbench, stored, tmp_path / "out")
    assert len([name for name in pages if name.startswith("record-")]) == 2
    (device,) = (text for name, text in pages.items() if name.startswith("device-"))
    assert RECORD in device
    assert f"record-{RECORD}.html" not in Page(device).links


def test_one_record_has_a_page_without_links(flagbench: Flagbench, tmp_path: Path) -> None:
    ended = flagbench("report", str(REPLAY), "--out", str(tmp_path / "out"))
    (path,) = (tmp_path / "out").iterdir()
    text = path.read_text(encoding="utf-8")
    assert (ended.code, ended.out.strip()) == (0, str(path))
    assert Page(text).links == set()
    titles = re.findall(r"<title id=\"([a-z]+)-title\">", text)
    assert titles == ["ratio", "steps", "losses"]
    assert "REPRODUCED" in text


def test_a_page_of_roofs_has_each_number_once(flagbench: Flagbench, tmp_path: Path) -> None:
    path = ROOT / "tests" / "replay" / "records" / "run-roofs-2.json"
    flagbench("report", str(path), "--out", str(tmp_path / "out"))
    (page,) = (tmp_path / "out").iterdir()
    text = page.read_text(encoding="utf-8")
    assert "<h2>Matrix products</h2>" in text
    tables = re.sub("<figure>.*?</figure>", "", text, flags=re.DOTALL)
    for measurement in json.loads(path.read_bytes())["measurements"]:
        assert tables.count(f">{measurement['name']}</td>") == 1
        assert f">{measurement['name']}_mean</td>" not in tables


def test_a_metric_that_is_a_mean_stands_as_the_mean() -> None:
    record = read_record(ROOT / "docs" / "measured" / "h100-roofs-mamf-bf16-2.json")
    tables = [block for block in record_page(record, ()) if isinstance(block, Table)]
    (measured,) = (table for table in tables if table.columns[0] == "MEASUREMENT")
    rows = {row[0]: dict(zip(measured.columns, row, strict=True)) for row in measured.rows}
    mamf, product = rows["mamf_fp8"], rows["matmul_bf16"]
    assert (mamf["RATE"], mamf["MEAN"], mamf["95 % INTERVAL"]) == ("1,362", "1,365", "-")
    assert (product["RATE"], product["MEAN"]) == ("675.1", "681.5")


def test_a_series_with_problems_is_invalid(flagbench: Flagbench, stored: Path, tmp_path: Path) -> None:
    (path,) = stored.glob("series/golden.json")
    series = json.loads(path.read_bytes())
    series["runs"][0]["seconds"] = 0.001
    path.write_text(json.dumps(series), encoding="utf-8")
    checksum = path.with_name("golden.json.sha256")
    checksum.write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  golden.json\n", encoding="utf-8")
    expected = flagbench(f"verify golden --json --store {stored}")
    assert json.loads(expected.out)["verdict"] == "INVALID"
    assert "<strong>INVALID</strong>" in report(flagbench, stored, tmp_path / "out")["series-golden.html"]
    assert flagbench(f"report golden --store {stored} --out {tmp_path / 'alone'}").code == 0
    assert "<strong>INVALID</strong>" in (tmp_path / "alone" / "series-golden.html").read_text(encoding="utf-8")


def test_a_record_cannot_add_to_a_page(flagbench: Flagbench, store: Store, tmp_path: Path) -> None:
    record = json.loads(REPLAY.read_bytes())
    record["conditions"]["device_model"] = HOSTILE
    record["system"]["host"] = HOSTILE
    record["window"] |= {"step_seconds": [1e149, 0], "step_median": 1e149, "drift": -1e149}
    store.put(json.dumps(record).encode())
    pages = report(flagbench, tmp_path / "store", tmp_path / "out")
    assert [name for name in pages if name.startswith("device--script-alert-1-script")]
    for text in pages.values():
        assert "<script" not in text
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("options", "code"),
    [("--out /dev/null/x", 14), ("--out s3://bucket --open", 2), ("--out s3://b@d/x", 2), ("last", 3)],
)
def test_what_cannot_be_made_says_so(flagbench: Flagbench, store: Store, options: str, code: int) -> None:
    assert flagbench(f"report {options}").code == code


def test_an_empty_store_has_an_index(flagbench: Flagbench, tmp_path: Path) -> None:
    assert [*report(flagbench, tmp_path / "none", tmp_path / "out")] == ["index.html"]


def test_a_speed_has_its_unit(flagbench: Flagbench, store: Store, tmp_path: Path) -> None:
    store.put((ROOT / "docs" / "measured" / "h100-roofs-mamf-bf16.json").read_bytes())
    pages = report(flagbench, Path(store.url.removeprefix("file://")), tmp_path / "out")
    (device,) = (text for name, text in pages.items() if name.startswith("device-"))
    for text in (pages["index.html"], device):
        assert ">mamf_bf16 790.1 TFLOP/s</td>" in text


def test_a_column_without_text_is_left_out(flagbench: Flagbench, store: Store, tmp_path: Path) -> None:
    store.put((ROOT / "docs" / "measured" / "h100-distilbert.json").read_bytes())
    pages = report(flagbench, Path(store.url.removeprefix("file://")), tmp_path / "out")
    (device,) = (text for name, text in pages.items() if name.startswith("device-"))
    columns = re.findall(r'<th scope="col">([^<]+)', device.partition("<h2>Records</h2>")[2].partition("</thead>")[0])
    assert columns == ["verdict", "record", "speed", "host", "published row"]  # no ratio: it is not comparable
