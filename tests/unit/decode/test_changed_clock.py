"""A launch under whose load the SMs' clocks change: times stay right, block by block, and it is told how right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.synthesis import BlockRecord, Clock, Event, Warp, calibration, encode_warp, manifest
from warplens import layout
from warplens.decode import Decoded, decode
from warplens.decode.manifest import check
from warplens.layout import Control, Verb

SITES = (("load", "phase", ""), ("use", "phase", ""))
SMS, BLOCKS, BLOCK_NS, GAP_NS, BEGIN_NS = 6, 4, 40_000, 300, 150_000
FAST, SLOW = 1.98, 1.76


def clocks_of(sm: int, rates: list[float]) -> list[Clock]:
    """The clock of an SM before its first block, in each of its blocks, and behind the last: each goes on where the one
    before stopped."""
    out = [Clock(5_000_000_000_000 + 1_000_000 * sm, FAST)]
    for number, rate in enumerate([*rates, FAST]):
        t_ns = BEGIN_NS + number * (BLOCK_NS + GAP_NS)
        before = out[-1]
        reached = before.offset_cycles + t_ns * before.cycles_per_ns
        out.append(replace(before, offset_cycles=round(reached - t_ns * rate), cycles_per_ns=rate))
    return out


def decoded(rates: list[float]) -> tuple[Decoded, dict[int, list[int]]]:
    """A launch whose n-th block on each SM runs at the n-th rate, and when its events truly were."""
    chunks, truth = [], {}
    clocks = [clocks_of(sm, rates) for sm in range(SMS)]
    for sm, own in enumerate(clocks):
        for number in range(BLOCKS):
            block, clock = number * SMS + sm, own[1 + number]
            begin_ns = BEGIN_NS + number * (BLOCK_NS + GAP_NS) + 37 * sm
            at = [begin_ns, begin_ns + 11_000, begin_ns + BLOCK_NS - 500]
            cycles = [clock.cycles(t_ns) for t_ns in at]
            events = [Event(Verb.PHASE, cycles[0], 1), Event(Verb.PHASE, cycles[1], 2), Event(Control.END, cycles[2])]
            record = BlockRecord(cycles[0], sm, layout.sites_hash("rmsnorm"))
            where = Warp(block=block, sm=sm, code_bits=7, clock=clock)
            chunks.append(encode_warp(events, where, block_record=record))
            truth[block] = at
    facts: dict[str, Any] = manifest(launches=[{"grid": [SMS * BLOCKS, 1, 1], "block": [32, 1, 1]}], sites=SITES)
    facts["device"]["sm_count"] = SMS
    facts["calibration"] = [
        calibration([own[0] for own in clocks], "before", 0),
        calibration([own[-1] for own in clocks], "after", 100_000_000),
    ]
    facts["clock_state"] = {"before": {"sm_hz": int(FAST * 1e9)}, "after": {"sm_hz": int(FAST * 1e9)}}
    return decode(check(facts), {"records/000000.u32": np.concatenate(chunks)}), truth


def errors_ns(found: Decoded, truth: dict[int, list[int]]) -> list[float]:
    """Of each event's time, but for an error that all have alike."""
    spans = found.spans
    off = []
    for block, start, duration, site in zip(
        spans.block.tolist(), spans.start_ns.tolist(), spans.duration_ns.tolist(), spans.site.tolist(), strict=True
    ):
        off += [start - truth[block][site], start + duration - truth[block][site + 1]]
    return list(np.abs(np.array(off) - np.median(off)))


@pytest.mark.parametrize("rates", [[SLOW] * 4, [FAST, SLOW, SLOW, 1.85], [FAST, FAST, FAST, SLOW]])
def test_times_are_right_to_a_step_or_two_and_the_uncertainty_holds(rates: list[float]) -> None:
    found, truth = decoded(rates)
    worst = max(errors_ns(found, truth))
    assert worst <= 100
    assert worst <= found.launches["uncertainty_ns"][0] <= 5_000


def test_that_the_clock_changed_is_told() -> None:
    found, _ = decoded([FAST, SLOW, SLOW, 1.85])
    (problem,) = [problem for problem in found.problems if problem.kind == "clock_changed"]
    assert problem.severity == "note"
    assert "each block has a line of its own" in problem.text
    assert not [own for own in found.problems if own.severity == "error"]


def test_a_clock_that_stays_has_one_line_an_sm_and_nothing_to_tell() -> None:
    found, truth = decoded([FAST] * 4)
    assert max(errors_ns(found, truth)) <= 60
    assert not [problem for problem in found.problems if problem.kind.startswith("clock")]
