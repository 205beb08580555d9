"""Makes docs/images/page.png: the page of the demo's recording, with the longest wait at its barrier chosen.

Needs Chromium and Playwright, as `pytest -m browser` does: `python docs/page_picture.py`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import warplens
from warplens.demo import bundled_trace

PICTURE = Path(__file__).parent / "images" / "page.png"
SITE = "barrier"


def main() -> None:
    """Writes the picture."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        recording, page = Path(folder, "warplens-demo.wlens"), Path(folder, "page.html")
        bundled_trace().save(recording)
        warplens.report(warplens.open(recording), page)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1440, "height": 1000})
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        tab.locator("table.phases button", has_text=SITE).first.click()
        tab.locator("#slowest").click()
        tab.mouse.move(0, 0)
        tab.wait_for_timeout(500)
        tab.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
