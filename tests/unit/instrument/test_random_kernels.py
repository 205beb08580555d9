"""Kernels made at random, with marks and run on the CPU: each warp's records are those of the marks that it passed.

What is expected comes from the kernel without marks, run on the same machine, and from the plan of its marks; what was
recorded is read word by word, so that the decoder's leniency hides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ptx_machine import Machine
from tests.unit.instrument.test_recorder import kinds, run
from warplens import layout
from warplens.instrument import Selection
from warplens.instrument.flow import Flow
from warplens.instrument.read import read
from warplens.instrument.recorder import END_CODE
from warplens.instrument.sites import Planner
from warplens.layout import ChunkFlag

HEAD = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry made(.param .u32 n)
.reqntid 64
{
	.reg .b32 %r<8>;
	.reg .pred %p<8>;
	ld.param.u32 %r1, [n];
	mov.u32 %r2, 0;
$again:
	and.b32 %r4, %r2, 1;
	setp.ne.u32 %p3, %r4, 0;
"""
TAIL = """
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p1, %r2, %r1;
	@%p1 bra $again;
	ret;
}
"""
ITEMS = {
    "barrier": "	bar.sync {n};",
    "work": "	st.global.u32 [1024], %r2;" + "\n	add.u32 %r5, %r2, 3;" * 9,
    "arrive": "	mbarrier.arrive.shared.b64 _, [full];",
    "arrive in odd turns": "	@%p3 mbarrier.arrive.shared.b64 _, [full];",
    "arrive in even turns": "	@!%p3 mbarrier.arrive.shared.b64 _, [full];",
    "skip in odd turns": "	@%p3 bra $over{n};\n	bar.sync 2;\n	st.global.u32 [1024], %r2;\n$over{n}:",
    "lane 0 alone": (
        "	mov.u32 %r3, %tid.x;\n	setp.ne.u32 %p2, %r3, 0;\n	@%p2 bra $lone{n};\n"
        "	mbarrier.arrive.shared.b64 _, [empty];\n$lone{n}:"
    ),
}


@dataclass
class Watched(Machine):
    """Keeps which instructions lane 0 of each warp executed, in order, and for each whether its predicate held."""

    passed: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)

    def executed(self, thread: int, at: int, taken: bool) -> None:
        if thread % 32 == 0:
            self.passed.setdefault(thread // 32, []).append((at, taken))


def expected(text: str, turns: int) -> dict[int, list[int]]:
    """Codes of the marks that each warp passes."""
    module = read(text)
    flow = Flow(module, module.entries[0])
    plan = Planner(flow, Selection("all")).plan()
    machine = Watched({"full": 64, "empty": 72, "out": 1024})
    machine.run(text, grid=1, threads=64, grid_id=5, arguments={"n": turns})
    first = 1 << layout.CODE_SITE_SHIFT | layout.Verb.PHASE << layout.CODE_VERB_SHIFT
    out = {}
    for warp, passed in machine.passed.items():
        codes = [first]
        for at, taken in passed:
            for behind in (False, True):
                jumps = behind and taken and flow.code[at].name == "bra"
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
        for word in chunk[layout.HEADER_WORDS : layout.HEADER_WORDS + room]:
            if word == 0:
                break
            own.append(word & ((1 << code_bits) - 1))
    return out


@settings(max_examples=25, deadline=None)
@given(
    items=st.lists(st.sampled_from(list(ITEMS)), min_size=1, max_size=9),
    turns=st.integers(1, 12),
    slab=st.integers(1, 3),
    others=st.sampled_from([0, 2, 5]),
)
def test_the_records_of_a_warp_are_those_of_the_marks_that_it_passed(
    items: list[str], turns: int, slab: int, others: int
) -> None:
    body = "\n".join(ITEMS[item].format(n=number) for number, item in enumerate(items))
    text = f"{HEAD}{body}{TAIL}"
    done = run(text, turns=turns, slab=slab, depth=400, machine=Machine({}, others=others))
    sites = done.trace.manifest["site_sets"][0]["sites"]
    assert recorded(done.chunks, layout.code_bits(len(sites))) == expected(text, turns)
    assert done.lost_events == 0
    bad = {"gap", "no_end", "foreign_chunk", "unknown_record", "duplicate_chunk", "clock_disagrees", "time_goes_back"}
    assert not bad & kinds(done.trace)
