"""A real browser for pages: fixtures for all tests of pages, and what they ask a page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


# For a module and not for all of them: while it is there, the thread has an event loop that runs.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, or a skip where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here; `make browser` installs it")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens HTML, or what is at an address. Its scripts must not fail, nor ask for anything from elsewhere."""
    opened: list[Any] = []

    def open_(
        html: str, width: int = 1280, height: int = 640, scheme: str = "light", allowed: str = "file:"
    ) -> Any:
        path = tmp_path / f"{len(opened)}.html"
        address = html
        if not html.startswith(("http:", "file:")):
            path.write_text(html, encoding="utf-8")
            address = path.as_uri()
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("console", lambda m: m.type == "error" and page.problems.append(m.text))
        page.on("request", lambda r: r.url.startswith((allowed, "data:", "blob:")) or page.problems.append(r.url))
        page.goto(address)
        opened.append(page)
        return page

    yield open_
    for page in opened:
        assert page.problems == []
        page.close()


def settle(page: Any) -> None:
    """Until what was asked for is drawn."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def inked(page: Any, chart: str) -> int:
    """Pixels of a chart that something was drawn on."""
    count: int = page.evaluate(
        """id => { const c = document.querySelector(`#${id} canvas`);
            const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
            let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; }""",
        chart,
    )
    return count
