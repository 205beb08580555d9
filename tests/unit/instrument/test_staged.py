"""Records that wait in shared memory: what whole warps write of them, and which kernels have them there."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from tests.unit.instrument.test_recorder import (
    CONTROL,
    DESCRIPTOR,
    LONE,
    LOOP,
    NEEDS,
    SLOTS,
    STRAIGHT,
    kinds,
    run,
)
from tests.unit.instrument.test_whole_warps import check
from tests.whole_warps import Warps
from warplens import layout
from warplens.instrument import Mode, Selection, State, instrument
from warplens.instrument.shared_state import SHARED_STATE
from warplens.instrument.source import marker
from warplens.instrument.staged import CHUNKS, MOST_NEEDED, NEED, SLOT_BYTES, STAGE, own_shared_bytes
from warplens.layout import ChunkFlag

ALL = Selection("all")
ODD = LOOP.replace("	bar.sync 1;\n", "	bar.sync 1;\n	st.global.u32 [1024], %r2;\n	bar.sync 2;\n")
EVEN = LOOP.replace("	bar.sync 0;", "	cp.async.wait_all;")
"""Records of two marks go out in one store."""
A_SLOT = CHUNKS * layout.RECORD_SLOTS


@pytest.mark.parametrize(
    ("text", "threads", "turns", "state"),
    [
        (LOOP, 32, (1, 4, 6, 50, 51), State.STAGED),
        (LOOP, 64, (44, 52), State.STAGED_FEWER),
        (ODD, 32, (5, 40), State.STAGED),
        (EVEN, 64, (7, 53), State.STAGED),
    ],
)
def test_all_records_are_there_however_many_a_slot_has_at_its_end(
    text: str, threads: int, turns: tuple[int, ...], state: State
) -> None:
    """A block's first warp has room for 18 beside the block record."""
    own = text.format(threads=threads)
    assert f"{STAGE}[{32 * threads}]" in instrument(own, ALL, state=state).text
    for number in turns:
        done = check(own, (threads, 1, 1), (2, 1, 1), selection=ALL, state=state, turns=number)
        assert done.lost_events == 0
        assert not kinds(done.trace) & {"gap", "no_end", "wrapped", "unended_warp"}


@pytest.mark.parametrize(("depth", "slab"), [(0, 8), (CHUNKS - 1, 1), (CHUNKS, 1), (CHUNKS + 5, 9), (3 * CHUNKS, 8)])
def test_what_finds_no_space_is_counted_to_the_event(depth: int, slab: int) -> None:
    for turns in (3, 80):
        check(
            LOOP.format(threads=64), (64, 1, 1), selection=ALL, state=State.STAGED, turns=turns, depth=depth, slab=slab
        )


