"""Bulk copies by TMA: which are issued behind a warp's last wait at an mbarrier, at instructions and at marks."""

from __future__ import annotations

import pytest

from tests.sass import Ins, at, section
from tests.unit.audit.test_findings import EXIT, SITES, compute, end, find, load_x
from warplens.audit import audit
from warplens.audit.bulk import BulkLoads
from warplens.audit.flow import Flow

TENSOR = Ins("UTMALDG.2D [UR8], [UR22]", read=1, places=at(12))
PLAIN = Ins("@P0 UBLKCP.S.G [UR8], [UR6], UR10", read=2, places=at(14))
STORE = Ins("UBLKCP.G.S [UR8], [UR6], UR10")
ASK = Ins("SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR9+0x20000], R14", write=1, places=at(20))
CLOCK = Ins("CS2R.32 R9, SR_CLOCKLO")


def under_way(*items: Ins | str) -> list[list[int] | None]:
    """At each instruction."""
    found = BulkLoads(Flow(section(items)))
    at = (found.at(index) for index in range(sum(isinstance(own, Ins) for own in items)))
    return [None if own is None else sorted(own) for own in at]


def test_a_copy_may_be_under_way_until_some_mbarrier_is_asked() -> None:
    found = under_way(CLOCK, TENSOR, PLAIN, STORE, CLOCK, ASK, CLOCK, TENSOR, CLOCK, EXIT)
    assert found == [[], [], [1], [1, 2], [1, 2], [1, 2], [], [], [7], [7]]


def test_it_is_what_some_way_issues() -> None:
    assert under_way(Ins("@P0 BRA `(.L_x_0)"), TENSOR, ".L_x_0", CLOCK, EXIT)[2] == [1]
    turn = under_way(".L_x_0", CLOCK, ASK, TENSOR, Ins("@P0 BRA `(.L_x_0)"), EXIT)
    assert turn == [[2], [2], [], [2], [2]]


def test_without_copies_or_questions_nothing_is_looked_for() -> None:
    assert under_way(CLOCK, Ins("CALL.REL.NOINC `(nowhere)"), EXIT) == [[], [], []]


@pytest.mark.parametrize("inside", [ASK, TENSOR])
def test_where_a_function_copies_or_asks_nothing_is_known(inside: Ins) -> None:
    calls = (TENSOR, Ins("CALL.REL.NOINC `(callee)"), CLOCK, EXIT, "callee")
    assert under_way(*calls, inside, Ins("RET.REL.NODEC R20"))[2] is None
    assert under_way(*calls, Ins("RET.REL.NODEC R20"))[2] == [0]
    assert under_way(TENSOR, Ins("CALL.ABS.NOINC R4"), CLOCK, EXIT)[2] is None
    assert under_way(TENSOR, Ins("BRX R4 -0x10"), CLOCK, EXIT)[0] is None


def test_marks_have_the_copies_by_line_and_the_build_their_number() -> None:
    code = [load_x(), TENSOR, TENSOR, compute(), ASK, PLAIN, end(), EXIT]
    found = audit(section(code), SITES, find)
    assert found.columns["bulk_loads"] == ["", "2 UTMALDG line 12", "UBLKCP line 14"]
    assert found.columns["outstanding_loads"] == [0, 0, 0]
    assert found.facts["traced"]["bulk_loads"] == 3
    call = [load_x(), TENSOR, Ins("CALL.ABS.NOINC R4"), compute(), end(), EXIT]
    assert audit(section(call), SITES, find).columns["bulk_loads"] == [None] * 3
