"""How fast `warplens report` builds a page, how large it is, how soon it is ready and how it pans: results/report.json.

A real recording (528 x 5120 RMSNorm on an H200) tiled over time to 10^5, 10^6 and 10^7 spans: tile k holds the same
blocks k periods later, each block's phases shifted and stretched by a few cycles drawn with a fixed seed, so that no
tile packs as a copy of another. `build_s` is `report()` with tables in memory; `ready_ms` is from the navigation to
the first whole drawing, `frame_ms` the time a frame takes the page's script, `interval_ms` from frame to frame,
while 900 rows pan. Needs Playwright and Chromium (CHROMIUM, by default that of Debian). Run from the checkout on a
quiet machine: `python benchmarks/report.py`.
"""

from __future__ import annotations

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
VIEWPORT = {"width": 1600, "height": 1740}
"""Room for 900 rows of a pixel each, with the bars of their lanes."""

PAN = """async ([frames, rows]) => {
  const { view } = window.warplens;
  const t = window.warplens;
  view.rowHeight = rows; t.arrange(); view.fit();
  const [low, high] = view.limits;
  const span = (high - low) * share;
  const script = [], intervals = [];
  let last = 0;
  for (let f = 0; f < frames; f++) {
    const now = await new Promise(requestAnimationFrame);
    if (last) intervals.push(now - last);
    last = now;
    const from = low + ((high - low - span) * f) / frames;
    [view.from, view.to] = [from, from + span];
    t.view.y = (f * 7) % 300;
    const begin = performance.now();
    t.drawNow();
    script.push(performance.now() - begin);
  }
  const strips = t.layout;
  const first = strips.stripAt(view.y), last_ = strips.stripAt(view.y + t.height);
  return { script, intervals, rows: strips.first[last_ + 1] - strips.first[first] };
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
        page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
        ready.append(int(page.evaluate("document.documentElement.dataset.ready")))
        if round_ == ROUNDS - 1:
            page.wait_for_timeout(1500)
            for name, share in (("whole", 1.0), ("tenth", 0.1), ("hundredth", 0.01)):
                taken = page.evaluate(PAN.replace("share", str(share)), [FRAMES, ROW_PIXELS])
                panned[name] = {
                    "rows": taken["rows"],
                    **{f"frame_ms_{k}": v for k, v in spread(taken["script"]).items()},
                    **{f"interval_ms_{k}": v for k, v in spread(taken["intervals"]).items()},
                }
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


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 2),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 2),
        "max": round(ordered[-1], 2),
    }


def main() -> None:
    from playwright.sync_api import sync_playwright

    sizes = [int(float(a)) for a in sys.argv[1:]] or SIZES
    load = os.getloadavg()
    with sync_playwright() as tools, tempfile.TemporaryDirectory() as folder:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--enable-precise-memory-info"])
        facts = described("python benchmarks/report.py", "numpy", "polars", "playwright", chromium=browser.version) | {
            "recording": RECORDING.name,
            "seed": SEED,
            "rounds": ROUNDS,
            "frames": FRAMES,
        }
        results = {f"{size:.0e}": measure(browser, size, Path(folder)) for size in sizes}
        browser.close()
    text = json.dumps({**facts, "load_average": {"begin": load, "end": os.getloadavg()}, **results}, indent=1)
    if sys.argv[1:]:
        sys.stdout.write(text + "\n")
        return
    RESULTS.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {RESULTS.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
