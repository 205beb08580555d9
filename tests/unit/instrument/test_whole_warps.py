"""Marked kernels in blocks and grids of any shape, all lanes of a warp together: what each warp recorded and lost, and
that the kernel itself does what it does without marks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import random_kernels
from tests.random_kernels import kernel, programs
from tests.unit.instrument.test_random_kernels import code_bits, recorded
from tests.unit.instrument.test_recorder import DESCRIPTOR, Run, kinds, run
from tests.whole_warps import Shape, Warps
from warplens import layout
from warplens.instrument import Selection, State, instrument
from warplens.instrument.flow import Flow
from warplens.instrument.read import read
from warplens.instrument.recorder import END_CODE
from warplens.instrument.sites import Planner
from warplens.instrument.staged import SLOT_BYTES

SYMBOLS = {"full": 64, "empty": 72, "out": 1024}
STORES = "	st.global.u32 [out], %r2;"
PARTS = f"	@%p4 bra $o;\n	ret;\n$o:\n{STORES}\n	exit;"
LEAVES = {
    "ret": "	ret;",
    "falls off the end": "",
    "lanes leave, the others fall off": f"	setp.gt.u32 %p4, %r7, 11;\n	@%p4 ret;\n{STORES}",
    "lanes go to the end": f"	setp.gt.u32 %p4, %r7, 11;\n	@%p4 bra $end;\n{STORES}\n$end:",
    "lanes leave elsewhere": "	setp.lt.u32 %p4, %r7, 2;\n" + PARTS,
    "warps leave elsewhere": "	setp.gt.u32 %p4, %r6, 31;\n" + PARTS,
    "first lanes leave": "	setp.lt.u32 %p4, %r7, 2;\n	@%p4 exit;\n	setp.gt.u32 %p5, %r7, 9;\n	@%p5 ret;\n	ret;",
    "ret in braces": "	{\n	.reg .b32 %own;\n	mov.u32 %own, 1;\n	ret;\n	}",
    "behind": f"	bra.uni $away;\n$back:\n	ret;\n$away:\n{STORES}\n	bra.uni $back;",
}
SHAPES: list[Shape] = [(64, 1, 1), (20, 1, 1), (1, 1, 1), (33, 1, 1), (8, 3, 2), (1, 40, 1), (4, 4, 4)]
TURNED = "	mov.u32 %c9, 0;\n$t:\n	add.u32 %c9, %c9, 1;\n	setp.lt.u32 %p4, %c9, 3;\n	@%p4 bra $t;"
STRAIGHT: dict[str, tuple[list[object], Selection]] = {
    "a mark of the source ahead of the numbers of a loop": (
        ["phase of the source", "numbers", "turned", "barrier"],
        Selection("off"),
    ),
    "ranges that end together": (["ranges of the source", "work", "their ends", "barrier"], Selection("all")),
    "marks of the source alone": (["phase of the source", "load", "work", "phase of the source"], Selection("off")),
    "a load that is waited for first": (["load", "work", "barrier"], Selection("all", also=("loads",))),
    "waits for own copies": (["own copies and work", "own copies", "turned", "own copies and work"], Selection()),
    "nothing": (["work"], Selection("off")),
}


def shaped(text: str, threads: Shape) -> str:
    x, y, z = threads
    return text.replace(".reqntid 64", f".reqntid {x}, {y}, {z}")


def expected(text: str, selection: Selection, state: State, clean: Warps) -> dict[tuple[int, int], list[int]]:
    """Codes of the marks that each warp passed on a machine that ran the kernel without them, by block and warp."""
    module = read(text)
    flow = Flow(module, module.entries[0])
    plan = Planner(flow, selection, hoists=state not in (State.SHARED, State.LOCAL)).plan()
    out = {}
    guarded = {mark.index for mark in plan.marks if mark.guard}
    some: dict[tuple[int, int, int, int], bool] = {}  # whether any lane of a warp took it, the n-th time it came there
    for (block, thread), passed in clean.passed.items():
        came: Counter[int] = Counter()
        for at, taken in passed:
            if at in guarded:
                some[block, thread // 32, at, came[at]] = some.get((block, thread // 32, at, came[at]), False) or taken
                came[at] += 1
    for (block, thread), passed in clean.passed.items():
        if thread % 32:
            continue
        came = Counter()
        codes = [1 << layout.CODE_SITE_SHIFT | layout.Verb.PHASE << layout.CODE_VERB_SHIFT]
        for at, taken in passed:
            any_takes = taken
            if at in guarded:
                any_takes = some[block, thread // 32, at, came[at]]
                came[at] += 1
            jumps = taken and flow.code[at].name in ("bra", "brx", "ret", "exit")
            codes += [
                mark.site << layout.CODE_SITE_SHIFT | mark.verb << layout.CODE_VERB_SHIFT
                for mark in plan.marks
                if mark.index == at and not (mark.behind and jumps) and (any_takes or not mark.guard)
            ]
        out[block, thread // 32] = [*codes, END_CODE]
    return out


def check(
    text: str,
    threads: Shape,
    grid: Shape = (1, 1, 1),
    *,
    selection: Selection,
    state: State = State.REGISTERS,
    turns: int = 3,
    **options: Any,
) -> Run:
    """Runs it with marks and without, and compares what was recorded, what was lost and what the kernel stored."""
    count, blocks = threads[0] * threads[1] * threads[2], grid[0] * grid[1] * grid[2]
    clean = Warps(dict(SYMBOLS), grid_shape=grid, block_shape=threads)
    clean.run(text, grid=blocks, threads=count, grid_id=5, arguments={"n": turns})
    machine = Warps({}, grid_shape=grid, block_shape=threads)
    options = {"machine": machine, "state": state, "selection": selection, "turns": turns, "depth": 200, **options}
    done = run(text, grid=blocks, threads=count, **options)
    assert machine.own_stores == clean.own_stores
    lost = 0
    for (block, warp), codes in expected(text, selection, state, clean).items():
        of_block = done.chunks[done.chunks[:, layout.WORD_BLOCK] == block]
        own = recorded(of_block, code_bits(done)).get(warp, [])
        assert own == codes[: len(own)], (block, warp)
        lost += max(len(codes) - 1 - len(own), 0)
    assert (done.lost_events, done.lost_chunks > 0) == (lost, lost > 0), (done.lost_events, done.lost_chunks, lost)
    bad = {"foreign_chunk", "unknown_record", "duplicate_chunk", "clock_disagrees", "time_goes_back", "missing_warp"}
    assert lost or not bad & kinds(done.trace)
    return done


@pytest.fixture(autouse=True)
def _turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(random_kernels.ITEMS, "turned", TURNED)


def straight(name: str, leaves: str) -> tuple[str, Selection]:
    body, selection = STRAIGHT[name]
    text = kernel(body, 1, again=False)
    return text[: text.rindex("	ret;")] + LEAVES[leaves] + "\n}\n", selection


@pytest.mark.parametrize(("leaves", "name"), [*zip(LEAVES, [*STRAIGHT] * 2, strict=False), ("ret", "nothing")])
def test_a_kernel_that_passes_each_mark_once_records_them_in_blocks_of_any_shape(leaves: str, name: str) -> None:
    text, selection = straight(name, leaves)
    number = [*LEAVES].index(leaves) + [*STRAIGHT].index(name)
    threads, grid = SHAPES[number % len(SHAPES)], [(1, 1, 1), (2, 1, 1), (1, 2, 1)][number % 3]
    text = shaped(text, threads)
    assert "$wl_lost" in instrument(text, selection).text
    assert check(text, threads, grid, selection=selection).lost_events == 0
    assert check(text, threads, grid, selection=selection, depth=0).lost_events > 0
    check(text, threads, grid, selection=selection, state=State.FEWER_REGISTERS, depth=1)


def test_a_program_that_is_not_recorded_has_nothing_read_or_written_through_its_descriptor() -> None:
    for name in STRAIGHT:
        text, selection = straight(name, "lanes leave elsewhere")
        found = instrument(text, selection).text
        machine = Warps({**SYMBOLS, layout.DESCRIPTOR_SYMBOL: DESCRIPTOR, "warplens_own": 0})
        machine.run(found, grid=1, threads=64, grid_id=5, arguments={"n": 3})
        assert all(1024 <= address < 2048 for address in machine.touched)


def test_an_arrival_of_some_lanes_in_turns_is_one_of_the_warp() -> None:
    """Lanes that went round a loop more often than others make theirs in other turns of the next."""
    lanes = ("else", [("lanes", ["nothing", "arrive sometimes"]), "nothing"])
    text = kernel([lanes, ("while", ["own copies and work", "arrive sometimes"])], 423, again=False)
    check(shaped(text, (4, 4, 4)), (4, 4, 4), selection=Selection("all"), turns=9)


@settings(max_examples=12, deadline=None)
@given(
    text=st.builds(kernel, programs, st.integers(0, 999), again=st.just(False)),
    threads=st.sampled_from(SHAPES),
    selection=st.sampled_from([Selection("all"), Selection(), Selection("off"), Selection("all", also=("loads",))]),
    state=st.sampled_from(State),
    turns=st.integers(1, 6),
    depth=st.sampled_from([200, 200, 0, 1, 2]),
    slot_bytes=st.sampled_from([SLOT_BYTES, 2048]),
)
def test_so_does_any_kernel(
    text: str, threads: Shape, selection: Selection, state: State, turns: int, depth: int, slot_bytes: int
) -> None:
    """`slot_bytes`: where its records wait in shared memory."""
    options: dict[str, Any] = {"state": state, "turns": turns, "depth": depth, "slot_bytes": slot_bytes}
    check(shaped(text, threads), threads, selection=selection, **options)
