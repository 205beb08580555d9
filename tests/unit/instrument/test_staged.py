"""Records that wait in shared memory: what whole warps write of them, and which kernels have them there."""

from __future__ import annotations

import itertools

import pytest

from tests.unit.instrument.test_recorder import (
    DESCRIPTOR,
    LONE,
    LOOP,
    SLOTS,
    STRAIGHT,
    kinds,
    run,
)
from tests.unit.instrument.test_whole_warps import check
from tests.whole_warps import Warps
from warplens import layout
from warplens.instrument import Selection, State, instrument
from warplens.instrument.shared_state import SHARED_STATE
from warplens.instrument.staged import CHUNKS, STAGE, own_shared_bytes
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


def test_chunks_are_filled_and_say_how_many_records_they_have() -> None:
    """A slot goes out where it has no room for a turn: the first with 205 records, others with 208."""
    done = run(LOOP.format(threads=32), threads=32, turns=A_SLOT, depth=64, machine=Warps({}), state=State.STAGED)
    counts = done.chunks[:, layout.WORD_META] >> layout.META_COUNT_SHIFT & 31
    assert sorted(counts) == [4, 23, *[layout.RECORD_SLOTS] * 31]
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
    symbols = {layout.DESCRIPTOR_SYMBOL: DESCRIPTOR, "warplens_own": 0, SHARED_STATE: 0, STAGE: SLOTS}
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