@pytest.mark.parametrize(("text", "marks", "slot_bytes"), [(LOOP, 4, 2048), (ODD, 5, 2048), (LOOP, 4, 8192)])
def test_all_records_are_there_in_large_slots(text: str, marks: int, slot_bytes: int) -> None:
    """However full the last one is, and where there is space for some of them."""
    own = text.format(threads=32)
    found = instrument(own, modes={"loop": Mode(ALL, state=State.STAGED, slot_bytes=slot_bytes)})
    assert found.kernels[0].staged_bytes == 2 * slot_bytes - SLOT_BYTES == own_shared_bytes(found.text)
    a_slot = slot_bytes // layout.CHUNK_BYTES * layout.RECORD_SLOTS
    full = a_slot // marks
    for turns, depth in ((1, 200), (full - 2, 200), (full + 1, 200), (full + 9, 1), (2 * full - 5, full * marks // 25)):
        options: dict[str, Any] = {"state": State.STAGED, "turns": turns, "slot_bytes": slot_bytes, "depth": depth}
        done = check(own, (32, 1, 1), selection=ALL, **options)
        assert depth < 200 or done.lost_events == 0


APART = LOOP.replace("%p1;\n	ld", "%p<3>;\n	ld").replace(
    "	bar.sync 0;",
    f"""	{marker("mark", "turn")}
	add.u32 %r3, %r2, 1;
	setp.eq.u32 %p2, %r1, 0;
	@%p2 bra $over;
	add.u32 %r3, %r3, 1;
$over:
	{marker("mark", "over")}
	bar.sync 0;""",
)
"""A block of the loop has one of its marks, the last one five."""
_BRANCH = "	setp.eq.u32 %p2, %r1, 0;\n	@%p2 bra {0};\n	add.u32 %r3, %r3, 1;\n{0}:\n"
_TURN = f"	{marker('mark', 'turn')}\n	add.u32 %r3, %r2, 1;\n"
BLOCKS = (
    LOOP.replace("%p1;\n	ld", "%p<3>;\n	ld")
    .replace("	bar.sync 0;\n", _TURN + _BRANCH.format("$a") + _TURN + _TURN + _BRANCH.format("$b") + 3 * _TURN)
    .replace("	bar.sync 1;\n", "")
)
"""Three of its blocks have one, two and three."""
FIVE = LOOP.replace("	bar.sync 1;", f"	{marker('mark', 'turn')}\n	bar.sync 1;")


def loop_of(marked: str) -> str:
    begin = marked.index("$again:")
    return marked[begin : marked.index("$again;", begin)]


@pytest.mark.parametrize(
    ("text", "stores"),
    [(LOOP, ["v2", "v2"]), (FIVE, [""] * 5), (APART, ["", "", "v2", "v2"]), (BLOCKS, ["", "", "", "", "v2"])],
)
def test_records_of_a_turn_are_stored_behind_its_last_mark(text: str, stores: list[str]) -> None:
    """By twos, where they are even in number; two never stand where 8 bytes cannot be stored (`check` looks at it)."""
    own = text.format(threads=64)
    marked = instrument(own, ALL, state=State.STAGED).text
    loop = loop_of(marked)
    found = re.findall(r"@%wl_w st\.shared\.(?:(v2)\.)?u32 \[%wl_lo", loop)
    assert found == stores
    if text is LOOP:
        assert loop.rindex("%clock") < loop.index("st.shared")
        assert "v2.u32 [%wl_lo" not in loop_of(instrument(own, ALL, state=State.STAGED_FEWER).text)
    for turns in (1, 7, 90):
        check(own, (64, 1, 1), (2, 1, 1), selection=ALL, state=State.STAGED, turns=turns)


def test_a_warp_asks_for_what_the_last_one_needed() -> None:
    machine = Warps({})
    slabs: list[int] = []

    def launch(turns: int) -> int:
        """Chunks that a launch asked for."""
        done = run(LOOP.format(threads=64), threads=64, turns=turns, depth=200, machine=machine, state=State.STAGED)
        assert done.lost_events == 0
        return sum(cursor // layout.CURSOR_COUNT for cursor in cursors(machine))

    first = launch(100)
    slabs += [launch(100), launch(100), launch(1), launch(1)]
    needed = 2 * 19  # of two warps: 402 records, and a chunk of the kernel's begin alone
    assert first > slabs[0] == slabs[1] == slabs[2] == needed
    assert slabs[3] == 2 * CHUNKS
    machine.memory.update({NEEDS: 0xFFFFFFFF, NEEDS + 4: 0xFFFFFFFF})  # what another kernel wrote there
    assert launch(1) <= 2 * MOST_NEEDED


def cursors(machine: Warps) -> list[int]:
    """How far each has come."""
    places = (CONTROL + layout.CONTROL_CURSORS + n * layout.CURSOR_STRIDE for n in range(layout.CURSOR_COUNT))
    return [machine.load(place) - number for number, place in enumerate(places)]


SCOPES = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u32 n)
.reqntid 128
{
	.reg .b32 %r<9>;
	.reg .b64 %d1;
	.reg .pred %p<3>;
	ld.param.u32 %r1, [n];
	mov.u32 %r2, 0;
	mov.b64 %d1, 0;
$again:
	range_push load
	bar.sync 0;
	range_pop load
	range_push dot
	wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%r4,%r5,%r6,%r7}, %d1, %d1, %p2, 1, 1;
	wgmma.wait_group.sync.aligned 0;
	range_pop dot
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p1, %r2, %r1;
	@%p1 bra $again;
	ret;
}
"""


def test_between_clocks_in_front_of_a_product_nothing_is_asked() -> None:
    """A question there is waited for by the second clock, and so by the product; behind it that hides it."""
    text = re.sub(r"(range_\w+) (\w+)", lambda found: marker(found[1], found[2]), SCOPES)
    marked = instrument(text, Selection(sites="^(load|dot)$"), state=State.STAGED).text
    loop = loop_of(marked)
    clocks = [found.start() for found in re.finditer("%clock", loop)]
    asked, product = loop.index("vote.sync.any"), loop.index("wgmma.mma_async")
    assert len(clocks) == 4
    assert clocks[1] < clocks[2] < asked < product < clocks[3]


def test_chunks_are_filled_and_say_how_many_records_they_have() -> None:
    """A slot goes out where it has no room for a turn, and in front of the loop, where the kernel's begin alone would
    part its pairs of records."""
    done = run(LOOP.format(threads=32), threads=32, turns=A_SLOT, depth=64, machine=Warps({}), state=State.STAGED)
    counts = done.chunks[:, layout.WORD_META] >> layout.META_COUNT_SHIFT & 31
    assert sorted(counts) == [0, 1, *[layout.RECORD_SLOTS] * 32]
    flags = done.chunks[:, layout.WORD_META] >> layout.META_FLAGS_SHIFT & 127
    assert set(flags) == {ChunkFlag.EXACT, ChunkFlag.EXACT | ChunkFlag.LAST | ChunkFlag.BLOCK_RECORD}
    assert len(done.trace.blocks) == 1
    assert done.trace.blocks["end_ns"][0] > done.trace.blocks["start_ns"][0]


def test_blocks_and_warps_that_are_not_chosen_write_nothing() -> None:
    choice = {"every_block": 3, "warp_mask": 2}
    text = LOOP.format(threads=64)
    done = run(text, grid=4, turns=54, depth=200, choice=choice, machine=Warps({}), state=State.STAGED)
    assert sorted(set(done.trace.spans["block"])) == [0, 3]
    assert set(done.trace.spans["warp"]) == {1}
    assert done.lost_events == 0


def test_without_a_descriptor_nothing_is_touched() -> None:
    text = instrument(LOOP.format(threads=64), ALL, state=State.STAGED).text
    symbols = {layout.DESCRIPTOR_SYMBOL: DESCRIPTOR, "warplens_own": 0, SHARED_STATE: 0, STAGE: SLOTS, NEED: NEEDS}
    machine = Warps(symbols)
    machine.run(text, grid=1, threads=64, grid_id=5, arguments={"n": 60})
    assert machine.touched == {1024}


@pytest.mark.parametrize("shift", [20, 22, 24, 33])
def test_a_wait_longer_than_records_tell_is_exact_or_doubted(shift: int) -> None:
    machine = Warps({}, waits={"1": 1 << shift})
    done = run(LOOP.format(threads=32), threads=32, turns=3, machine=machine, state=State.STAGED)
    waits = done.trace.spans.filter(done.trace.spans["site"] == 3)["duration_cycles"]
    assert len(waits) == 3
    assert all(abs(wait - (1 << shift)) < 500 for wait in waits) or "wrapped" in kinds(done.trace)


def test_what_another_kernel_left_in_shared_memory_gets_into_no_chunk() -> None:
    machine = Warps({})
    machine.shared |= {(0, SLOTS + at): 0x5EC2E7 for at in range(0, 4096, 4)}
    done = run(LOOP.format(threads=64), grid=1, turns=3, machine=machine, state=State.STAGED)
    assert len(done.chunks)
    assert not (done.chunks == 0x5EC2E7).any()


LEAVE = "	mov.u32 %r3, %tid.x;\n	setp.gt.u32 %p1, %r3, 40;\n	@%p1 ret;\n$again:"


@pytest.mark.parametrize(
    ("text", "threads", "why"),
    [
        (LOOP, 48, "a warp with lanes missing"),
        (LOOP.replace(".reqntid {threads}", ".maxntid 64"), 64, "a block whose size is not said"),
        (LOOP, 1024, "many warps"),
        (LONE, 64, "a lane that comes alone"),
        (LOOP.replace("$again:", LEAVE, 1), 64, "lanes that leave"),
        (STRAIGHT, 64, "no loop"),
    ],
)
def test_elsewhere_records_go_to_memory_at_once(text: str, threads: int, why: str) -> None:
    own = text.format(threads=threads)
    staged, usual = (instrument(own, ALL, state=state) for state in (State.STAGED, State.REGISTERS))
    assert staged.text == usual.text, why
    assert (staged.kernels[0].staged_bytes, own_shared_bytes(staged.text)) == (0, 0)


def test_slots_take_whole_kilobytes_of_which_the_clean_kernels_memory_stays_aligned() -> None:
    for warps, (state, kernels) in itertools.product((1, 2, 3, 16), ((State.STAGED, 1), (State.STAGED_FEWER, 2))):
        text = LOOP.format(threads=32 * warps)
        more = text[text.index(".visible") :].replace("entry loop", "entry other") if kernels == 2 else ""
        found = instrument(text + more, ALL, state=state)
        assert [own.staged_bytes for own in found.kernels] == [1024 * warps] * kernels
        assert own_shared_bytes(found.text) == 1024 * warps
