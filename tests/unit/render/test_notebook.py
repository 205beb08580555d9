"""A trace in a notebook: small, escaped, and drawn without touching the notebook's own pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib
import polars as pl
import pytest

import warplens
from tests.unit.render import fake
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


def test_a_trace_without_spans_shows_its_summary() -> None:
    trace = fake.rmsnorm(blocks=2, sms=1, warps=2, resident=1)
    shown = html(replace(trace, spans=trace.spans.clear(), blocks=trace.blocks.clear()))
    assert "TRUST" in shown
