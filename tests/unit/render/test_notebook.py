"""A trace in a notebook: small, escaped, and drawn without touching the notebook's own pictures."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import polars as pl
import pytest

import warplens
from tests.unit.render import fake
from warplens.render.colors import PHASES, WAITS
from warplens.render.notebook import MAX_BYTES, html

RECORDING = Path(__file__).parents[3] / "recordings" / "rmsnorm_528x5120_h200.wlens"


def test_a_recording_shows_its_trust_its_phases_and_a_picture_in_less_than_a_megabyte() -> None:
    backend = matplotlib.get_backend()
    shown = warplens.open(RECORDING)._repr_html_()
    assert len(shown) < MAX_BYTES
    for part in ("TRUST", "load_sumsq", "data:image/png;base64,", "warplens.report(trace"):
        assert part in shown
    assert matplotlib.get_backend() == backend


@pytest.mark.parametrize("name", ["</pre><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a\x1b[31mb"])
def test_names_of_strangers_are_shown_as_text(name: str) -> None:
    trace = fake.rmsnorm(blocks=2, sms=1, warps=2, resident=1)
    hostile = replace(trace, sites=trace.sites.with_columns(name=pl.lit(name)))
    shown = html(hostile)
    assert "<script" not in shown
    assert "<img src=x" not in shown
    assert "\x1b" not in shown


def many_shapes() -> Any:
    """80 launches, each of another grid, so that the summary has a table for each."""
    trace = fake.rmsnorm(blocks=2, sms=1, warps=1, resident=1, launches=80)
    return replace(trace, launches=trace.launches.with_columns(grid_x=(pl.col("launch") + 1).cast(pl.UInt32)))


def long_block() -> Any:
    """256 warps of 400 spans each in one block: about as much as a picture can hold."""
    rng = np.random.default_rng(3)
    rows = []
    for warp in range(256):
        at = np.cumsum(rng.integers(1, 400, 401)).tolist()
        rows += [{"start": a, "end": b, "warp": warp, "site": n % 16} for n, (a, b) in enumerate(pairwise(at))]
    return fake.of_spans(rows, [(f"phase {n}", "phase", "") for n in range(16)])


@pytest.mark.parametrize("make", [many_shapes, long_block])
def test_a_large_trace_stays_below_a_megabyte_and_keeps_the_way_to_the_page(make: Callable[[], Any]) -> None:
    shown = html(make())
    assert len(shown.encode()) <= MAX_BYTES
    assert "warplens.report(trace" in shown
    assert "load_sumsq" in shown or "warplens summary" in shown or "phase 15" in shown


def test_it_needs_no_script_no_network_and_no_style_of_the_notebook() -> None:
    shown = html(fake.rmsnorm(blocks=2, sms=1, warps=2, resident=1))
    assert not re.search(r"<script|<link|<iframe|https?:|@import|url\(|\son\w+=", shown)
    assert set(re.findall(r'src="(\w+:)', shown)) == {"data:"}
    assert "monospace" in shown


def test_words_are_read_on_white_and_on_black() -> None:
    """A contrast of 3:1 at least, by WCAG 2; squares in the colours of sites are no words."""
    shown = html(warplens.open(RECORDING))
    assert "color: inherit" in shown
    colors = set(re.findall(r"[^-]color: (#[0-9a-f]{6})", shown)) - {*PHASES, *WAITS}
    assert len(colors) > 2
    for color in colors:
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (luminance + 0.05) > 3, color
        assert (luminance + 0.05) / 0.05 > 3, color


def test_a_trace_without_spans_shows_its_summary() -> None:
    trace = fake.rmsnorm(blocks=2, sms=1, warps=2, resident=1)
    shown = html(replace(trace, spans=trace.spans.clear(), blocks=trace.blocks.clear()))
    assert "TRUST" in shown
