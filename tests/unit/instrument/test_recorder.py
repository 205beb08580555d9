"""What the recorder of instrumented PTX writes, run on the CPU (tests/ptx_machine.py) and read by the decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ptx_machine import Machine
from tests.synthesis import manifest
from warplens import layout
from warplens.capture.recording import Recording
from warplens.decode.last import last_events
from warplens.instrument import Mode, Selection, State, instrument
from warplens.instrument.shared_state import SHARED_STATE
from warplens.instrument.source import marker
from warplens.instrument.staged import NEED, SLOT_BYTES, STAGE
from warplens.trace import Trace

DESCRIPTOR, CONTROL = 0x1000, layout.CONTROL_ALIGNMENT
CHUNKS = 7 << 32
LIST = 6 << 32
NEEDS = 5 << 32
STATE = 0x800
SLOTS = 0x2400  # as on a GPU, where the system has the first 1 KiB: aligned to 1024 bytes, and no more
STAGED = (State.STAGED, State.STAGED_FEWER)
BY_LANES = tuple(state for state in State if state not in STAGED)
"""In which a lane writes its warp's chunks alone: one can run after the other (else test_staged.py)."""
LOOP = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry loop(.param .u32 n)
.reqntid {threads}
{{
	.reg .b32 %r<4>;
	.reg .pred %p1;
	ld.param.u32 %r1, [n];
	mov.u32 %r2, 0;
$again:
	bar.sync 0;
	add.u32 %r2, %r2, 1;
	st.global.u32 [1024], %r2;
	bar.sync 1;
	st.global.u32 [1024], %r2;
	setp.lt.u32 %p1, %r2, %r1;
	@%p1 bra $again;
	ret;
}}
"""

LONE = LOOP.replace(
    "	bar.sync 1;",
    """	mov.u32 %r3, %tid.x;
	setp.ne.u32 %p2, %r3, 0;
	@%p2 bra $over;
	mbarrier.arrive.shared.b64 _, [full];
$over:
	bar.sync 1;""",
)
"""Lane 0 of the block alone arrives: it passes more marks than the lanes beside it."""

STRAIGHT = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry straight(.param .u32 n)
.reqntid {threads}
{{
	.reg .b32 %r<4>;
	ld.param.u32 %r1, [n];
	bar.sync 0;
	st.global.u32 [%r1], %r1;
	bar.sync 1;
	ret;
}}
"""


@dataclass
class Run:
    """A machine after one launch, with what the host would read."""

    machine: Machine
    trace: Trace
    chunks: Any
    lost_events: int
    lost_chunks: int


