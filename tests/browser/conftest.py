"""Chromium, driven by Playwright, and pages in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from warplens.render.report import report

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    tools = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium: apt install chromium, or its path in CHROMIUM")
    with tools.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Open]:
    """Writes a trace's page and opens it; at the end no error and no request but for the file may have been seen."""
    errors: list[str] = []
    requests: list[str] = []
    tabs = []

    def show(
        trace: Any, *, hash_: str = "", width: int = 1280, height: int = 900, dark: bool = False, **options: Any
    ) -> Any:
        path = report(trace, tmp_path / "page.html", **options).path
        tab = chromium.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
        tab.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
        tab.on("pageerror", lambda e: errors.append(str(e)))
        tab.on("request", lambda r: requests.append(r.url))
        tab.goto(path.as_uri() + hash_)
        tab.wait_for_selector("html[data-ready]", state="attached", timeout=20_000)
        tabs.append(tab)
        return tab

    yield show
    for tab in tabs:
        tab.close()
    assert errors == []
    assert {url.partition("#")[0] for url in requests} <= {(tmp_path / "page.html").as_uri()}
