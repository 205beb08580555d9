"""How fast `warplens report` builds a page, how large it is, how soon it is ready and how it pans: results/report.json.

A real recording (528 x 5120 RMSNorm on an H200) tiled over time to 10^5, 10^6 and 10^7 spans: tile k holds the same
blocks k periods later, each block's phases shifted and stretched by a few cycles drawn with a fixed seed, so that no
tile packs as a copy of another. `build_s` is `report()` with tables in memory. `ready_ms` is from the navigation to
the first whole drawing, overview and tables too, as the page itself notes it (`data-ready`); nothing is asked of the
page meanwhile. Then, for a window on all of the time, on a tenth and on a hundredth, each frame moves it in time and
by 7 rows: a window on a part goes through all of the time in FRAMES frames, one on the whole goes to and fro by 5 % of
its width, 1 % a frame. `frame_ms` is what the page's script takes for it, `interval_ms` from frame to frame: at 60 Hz
16.7, or 33.3 where one was missed. 900 rows of a pixel or more are drawn. `zoom` is the same with a window that also
changes its width, so that all is drawn anew. Needs Playwright and Chromium (CHROMIUM, by default that of Debian). Run
from the checkout on a quiet machine: `python benchmarks/report.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from machine import described

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import warplens  # noqa: E402
from warplens.render.report import report  # noqa: E402
from warplens.trace import Trace  # noqa: E402

RECORDING = ROOT / "recordings" / "rmsnorm_528x5120_h200.wlens"
RESULTS = ROOT / "benchmarks" / "results" / "report.json"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
SIZES = (100_000, 1_000_000, 10_000_000)
SEED = 1
PERIOD_NS = 6_000
CYCLES_PER_NS = 1.98
JITTER_CYCLES = 9
ROUNDS = 3
FRAMES = 120
ROW_PIXELS = 1
VIEWPORT = {"width": 1600, "height": 1880}
"""Room for 900 rows of a pixel each, with the bars of their lanes."""
LEAST_ROWS = 900
SETTLE_S = {100_000: 3, 1_000_000: 4, 10_000_000: 8}
"""After so long a page that was opened is asked whether it is ready: to ask sooner would take time from it."""
WINDOWS = {"whole": (1.0, 0.0), "tenth": (0.1, 0.0), "hundredth": (0.01, 0.0), "zoom": (0.9, 0.002)}
"""Share of the time, and by how much of itself a window changes each frame."""

PAN = """async ([share, zoom, frames, rowHeight]) => {
  const t = window.warplens;
  const { view } = t;
  view.rowHeight = rowHeight; t.arrange(); view.fit();
  const [low, high] = view.limits;
  const whole = high - low;
  const script = [], intervals = [];
  let [last, least] = [0, Infinity];
  for (let f = 0; f < frames; f++) {
    const now = await new Promise(requestAnimationFrame);
    if (last) intervals.push(now - last);
    last = now;
    const span = whole * share * (1 + zoom * f);
    const swing = 0.01 * (5 - Math.abs((f % 20) - 10)) * whole;
    const from = low + (share < 1 ? Math.max(((whole - span) * f) / frames, 0) : swing);
    [view.from, view.to, view.y] = [from, from + span, (f * 7) % 300];
    const begin = performance.now();
    t.drawNow();
    script.push(performance.now() - begin);
    const [top, bottom] = [view.y, view.y + t.height].map((y) => Math.max(t.layout.stripAt(y), 0));
    const half = (strip, y) => Math.max(Math.floor((y - t.layout.top[strip] - t.layout.bar) / rowHeight), 0);
    const rows = t.layout.first[bottom] + half(bottom, view.y + t.height) - (t.layout.first[top] + half(top, view.y));
    least = Math.min(least, rows);
  }
  return { script, intervals, rows: least };
}"""


def tiled(size: int) -> Trace:
    """The recording tiled to `size` spans, in the shape that `decode` gives."""
    trace = warplens.open(RECORDING)
    tiles = -(-size // len(trace.spans))
    count = len(trace.blocks)
    spans = (
        jittered(
            pl.concat(
                trace.spans.with_columns(
                    pl.col("block") + tile * count,
                    pl.col("start_ns") + tile * PERIOD_NS,
                    pl.col("start_cycles") + tile * round(PERIOD_NS * CYCLES_PER_NS),
                )
                for tile in range(tiles)
            )
        )
        .head(size)
        .rechunk()
    )
    blocks = pl.concat(
        trace.blocks.with_columns(
            pl.col("block") + tile * count, pl.col("x") + tile * count, pl.col("start_ns", "end_ns") + tile * PERIOD_NS
        )
        for tile in range(tiles)
    ).filter(pl.col("block") <= spans["block"][-1])
    end = pl.lit(int(blocks["end_ns"].to_numpy().max()))
    grid, events = pl.lit(tiles * count, pl.UInt32), pl.lit(size, pl.UInt64)
    launches = trace.launches.with_columns(grid_x=grid, end_ns=end, duration_ns=end, events=events)
    out = Trace(trace._contents, path=Path(f"tiled_{size}.wlens"))
    out._frames = {"launches": launches, "blocks": blocks, "spans": spans}
    out._frames |= {"sites": trace.sites, "problems": trace.problems}
    out._origin_ns = trace.origin_ns
    return out


def jittered(spans: pl.DataFrame) -> pl.DataFrame:
    """Each boundary between two spans of a warp moved by up to JITTER_CYCLES; spans too short for that stay."""
    key = spans["block"].to_numpy().astype(np.int64) << 8 | spans["warp"].to_numpy()
    first = np.append(True, key[1:] != key[:-1])
    duration = spans["duration_cycles"].to_numpy()
    wide = duration > 2 * JITTER_CYCLES
    free = wide & np.append(False, wide[:-1]) & ~first
    begin = np.random.default_rng(SEED).integers(-JITTER_CYCLES, JITTER_CYCLES + 1, len(spans)) * free
    end = np.append(begin[1:], 0)  # 0 where the next span is another warp's: its begin does not move
    begin_ns, end_ns = (np.rint(cycles / CYCLES_PER_NS).astype(np.int64) for cycles in (begin, end))
    return spans.with_columns(
        start_cycles=spans["start_cycles"] + begin,
        duration_cycles=pl.Series(duration + end - begin),
        start_ns=spans["start_ns"] + begin_ns,
        duration_ns=spans["duration_ns"] + end_ns - begin_ns,
    )


def measure(browser: Any, size: int, folder: Path) -> dict[str, Any]:
    trace = tiled(size)
    path = folder / "page.html"
    build = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        report(trace, path)
        build.append(time.perf_counter() - begin)
    del trace
    ready, panned = [], {}
    for round_ in range(ROUNDS):
        page = browser.new_page(viewport=VIEWPORT)
        page.goto(path.as_uri())
        page.wait_for_timeout(1000 * SETTLE_S.get(size, 8))
        page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
        ready.append(int(page.evaluate("document.documentElement.dataset.ready")))
        if round_ == ROUNDS - 1:
            for name, (share, zoom) in WINDOWS.items():
                panned[name] = pan(page, share, zoom)
            panned["heap_bytes"] = page.evaluate("performance.memory?.usedJSHeapSize ?? null")
        page.close()
    return {
        "spans": size,
        "page_bytes": path.stat().st_size,
        "page_bytes_per_span": path.stat().st_size / size,
        "build_s": build,
        "ready_ms": ready,
        "pan": panned,
    }


def pan(page: Any, share: float, zoom: float) -> dict[str, Any]:
    taken = page.evaluate(PAN, [share, zoom, FRAMES, ROW_PIXELS])
    if not taken["rows"] >= LEAST_ROWS:
        raise SystemExit(f"{taken['rows']} rows were drawn, not {LEAST_ROWS}: a higher VIEWPORT is needed")
    frames, intervals = spread(taken["script"]), spread(taken["intervals"])
    return {
        "rows": taken["rows"],
        **{f"frame_ms_{k}": v for k, v in frames.items()},
        **{f"interval_ms_{k}": v for k, v in intervals.items()},
    }


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 2),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 2),
        "max": round(ordered[-1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "sizes", nargs="*", type=float, help="spans, such as 1e6: printed; else all sizes, written to results/"
    )
    asked = [int(size) for size in parser.parse_args().sizes]
    from playwright.sync_api import sync_playwright

    load = os.getloadavg()
    with sync_playwright() as tools, tempfile.TemporaryDirectory() as folder:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--enable-precise-memory-info"])
        facts = described("python benchmarks/report.py", "numpy", "polars", "playwright", chromium=browser.version) | {
            "recording": RECORDING.name,
            "seed": SEED,
            "rounds": ROUNDS,
            "frames": FRAMES,
            "viewport": VIEWPORT,
        }
        results = {f"{size:.0e}": measure(browser, size, Path(folder)) for size in asked or SIZES}
        browser.close()
    text = json.dumps({**facts, "load_average": {"begin": load, "end": os.getloadavg()}, **results}, indent=1)
    if asked:
        sys.stdout.write(text + "\n")
        return
    RESULTS.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {RESULTS.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