def run(
    text: str,
    *,
    grid: int = 1,
    threads: int = 64,
    turns: int = 3,
    depth: int = 64,
    slab: int = 2,
    choice: dict[str, int] | None = None,
    more: int = 0,
    blocks: int | None = None,
    machine: Machine | None = None,
    state: State = State.REGISTERS,
    selection: Selection | None = None,
    slot_bytes: int = SLOT_BYTES,
) -> Run:
    """Launches an instrumented kernel with memory for `depth` chunks at each cursor.

    `blocks`: bits of a list of 40 blocks, for a kernel of a program that nvcc built. `more`: bits of the fourth word.
    """
    selection = selection or Selection("all")
    found = instrument(text, selection, state=state)
    if slot_bytes != SLOT_BYTES:
        found = instrument(text, modes={found.kernels[0].name: Mode(selection, state=state, slot_bytes=slot_bytes)})
    if blocks is not None:
        own = f".const .align 8 .b8 {layout.DESCRIPTOR_SYMBOL}[24];\n.visible .entry"
        found = instrument(text.replace(".visible .entry", own, 1), selection, in_program=True)
    sites = found.kernels[0].site_set
    assert sites is not None
    symbols = {layout.DESCRIPTOR_SYMBOL: DESCRIPTOR, "warplens_own": 0, "full": 64, "empty": 72, "out": 1024}
    symbols |= {SHARED_STATE: STATE, STAGE: SLOTS, NEED: NEEDS, "$wl_state": 64}
    machine = machine or Machine(symbols)
    machine.symbols = symbols
    machine.store_wide(DESCRIPTOR, CONTROL)
    machine.store_wide(DESCRIPTOR + 8, CHUNKS)
    machine.store(DESCRIPTOR + 16, depth * layout.CURSOR_COUNT)
    for number, word in enumerate(layout.choice(**(choice or {}))):
        machine.store(CONTROL + 4 * number, word)
    machine.store(CONTROL + 12, machine.load(CONTROL + 12) | more)
    machine.store_wide(CONTROL + layout.CONTROL_LIST_ADDRESS, LIST)
    machine.store_wide(CONTROL + layout.CONTROL_LIST_BLOCKS, 40)
    machine.store_wide(LIST, blocks or 0)
    machine.store(CONTROL + layout.CONTROL_SLAB, slab)
    cursors = [CONTROL + layout.CONTROL_CURSORS + n * layout.CURSOR_STRIDE for n in range(layout.CURSOR_COUNT)]
    for number, cursor in enumerate(cursors):
        machine.store(cursor, number)
    machine.touched.clear()
    machine.run(found.text, grid=grid, threads=threads, grid_id=5, arguments={"n": turns})
    chunks = chunks_of(machine, depth)
    lost = [machine.load_wide(CONTROL + at) for at in (layout.CONTROL_LOST_EVENTS, layout.CONTROL_LOST_CHUNKS)]
    launch = {"grid": [grid, 1, 1], "block": [threads, 1, 1], "grid_id": 5}
    facts = manifest(launches=[launch | {"lost_events": lost[0], "lost_chunks": lost[1]}])
    facts["site_sets"] = [sites]
    facts["kernels"][0]["site_set"] = sites["name"]
    trace = Trace.from_recording(Recording(facts, {"records/000000.u32": chunks}))
    return Run(machine, trace, chunks, *lost)


