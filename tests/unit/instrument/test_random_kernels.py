"""Kernels made at random, with marks and run on the CPU: each warp's records are those of the marks that it passed.

What is expected comes from the kernel without marks, run on the same machine, and from the plan of its marks; what was
recorded is read word by word, so that the decoder's leniency hides nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import ptx_machine
from tests.ptx_machine import Machine
from tests.random_kernels import kernel, programs
from tests.unit.instrument.test_recorder import BY_LANES, CHUNKS, STATE, Run, kinds, run
from warplens import layout
from warplens.errors import PtxError
from warplens.instrument import Selection, State, instrument
from warplens.instrument.flow import Flow
from warplens.instrument.read import read
from warplens.instrument.recorder import END_CODE
from warplens.instrument.sites import Planner
from warplens.layout import ChunkFlag


@dataclass
class Watched(Machine):
    """Keeps which instructions lane 0 of each warp executed, in order, and for each whether its predicate held."""

    passed: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)

    def executed(self, thread: int, at: int, taken: bool) -> None:
        if thread % 32 == 0:
            self.passed.setdefault(thread // 32, []).append((at, taken))


@dataclass
class Guarded(Machine):
    """Fails where a chunk is written by two warps, or a record twice."""

    owners: dict[int, int] = field(default_factory=dict)
    warp: int = 0

    def executed(self, thread: int, at: int, taken: bool) -> None:
        del at, taken
        self.warp = thread // 32

    def store_shared(self, block: int, thread: int, address: int, value: int) -> None:
        word, rest = divmod(address - STATE - thread // 32 * 32, 4)
        assert rest == 0
        assert 0 <= word < 6 if thread % 32 == 0 else word == 6, "the state of another warp, or of another lane"
        super().store_shared(block, thread, address, value)

    def store(self, address: int, value: int) -> None:
        if address >= CHUNKS:
            chunk, word = divmod((address - CHUNKS) // 4, layout.CHUNK_WORDS)
            assert self.owners.setdefault(chunk, self.warp) == self.warp, f"chunk {chunk} is another warp's"
            is_record = layout.HEADER_WORDS <= word < layout.BLOCK_RECORD_WORD
            assert not (is_record and address in self.touched), f"word {word} of chunk {chunk} is written twice"
        super().store(address, value)


@dataclass
class Holding(Guarded):
    """Fails where a warp may hang while one of its records is not stored."""

    flow: Flow | None = None
    held: int = 0

    def executed(self, thread: int, at: int, taken: bool) -> None:
        super().executed(thread, at, taken)
        assert self.flow is not None
        own = self.flow.code[at]
        if thread % 32 or own.operands.rpartition(",")[2].strip().startswith("$wl_"):
            return
        if own.opcode == "mov.u64" and own.operands.startswith("%wl_begin"):
            self.held = 0
        elif own.opcode == "shl.b32" and own.operands.startswith("%wl_k"):
            self.held += 1
        elif own.opcode.startswith("st.global.cs"):
            self.held -= len(re.findall(r"%wl_k\d", own.operands))
        elif own.name in ("bra", "brx", "bar", "mbarrier") and not own.predicate.startswith("%wl_"):
            assert self.held == 0 or own.opcode.startswith("mbarrier.arrive"), f"at {own.opcode} {own.operands}"


def expected(text: str, turns: int, asks: int = 1, state: State = State.REGISTERS) -> dict[int, list[int]]:
    """Codes of the marks that each warp passes."""
    module = read(text)
    flow = Flow(module, module.entries[0])
    plan = Planner(flow, Selection("all"), hoists=state in (State.REGISTERS, State.FEWER_REGISTERS)).plan()
    machine = Watched({"full": 64, "empty": 72, "out": 1024}, asks=asks)
    machine.run(text, grid=1, threads=64, grid_id=5, arguments={"n": turns})
    first = 1 << layout.CODE_SITE_SHIFT | layout.Verb.PHASE << layout.CODE_VERB_SHIFT
    out = {}
    for warp, passed in machine.passed.items():
        codes = [first]
        for at, taken in passed:
            for behind in (False, True):
                jumps = behind and taken and flow.code[at].name in ("bra", "brx", "ret", "exit")
                here = [mark for mark in plan.marks if (mark.index, mark.behind) == (at, behind) and not jumps]
                codes += [
                    mark.site << layout.CODE_SITE_SHIFT | mark.verb << layout.CODE_VERB_SHIFT
                    for mark in here
                    if not mark.guard or taken
                ]
        out[warp] = [*codes, END_CODE]
    return out


def recorded(chunks: np.ndarray, code_bits: int) -> dict[int, list[int]]:
    """Codes of the records of each warp."""
    out: dict[int, list[int]] = {}
    for chunk in sorted(chunks.tolist(), key=lambda own: (own[layout.WORD_SEQUENCE], own[layout.HEADER_WORDS] != 0)):
        meta = chunk[layout.WORD_META]
        warp = meta & ((1 << layout.META_WARP_BITS) - 1)
        own = out.setdefault(warp, [])
        assert len(own) == chunk[layout.WORD_SEQUENCE]
        flags = meta >> layout.META_FLAGS_SHIFT
        room = layout.BLOCK_RECORD_SLOTS if flags & ChunkFlag.BLOCK_RECORD else layout.RECORD_SLOTS
        if not flags & ChunkFlag.STREAM:
            count = meta >> layout.META_COUNT_SHIFT & ((1 << layout.META_COUNT_BITS) - 1)
            assert count <= room
            words = chunk[layout.HEADER_WORDS : layout.HEADER_WORDS + count]
            own += [word & ((1 << code_bits) - 1) for word in words]
            own += [END_CODE] * bool(flags & ChunkFlag.LAST)
            continue
        for word in chunk[layout.HEADER_WORDS : layout.HEADER_WORDS + room]:
            if word == 0:
                break
            own.append(word & ((1 << code_bits) - 1))
    return out


BARRIERS = ["barrier", "work"]
FAULTS: dict[str, list[object]] = {
    "a wait behind the jump back": [("while", ["barrier", "work", "barrier", "work"]), "ask and work"],
    "a wait behind a jump": [("while", ["barrier", ("if", ["ask and work", "barrier"]), "work"])],
    "a wait behind a ret": ["barrier", "ret", "ask and work", "barrier"],
    "a wait behind a ret in a loop": [("while", ["barrier", "ret", "ask and work", "barrier"])],
    "a ret between marks that are passed once": ["barrier", "work", "ret", "barrier"],
    "a smaller loop behind one": [
        ("pair", [*BARRIERS * 5, ("if", BARRIERS), *BARRIERS, *["nothing"] * 12, "barrier"]),
    ],
    "a jump back to where it falls": [("next", ["barrier", "work", "barrier", "work"])],
    "a loop with two entries": [("middle", ["barrier"])],
    "a label at the end": [("while", ["barrier", "to the end", "barrier"])],
    "a label at the end of what is passed once": ["barrier", "work", "to the end", "barrier"],
    "a first block that ends within braces": ["ask among others in braces", "barrier"],
    "a loop that asks, entered in its middle": [("turned", ["ask"])],
}
"""Programs that the recorder once got wrong."""
made = st.builds(kernel, programs, st.integers(0, 999), again=st.sampled_from([False] * 7 + [True]))


@settings(max_examples=25, deadline=None)
@given(
    text=made,
    turns=st.integers(1, 6),
    slab=st.integers(1, 3),
    others=st.sampled_from([0, 2, 5]),
    asks=st.integers(1, 3),
    state=st.sampled_from(BY_LANES),
)
def test_the_records_of_a_warp_are_those_of_the_marks_that_it_passed(
    text: str, turns: int, slab: int, others: int, asks: int, state: State
) -> None:
    check_records(text, turns, slab, others, asks, state)


@pytest.mark.parametrize("state", BY_LANES)
@pytest.mark.parametrize("name", FAULTS)
def test_what_was_once_wrong_is_right(name: str, state: State) -> None:
    for turns, seed in ((2, 3), (9, 1)):
        check_records(kernel(FAULTS[name], seed, again=False), turns, state=state)


def test_a_first_block_that_is_a_loops_begin_opens_one_chunk() -> None:
    check_records(kernel(["barrier", "work"], 0, again=True), 9)


def test_a_ret_within_braces_reaches_what_is_rare() -> None:
    """Labels within braces cannot be seen from outside."""
    text = instrument(kernel([("while", ["barrier", "ret in braces"])], 0, again=False), Selection("all")).text
    depth = 0
    seen: dict[str, int] = {}
    for line in text.splitlines():
        depth += line.count("{") - line.count("}")
        found = re.match(r"\s*(\$wl_\w+):", line)
        seen |= {found[1]: depth} if found else {}
        for label in re.findall(r"bra(?:\.uni)? (\$wl_\w+);", line):
            seen.setdefault(f"from {label}", depth)
    assert any(depth == 2 for label, depth in seen.items() if label.startswith("$wl_back"))
    assert all(seen[label.removeprefix("from ")] <= depth for label, depth in seen.items() if label.startswith("from "))


def check_records(
    text: str, turns: int, slab: int = 1, others: int = 0, asks: int = 1, state: State = State.REGISTERS
) -> None:
    machine = Guarded({}, others=others, asks=asks)
    done = run(text, turns=turns, slab=slab, depth=400, machine=machine, state=state)
    assert recorded(done.chunks, code_bits(done)) == expected(text, turns, asks, state)
    assert done.lost_events == 0
    bad = {"gap", "no_end", "foreign_chunk", "unknown_record", "duplicate_chunk", "clock_disagrees", "time_goes_back"}
    assert not bad & kinds(done.trace)


@settings(max_examples=25, deadline=None)
@given(
    text=made,
    selection=st.sampled_from([Selection(), Selection("all"), Selection("all", sites="barrier [0246]|store|arrive")]),
    state=st.sampled_from(BY_LANES),
)
def test_no_record_waits_for_another_where_a_warp_may_hang(text: str, selection: Selection, state: State) -> None:
    """What is saved of a kernel that hangs tells the place by the last record that is in memory."""
    try:
        found = instrument(text, selection, state=state)
    except PtxError:
        return  # nothing is left to be marked
    machine = Holding({}, flow=ptx_machine._program(found.text, None).flow)
    run(text, turns=4, machine=machine, state=state, selection=selection)


@pytest.mark.parametrize("name", ["ask and work", "ask among others in braces"])
def test_nor_where_each_mark_is_passed_once(name: str) -> None:
    text, selection = kernel(["nothing", name], 1, again=False), Selection("all", sites="barrier|store|arrive")
    machine = Holding({}, flow=ptx_machine._program(instrument(text, selection).text, None).flow)
    run(text, machine=machine, selection=selection)


def code_bits(done: Run) -> int:
    return layout.code_bits(len(done.trace.manifest["site_sets"][0]["sites"]))


@settings(max_examples=10, deadline=None)
@given(
    text=made,
    turns=st.integers(1, 6),
    slab=st.integers(1, 3),
    depth=st.integers(0, 2),
    asks=st.integers(1, 3),
    state=st.sampled_from(BY_LANES),
)
def test_without_space_the_first_records_of_a_warp_are_there_and_the_rest_are_counted(
    text: str, turns: int, slab: int, depth: int, asks: int, state: State
) -> None:
    machine = Guarded({}, asks=asks)
    done = run(text, turns=turns, slab=slab, depth=depth, machine=machine, state=state)
    found = recorded(done.chunks, code_bits(done))
    lost = 0
    for warp, codes in expected(text, turns, asks, state).items():
        own = found.get(warp, [])
        assert own == codes[: len(own)]
        lost += max(len(codes) - 1 - len(own), 0)  # a warp's end is not counted
    assert done.lost_events == lost
    assert (done.lost_chunks > 0) == (lost > 0)


@settings(max_examples=10, deadline=None)
@given(
    text=made,
    turns=st.integers(1, 6),
    shift=st.sampled_from([18, 22, 23, 24, 31, 33]),
    number=st.integers(0, 6),
    state=st.sampled_from(BY_LANES),
)
def test_waits_longer_than_records_tell_are_exact_or_doubted_in_any_loop(
    text: str, turns: int, shift: int, number: int, state: State
) -> None:
    machine = Guarded({}, waits={str(number): 1 << shift})
    done = run(text, turns=turns, depth=400, machine=machine, state=state)
    sites = [n for n, name in enumerate(done.trace.sites["name"]) if f" wait barrier {number}" in name]
    spans = done.trace.spans.filter(done.trace.spans["site"].is_in(sites))
    off = [abs(own - (1 << shift)) for own in spans["duration_cycles"]]
    assert all(own < 5000 for own in off) or "wrapped" in kinds(done.trace)
