"""Which lines of the source a site's spans are shown with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import warplens
from tests.unit.render import fake
from warplens.render.places import mark_places, sites_at_marks

RECORDING = Path(__file__).parents[3] / "recordings" / "rmsnorm_528x5120_h200.wlens"
TRACE = fake.rmsnorm(blocks=1, sms=1, warps=1, resident=1)
NOWHERE: list[tuple[str, int]] = []


def test_the_sites_of_a_recording_are_shown_where_they_are_marked() -> None:
    trace = warplens.open(RECORDING)
    source = trace.sources["rmsnorm.cu"].splitlines()
    assert set(trace.sites["line"]) == {20}  # where the set is declared
    placed = sites_at_marks(trace.sites, trace.audit)
    for name, file, line in placed.select("name", "file", "line").iter_rows():
        assert file == "rmsnorm.cu"
        assert f"(rmsnorm::{name});" in source[line - 1]
    assert placed.schema == trace.sites.schema


def test_a_site_has_each_of_its_marks_once_in_the_order_of_the_source() -> None:
    rows = [
        {"site": 1, "verb": "phase", "file": "b.cu", "line": 9},
        {"site": 1, "verb": "phase", "file": "a.cu", "line": 30},
        {"site": 1, "verb": "phase", "file": "a.cu", "line": 4},
        {"site": 1, "verb": "phase", "file": "a.cu", "line": 30},  # unrolled
    ]
    places = mark_places(TRACE.sites, fake.audit_frame(rows))
    assert places == [NOWHERE, [("a.cu", 4), ("a.cu", 30), ("b.cu", 9)], *[NOWHERE] * 6]


def test_marks_that_begin_no_span_or_whose_line_is_not_known_are_no_places() -> None:
    rows: list[dict[str, Any]] = [
        {"site": None, "verb": "end", "file": "a.cu", "line": 50},
        {"site": 0, "verb": "range_end", "file": "a.cu", "line": 51},
        {"site": 0, "verb": "landed", "file": "a.cu", "line": 52},
        {"site": 2, "verb": "phase", "file": "", "line": 0},
        {"site": 3, "verb": "phase", "file": "a.cu", "line": 0},
    ]
    audit = fake.audit_frame(rows)
    assert mark_places(TRACE.sites, audit) == [NOWHERE] * 8
    assert sites_at_marks(TRACE.sites, audit).equals(TRACE.sites)