def chunks_of(machine: Machine, depth: int) -> Any:
    """Chunks that were written, where each cursor had `depth`."""
    written = sorted({(address - CHUNKS) // layout.CHUNK_BYTES for address in machine.touched if address >= CHUNKS})
    assert all(index < depth * layout.CURSOR_COUNT for index in written), "a store behind the memory for chunks"
    words = [
        [machine.memory.get(CHUNKS + index * layout.CHUNK_BYTES + 4 * n, 0) for n in range(layout.CHUNK_WORDS)]
        for index in written
    ]
    return np.array(words, np.uint32).reshape(-1, layout.CHUNK_WORDS)


def kinds(trace: Trace) -> set[str]:
    return {row["kind"] for row in trace.problems.to_dicts()}


def test_a_warp_records_its_begin_each_wait_and_phase_and_its_end() -> None:
    done = run(LOOP.format(threads=32), threads=32, turns=2)
    spans = done.trace.spans.sort("sequence")
    names = [done.trace.sites["name"][site] for site in spans["site"]]
    turn = ["ptx:13 wait barrier 0", "ptx:15 store", "ptx:16 wait barrier 1", "ptx:17 store"]
    assert names == ["ptx:10", *turn, *turn]  # the sum in line 14 goes ahead of the barrier
    assert len(done.chunks) == 1
    assert done.lost_events == 0


EVEN = LOOP.replace("	bar.sync 0;", "	cp.async.wait_all;")
"""In each turn the record of a wait that ends by itself goes out with the one behind it."""


@pytest.mark.parametrize("front", ["", "	bar.sync 2;\n", "	st.global.u32 [1024], %r1;\n	bar.sync 2;\n"])
@pytest.mark.parametrize(("depth", "slab", "turns"), [(64, 2, 1), (64, 1, 7), (64, 4, 20), (3, 1, 20), (0, 1, 5)])
def test_records_that_go_out_by_twos_are_all_there_in_their_order(
    front: str, depth: int, slab: int, turns: int
) -> None:
    text = EVEN.replace("$again:\n", f"{front}$again:\n").format(threads=64)
    assert "{%wl_k0, %wl_k1}" in instrument(text, Selection("all")).text
    done = run(text, turns=turns, depth=depth, slab=slab)
    single = run(text, turns=turns, depth=64, state=State.LOCAL)
    for warp in range(2):
        own, other = (
            of.trace.spans.filter(of.trace.spans["warp"] == warp).sort("sequence")["site"].to_list()
            for of in (done, single)
        )
        assert own == other[: len(own)]
        if done.lost_events == 0:
            assert own == other
    assert len(done.trace.spans) + done.lost_events == len(single.trace.spans)
    assert "unknown_site" not in kinds(done.trace)


def test_durations_are_those_of_the_machine() -> None:
    machine = Machine({}, waits={"0": 5_000, "1": 90_000})
    done = run(LOOP.format(threads=32), threads=32, turns=4, machine=machine)
    by_site = done.trace.spans.group_by("site").agg("duration_cycles").sort("site").to_dicts()
    names = {done.trace.sites["name"][row["site"]]: row["duration_cycles"] for row in by_site}
    assert all(5_000 < own < 5_200 for own in names["ptx:13 wait barrier 0"])
    assert all(90_000 < own < 90_200 for own in names["ptx:16 wait barrier 1"])


@settings(max_examples=3, deadline=None)
@given(
    warps=st.integers(1, 3),
    grid=st.integers(1, 3),
    turns=st.integers(1, 20),
    slab=st.integers(0, 4),
)
def test_every_event_is_there_in_any_shape(warps: int, grid: int, turns: int, slab: int) -> None:
    done = run(LOOP.format(threads=32 * warps), grid=grid, threads=32 * warps, turns=turns, slab=slab)
    assert len(done.trace.spans) == warps * grid * (1 + 4 * turns)
    assert done.lost_events == 0
    assert "gap" not in kinds(done.trace)
    assert "unended_warp" not in kinds(done.trace)


@pytest.mark.parametrize("state", BY_LANES)
@pytest.mark.parametrize("others", [0, 1, 2, 5])
def test_what_one_lane_does_alone_is_there_and_lanes_that_count_fewer_marks_lose_nothing(
    others: int, state: State
) -> None:
    """The lanes beside it count fewer marks, and all of a warp go on to the next chunk when one of them says so."""
    machine = Machine({}, others=others)
    text = LONE.format(threads=64)
    done = run(text, threads=64, turns=20, depth=200, machine=machine, state=state)
    counts = dict(done.trace.spans.group_by("warp", "site").len().select("site", "warp", "len").rows_by_key("site"))
    names = done.trace.sites["name"].to_list()
    assert counts[names.index("ptx:19 arrive mbarrier full")] == [(0, 20)]
    for name in ("ptx:13 wait barrier 0", "ptx:21 wait barrier 1"):
        assert sorted(counts[names.index(name)]) == [(0, 20), (1, 20)]
    assert (done.lost_events, kinds(done.trace) & {"gap", "unended_warp", "wrapped"}) == (0, set())


@settings(max_examples=3, deadline=None)
@given(warps=st.integers(1, 3), turns=st.integers(1, 24), slab=st.integers(1, 4), depth=st.integers(0, 3))
def test_what_finds_no_space_is_counted_to_the_event(warps: int, turns: int, slab: int, depth: int) -> None:
    done = run(LOOP.format(threads=32 * warps), threads=32 * warps, turns=turns, slab=slab, depth=depth)
    flag = layout.META_FLAGS_SHIFT
    assert all(chunk[layout.WORD_META] >> flag & layout.ChunkFlag.STREAM for chunk in done.chunks)
    kept = int((done.chunks[:, layout.HEADER_WORDS :] != 0).sum())
    ended = done.chunks[:, layout.WORD_META] >> flag & layout.ChunkFlag.BLOCK_RECORD != 0
    kept -= int((done.chunks[ended, layout.BLOCK_RECORD_WORD :] != 0).sum())
    expected = warps * (1 + 4 * turns)
    ends = kept + done.lost_events - expected  # a warp's end is a record where it finds space
    assert 0 <= ends <= warps
    if done.lost_events == 0:
        assert ends == warps
    assert (done.lost_chunks > 0) == (done.lost_events > 0)


@pytest.mark.parametrize("head", [".reqntid {threads}", ".maxntid 1024", ""])
def test_each_warp_of_a_block_of_any_shape_has_a_slot_of_its_own_in_shared_memory(head: str) -> None:
    text = LOOP.replace(".reqntid {threads}", head).format(threads=96)
    machine = Machine({})
    done = run(text, grid=2, threads=96, turns=40, machine=machine, state=State.SHARED)
    assert done.trace.spans.group_by("block", "warp").len()["len"].to_list() == [1 + 4 * 40] * 6
    assert kinds(done.trace) <= {"not_measured"}
    slots = {(block, 0x800 + 32 * warp + 4 * word) for block in (0, 1) for warp in (0, 1, 2) for word in range(7)}
    assert set(machine.shared) == slots


@pytest.mark.parametrize("state", BY_LANES)
def test_blocks_and_warps_that_are_not_chosen_write_nothing(state: State) -> None:
    choice = {"every_block": 3, "warp_mask": 2}
    done = run(LOOP.format(threads=64), grid=6, turns=12, choice=choice, state=state)
    assert sorted(set(done.trace.spans["block"])) == [0, 3]
    assert set(done.trace.spans["warp"]) == {1}


@pytest.mark.parametrize("text", [LOOP, STRAIGHT])
def test_in_a_program_blocks_are_chosen_by_a_list_too(text: str) -> None:
    listed, turns = 1 << 1 | 1 << 3 | 1 << 34, DESCRIPTOR + 64 if text is STRAIGHT else 1
    kernel = text.format(threads=32)
    some = run(kernel, threads=32, grid=42, turns=turns, more=layout.CHOICE_LIST, blocks=listed)
    assert sorted(set(some.trace.spans["block"])) == [1, 3, 34]
    every = run(kernel, threads=32, grid=5, turns=turns, blocks=listed)
    assert sorted(set(every.trace.spans["block"])) == [0, 1, 2, 3, 4]


def test_in_a_program_replays_that_a_window_would_choose_write_nothing() -> None:
    done = run(LOOP.format(threads=32), threads=32, more=layout.CHOICE_WINDOW, blocks=0)
    assert not len(done.chunks)


@pytest.mark.parametrize("state", BY_LANES)
def test_without_a_descriptor_nothing_is_touched(state: State) -> None:
    text = instrument(LOOP.format(threads=64), Selection("all"), state=state).text
    machine = Machine({layout.DESCRIPTOR_SYMBOL: DESCRIPTOR, "warplens_own": 0, SHARED_STATE: STATE, "$wl_state": 64})
    machine.run(text, grid=2, threads=64, grid_id=5, arguments={"n": 50})
    assert machine.touched == {1024}


@pytest.mark.parametrize("shift", [20, 22, 24, 33])
def test_a_wait_longer_than_records_tell_is_exact_or_doubted(shift: int) -> None:
    """With six sites a record tells 2^24 cycles."""
    machine = Machine({}, waits={"1": 1 << shift})
    done = run(LOOP.format(threads=32), threads=32, turns=3, machine=machine)
    waits = done.trace.spans.filter(done.trace.spans["site"] == 3)["duration_cycles"]
    right = all(abs(own - (1 << shift)) < 500 for own in waits)
    assert right or "wrapped" in kinds(done.trace)
    if shift <= 22:
        assert right


def test_a_kernel_that_passes_each_mark_once_asks_for_no_space_on_its_way() -> None:
    text = instrument(STRAIGHT.format(threads=64)).text
    assert "$wl_next" not in text
    done = run(STRAIGHT.format(threads=64), grid=2, turns=DESCRIPTOR + 64)
    names = [done.trace.sites["name"][site] for site in done.trace.spans.sort("block", "warp", "sequence")["site"]]
    assert names == ["ptx:9", "ptx:10 wait barrier 0", "ptx:11 store", "ptx:12 wait barrier 1", "ptx:13"] * 4
    assert "no_end" not in kinds(done.trace)


@pytest.mark.parametrize("behind", ["	ld.global.u32 %r2, [1024];\n", "	bar.sync 2;\n", ""])
def test_a_mark_ahead_of_all_loads_does_not_wait_for_memory(behind: str) -> None:
    """Its record goes out with that of the begin, when the chunk is there; each warp has all of them in their order."""
    front = f"	{marker('phase', 'first')}\n{behind}"
    text = STRAIGHT.replace("	bar.sync 0;\n", f"{front}	bar.sync 0;\n").format(threads=64)
    marked = instrument(text).text
    waited = marked.index("bra.uni $wl_lost")
    if "ld.global" in behind:
        assert marked.index("atom.global") < marked.index("ld.global.u32 %r2") < waited
        assert marked.index("%clock;") < waited
    assert waited < marked.index("bar.sync")
    done = run(text, grid=2, turns=DESCRIPTOR + 64)
    names = [done.trace.sites["name"][site] for site in done.trace.spans.sort("block", "warp", "sequence")["site"]]
    assert len(names) % 4 == 0
    assert names == names[: len(names) // 4] * 4
    assert "first" in names[1]
    assert not kinds(done.trace) & {"no_end", "gap", "unknown_site"}
    lost = run(text, grid=2, depth=0, turns=DESCRIPTOR + 64)
    assert (lost.lost_events, lost.lost_chunks, len(lost.chunks)) == (len(names), 4, 0)


def test_a_kernel_without_marks_is_open_ahead_of_its_first_barrier() -> None:
    """What is asked for takes registers until then, and what the kernel waits for anyway hides the answer."""
    text = instrument(STRAIGHT.format(threads=64), Selection(sites="no such site")).text
    assert text.index("bra.uni $wl_lost") < text.index("bar.sync 0")


IN_REGISTERS = (State.REGISTERS, State.FEWER_REGISTERS)
"""States with which nothing is asked at the marks of a kernel that passes each once."""
HANGS = {
    "a wait": "$again:\n	mbarrier.try_wait.parity.shared.b64 %p1, [full], %r1;\n	@!%p1 bra $again;",
    "a loop": "$again:\n	st.global.u32 [1024], %r1;\n	setp.ne.u32 %p1, %r1, 0;\n	@%p1 bra $again;",
}


@pytest.mark.parametrize("state", BY_LANES)
@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("what", HANGS)
def test_the_last_record_of_a_warp_that_hangs_is_that_of_the_place_where_it_hangs(
    what: str, before: int, state: State
) -> None:
    """Also where records go out by twos: one that waits for another says no more than that there was one before."""
    some = "	bar.sync 0;\n" + "	st.global.u32 [1024], %r1;\n	mbarrier.arrive.shared.b64 _, [empty];\n" * before
    text = STRAIGHT.replace("	bar.sync 0;\n	st.global.u32 [%r1], %r1;\n", some + HANGS[what] + "\n")
    text = text.replace(".visible .entry", ".shared .align 8 .b64 full;\n.shared .align 8 .b64 empty;\n.visible .entry")
    found = instrument(text.format(threads=32), state=state)
    assert ("$wl_next" in found.text) == (state not in IN_REGISTERS)
    machine = Machine({}, asks=1 << 30, most_steps=2000)  # without a hang a lane ends after less than 300
    with pytest.raises(AssertionError, match="does not end"):
        run(text.format(threads=32), threads=32, machine=machine, state=state, selection=Selection())
    assert found.kernels[0].site_set is not None
    names = [site["name"] for site in found.kernels[0].site_set["sites"]]
    bits = layout.code_bits(len(names))
    ((_, _, _, record),), ended = last_events(chunks_of(machine, 64), bits)
    behind = next(n for n, name in enumerate(names) if name.endswith("wait barrier 1"))
    assert names[layout.read_code(record, bits)[0] - 1] == names[behind - 1]
    assert ("wait mbarrier full" in names[behind - 1]) == (what == "a wait")
    assert ended == 0


class _Hangs(dict[str, int]):
    """Barriers of which one does not end."""

    def get(self, number: str, otherwise: int = 0) -> int:  # type: ignore[override]
        if number == "1":
            raise AssertionError("the barrier does not end")
        return otherwise


@pytest.mark.parametrize("leaves", ["", "	setp.eq.u32 %p1, %r1, 0;\n	@%p1 ret;\n"])
def test_a_warp_that_hangs_where_no_mark_was_asked_for_has_stored_the_mark_before(leaves: str) -> None:
    text = STRAIGHT.replace("	bar.sync 0;\n", leaves + "	bar.sync 0;\n").format(threads=32)
    machine, selection = Machine({}, waits=_Hangs()), Selection(sites="barrier 0|store")
    with pytest.raises(AssertionError, match="does not end"):
        run(text, threads=32, turns=64, machine=machine, selection=selection)
    sites = instrument(text, selection).kernels[0].site_set
    assert sites is not None
    bits = layout.code_bits(len(sites["sites"]))
    ((_, _, _, record),), _ = last_events(chunks_of(machine, 64), bits)
    assert sites["sites"][layout.read_code(record, bits)[0] - 1]["name"].endswith(" store")


@pytest.mark.parametrize("state", BY_LANES)
def test_without_space_it_counts_its_events(state: State) -> None:
    done = run(STRAIGHT.format(threads=64), grid=2, depth=0, turns=DESCRIPTOR + 64, state=state)
    assert (done.lost_events, done.lost_chunks) == (4 * 5, 4)
    assert not len(done.chunks)


@pytest.mark.parametrize(
    ("state", "shift"),
    # Beyond 2^32 a state in memory wants a calibration of the clocks before the launch, which is not there.
    [(state, shift) for state in BY_LANES for shift in (22, 24, 33) if shift < 32 or state in IN_REGISTERS],
)
def test_a_long_wait_in_it_is_exact_or_doubted(shift: int, state: State) -> None:
    machine = Machine({}, waits={"1": 1 << shift})
    text = STRAIGHT.format(threads=32)
    done = run(text, threads=32, machine=machine, turns=DESCRIPTOR + 64, state=state)
    wait = done.trace.spans.filter(done.trace.spans["site"] == 3)["duration_cycles"][0]
    assert abs(wait - (1 << shift)) < 500 or "wrapped" in kinds(done.trace)


def test_a_blocks_begin_and_end_are_told_by_its_first_warp() -> None:
    done = run(LOOP.format(threads=64), grid=2, turns=11)
    assert len(done.trace.blocks) == 2
    assert all(row["start_ns"] is not None and row["end_ns"] > row["start_ns"] for row in done.trace.blocks.to_dicts())


@pytest.mark.parametrize(
    ("taking", "goes_alone"),
    [
        ("setmaxnreg.inc.sync.aligned.u32 232;", True),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 128;", True),
        ("setmaxnreg.dec.sync.aligned.u32 24;", False),
    ],
)
def test_a_record_is_stored_in_front_of_what_waits_for_other_warps_to_give_something_back(
    taking: str, goes_alone: bool
) -> None:
    text = STRAIGHT.replace("	bar.sync 1;", f"	{taking}\n	bar.sync 1;").format(threads=64)
    before, _, behind = instrument(text, Selection("all")).text.partition(taking)
    assert ("@%wl_w st.global.cs.u32 [%wl_ad+32], %wl_k0;" in before) == goes_alone
    assert ("@%wl_w st.global.cs.v2.u32 [%wl_ad+32], {%wl_k0, %wl_k1};" in behind) != goes_alone
