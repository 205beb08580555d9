"""Kernels with more sites than records can tell apart: they get fewer, and the module's other kernels all."""

from __future__ import annotations

import pytest

from tests.unit.instrument.test_marks import WAITING
from warplens.instrument import Selection, instrument

LOOP = "mov.u32 %r3, %ctaid.x; $L: {body} setp.lt.u32 %p1, %r3, 7; @%p1 bra $L;"
STEP = "bar.sync 0; st.global.u32 [%r1], %r2; "
ARRIVE = "bar.arrive 1, 64; st.global.u32 [%r1], %r2; "


@pytest.mark.parametrize(
    ("body", "selection", "gets", "sites"),
    [
        (STEP * 600, Selection("all"), "begin and end", 1),
        (LOOP.format(body=STEP * 600) + STEP * 2, Selection(), "marks outside of loops", 5),
        (ARRIVE * 1100 + STEP, Selection("all"), "marks at its waits", 3),
        (STEP + "mov.u32 %r1, 0; " * 1100, Selection(also=("stores",)), "", 4),
        (
            STEP * 500 + "st.global.u32 [%r1], %r2; " * 500,
            Selection(also=("stores",)),
            "its marks without stores",
            1001,
        ),
    ],
)
def test_a_kernel_with_more_sites_than_can_be_told_apart_gets_fewer(
    body: str, selection: Selection, gets: str, sites: int
) -> None:
    other = "\n.visible .entry small() { bar.sync 0; bar.sync 1; ret; }\n"
    found = instrument(WAITING.format(body=body, arch="sm_90") + other, selection)
    large, small = found.kernels
    assert large.site_set is not None
    assert small.site_set is not None
    assert len(large.site_set["sites"]) == sites
    told = [line for line in large.left_out if "sites are too many to tell apart (at most 1,023)" in line]
    assert [line.partition(": it gets ")[2] for line in told] == ([gets] if gets else [])
    assert [site["kind"] for site in small.site_set["sites"]].count("wait") == 2
    assert not any("too many" in line for line in small.left_out)
