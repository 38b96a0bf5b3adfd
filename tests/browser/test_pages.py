"""The pages of a report in a real browser: what it says of them, what axe-core finds, and that they fit a phone.

`.ci/browser` installs what is needed. Screenshots are in the test's temporary folder (`--basetemp`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from catalogs import CATALOG
from flagbench.accept import certificate
from flagbench.cli import main
from flagbench.records.store import open_store
from honest import Pace, honest_record
from running import need
from unit.host.accept.test_accept import accepted

ROOT = Path(__file__).parents[2]
CLAIM = CATALOG.claims["distilbert/a100-1x8-fp32"]
DEVICE = {"sm_clock_busy_mhz": 1400, "sm_clock_min_mhz": 1200, "sm_clock_max_mhz": 1410}
THROTTLED = DEVICE | {"throttle_seconds": {"hw_thermal_slowdown": 12.0}}
RUN = "record-made-up-2"
PAGES = (
    "index",
    "claim-distilbert-a100-1x8-fp32-6",
    "device-NVIDIA-A100",
    "series-golden",
    RUN,
    "record-20261125",
    "record-20261126T115515Z-roofs",
    "device-NVIDIA-H100",
    "certificate",
)
TABLES_OUTSIDE = """
    [...document.querySelectorAll('.scroll')]
        .filter(table => table.checkVisibility() && table.scrollWidth > table.clientWidth)
        .map(table => table.getAttribute('aria-label'))
"""
VIEWS = [(width, scheme) for width in (400, 1280) for scheme in ("light", "dark")]


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """Playwright's threads stay for the other tests of this module."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright (.ci/browser)")
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    need(program is not None, "Chromium")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=program)
        yield running
        running.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of a store of another release with three more runs, the last slow and throttled, and roofs of an
    H100; a certificate."""
    folder = tmp_path_factory.mktemp("report")
    shutil.copytree(ROOT / "tests" / "replay" / "08a01ae" / "store", folder / "store")
    store = open_store(str(folder / "store"))
    for number, slower in enumerate((1.0, 1.02, 1.12)):
        record = honest_record(CLAIM, Pace(slower=slower, seed=number), steps=140)
        record |= {"record_id": f"made-up-{number}", "run_id": f"made-up-{number}"}
        record |= {"created_at": f"2026-01-0{number + 1}T12:00:00Z"}
        record["telemetry"] = {"devices": [{**DEVICE, "index": 0}, {**THROTTLED, "index": 1}]}
        store.put(json.dumps(record).encode())
    store.put((ROOT / "docs" / "measured" / "h100-roofs-mamf-bf16.json").read_bytes())
    assert main.run(["report", "--store", store.url, "--out", str(folder / "pages")]) == 0
    found = accepted()
    files = certificate.files_of(certificate.certificate_of(found, CATALOG, 50.0), found.records, {})
    (folder / "pages" / certificate.PAGE).write_bytes(files[certificate.PAGE])
    return folder / "pages"


@pytest.fixture
def load(browser: Any, report: Path) -> Iterator[Callable[..., Any]]:
    """Open the page whose file begins so; whatever the browser's console says fails the test."""
    said: list[str] = []
    context = browser.new_context()

    def opened(name: str, width: int = 1280, scheme: str = "light", media: str = "screen") -> Any:
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme, media=media)
        (path,) = sorted(report.glob(f"{name}*.html"))[:1]
        page.goto(path.as_uri())
        return page

    yield opened
    context.close()
    assert said == []


@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_and_fits(name: str, load: Callable[..., Any], tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for width, scheme in VIEWS:
        page = load(name, width, scheme)
        if (width == 400) == (scheme == "light"):  # each width and each scheme once: it takes half a second
            assert [each["id"] for each in axe.run(page).response["violations"]] == []
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert page.evaluate(TABLES_OUTSIDE) == []
        page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
        page.close()


def test_numbers_open_by_keyboard(load: Callable[..., Any]) -> None:
    page = load(RUN)
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    page.keyboard.press("Enter")
    assert page.locator("details[open] td").first.inner_text() == "p_core"


def test_a_chart_is_named_and_described(load: Callable[..., Any]) -> None:
    page = load(RUN)
    titles = ["Speed against the published row", "Step times over the window", "Clocks and throttling"]
    for title in titles:
        assert page.get_by_role("img", name=title).count() == 1
    assert page.locator("svg desc").count() == len(titles) + 1


def test_print_is_light_and_complete(load: Callable[..., Any], tmp_path: Path) -> None:
    page = load(PAGES[1], 800, "dark", "print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(e => e.scrollWidth <= e.clientWidth)")
    page.screenshot(path=tmp_path / "print.png", full_page=True)


def test_links_work_from_a_web_server(report: Path, load: Callable[..., Any]) -> None:
    page = load("index")
    handler = partial(SimpleHTTPRequestHandler, directory=str(report))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/index.html")
        page.get_by_role("link", name="made-up-2").click()
        assert page.get_by_role("heading", level=1).inner_text() == "made-up-2"
        page.get_by_role("link", name="All results").click()
        assert page.title() == "Results - flagbench"
        server.shutdown()
