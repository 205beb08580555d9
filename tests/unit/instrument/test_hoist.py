"""What goes ahead of a wait, what may not, and that a kernel computes the same with it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ptx_machine import Machine
from tests.unit.instrument.test_recorder import run
from warplens.instrument import Mode, Selection, State, instrument
from warplens.instrument.flow import Flow
from warplens.instrument.read import read
from warplens.instrument.sites import Planner
from warplens.instrument.source import marker

LOOP = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u32 n)
.reqntid 64
{
	.reg .b32 %r<16>, %t;
	.reg .b64 %d<4>;
	.reg .pred %p<8>, %own;
	.shared .align 8 .b64 full;
	ld.param.u32 %r1, [n];
	mov.u32 %t, %tid.x;
	and.b32 %t, %t, 31;
	mov.u32 %r2, 0;
	mov.u32 %r3, 0;
	setp.eq.u32 %p2, %r2, %r1;
	mov.pred %p4, %p2;
	mov.pred %p5, %p2;
	mov.pred %p6, %p2;
	mov.b64 %d1, 0;
	INITIAL
$again:
	st.global.u32 [out], %r2;
	BODY
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p1, %r2, %r1;
	@%p1 bra $again;
	ret;
}
"""
COUNT = "add.u32 %r2, %r2, 1"
AGAIN = "setp.lt.u32 %p1, %r2, %r1"


def loop(body: str, initial: str = "") -> str:
    return LOOP.replace("BODY", body.replace("; ", ";\n\t")).replace("INITIAL", initial)


def moved(body: str, selection: Selection | None = None) -> list[str]:
    """The instructions of a loop's body that go ahead of a wait, but for its counter."""
    module = read(loop(body))
    flow = Flow(module, module.entries[0])
    plan = Planner(flow, selection or Selection()).plan()
    found = [f"{flow.code[number].opcode} {flow.code[number].operands}" for number in plan.moves]
    return [own for own in found if own not in (COUNT, AGAIN)]


ADD = "add.u32 %r4, %r2, 5"
USE = "st.global.u32 [out+4], %r4"
LOADED = "tcgen05.wait::ld.sync.aligned;"
IN_SCOPE = f"{marker('range_push', 'own')}\n {{}}\n{marker('range_pop', 'own')}\n"
PRODUCT, LANDED = "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", "wgmma.wait_group.sync.aligned 0;"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f"bar.sync 0; {ADD}; {USE};", [ADD]),
        (f"bar.sync 0; {ADD}; shl.b32 %r5, %r4, 2; st.global.u32 [out+4], %r5;", [ADD, "shl.b32 %r5, %r4, 2"]),
        (f"bar.sync 0; setp.gt.s32 %p3, %r2, 5; @%p3 {USE};", ["setp.gt.s32 %p3, %r2, 5"]),
        ("bar.sync 0; elect.sync %r4|%p3, -1; @%p3 st.global.u32 [out], %r4;", ["elect.sync %r4|%p3, -1"]),
        (f"bar.sync 0; shfl.sync.idx.b32 %r4, %r2, 0, 31, -1; {USE};", ["shfl.sync.idx.b32 %r4, %r2, 0, 31, -1"]),
        (f"bar.sync 0; mov.u32 %r4, full; {USE};", ["mov.u32 %r4, full"]),
        (f"$w: mbarrier.try_wait.parity.shared.b64 %p7, [full], %r2; @!%p7 bra $w; {ADD}; {USE};", [ADD]),
        (f"{IN_SCOPE.format(f'{PRODUCT} {{%r5,%r6}}, %d1, %d1, %p4, 1, 1; {LANDED}')} {ADD}; {USE};", [ADD]),
    ],
    ids=[
        "address",
        "what depends on it too",
        "predicate",
        "elected lane",
        "shuffle",
        "symbol",
        "over a wait that asks",
        "over the end of a product's scope",
    ],
)
def test_arithmetic_behind_a_wait_goes_ahead_of_it(body: str, found: list[str]) -> None:
    assert moved(body) == found


@pytest.mark.parametrize(
    "body",
    [
        f"bar.sync 0; @%p2 {ADD}; {USE};",
        "bar.sync 0; mov.u32 %r4, %tid.x; st.global.u32 [out+4], %r4;",
        "bar.sync 0; mov.u32 %r4, %clock; st.global.u32 [out+4], %r4;",
        "bar.sync 0; ld.global.u32 %r4, [out]; st.global.u32 [out+4], %r4;",
        "bar.sync 0; ld.global.u32 %r2, [out]; add.u32 %r4, %r2, 5; st.global.u32 [out+4], %r4;",
        f"bar.sync 0; {USE}; {ADD};",
        f"$w: {ADD}; mbarrier.try_wait.parity.shared.b64 %p7, [full], %r2; @!%p7 bra $w; {USE};",
        "bar.red.popc.u32 %r5, 0, %p2; add.u32 %r4, %r5, 1; st.global.u32 [out+4], %r4;",
        f"bar.sync 0; // begin inline asm\n {ADD};\n// end inline asm\n {USE};",
        f"bar.sync 0; {{ {ADD}; }} {USE};",
        "bar.sync 0; add.cc.u32 %r4, %r2, 5; addc.u32 %r5, %r2, 0; st.global.u32 [out], %r5;",
        "bar.sync 0; mul.f32 %r4, %r2, %r2; st.global.u32 [out], %r4;",
        f"mov.u32 %r5, %clock; bar.sync 0; mov.u32 %r6, %clock; {ADD}; {USE};",
        f"bar.sync 0; setmaxnreg.inc.sync.aligned.u32 40; {ADD}; {USE};",
        f"bar.sync 0; call.uni f; {ADD}; {USE};",
        f"bar.sync 0; @%p2 ret; elect.sync %r4|%p3, -1; {USE};",
        f"bar.sync 0; {marker('phase', 'own')}\n {ADD}; {USE};",
        f"{IN_SCOPE.format('bar.sync 0;')} {ADD}; {USE};",
        f"{PRODUCT} {{%r4,%r5}}, %d1, %d1, %p4, 1, 1; {LANDED} add.u32 %r6, %r4, 1; st.global.u32 [out], %r6;",
        f"{PRODUCT} {{%r4,%r5}}, {{%r6,%r7}}, %d1, %p4, 1, 1; {LANDED} mov.u32 %r6, %r2;",
        f"tcgen05.ld.red.sync.aligned.32x32b.x2.min.u32 {{%r4,%r5}}, %t, [%r3]; {LOADED} add.u32 %r6, %t, 1;",
        "bar.sync 0; tex.2d.v4.u32.s32 {%r4,%r5,%r6,%r7}|%p4, [%d1, {%r8,%r9}]; selp.u32 %r10, 1, 0, %p4;",
    ],
    ids=[
        "predicated", "a lane's number", "the time", "load", "made of what is loaded", "register still read",
        "in the wait itself",
        "made of what a barrier gives", "inline assembly", "within braces", "carry", "what may be fused",
        "between clock reads",
        "other registers", "call", "of a warp, behind a way out", "behind a mark of the source",
        "behind a scope without a product",
        "result of a product", "operand of a product under way",
        "what a load reduces", "predicate beside a vector",
    ],
)  # fmt: skip
def test_what_may_differ_there_stays(body: str) -> None:
    assert moved(body) == []


def test_what_stays_is_not_passed_by_what_follows_another_that_went() -> None:
    assert moved(f"bar.sync 0; {USE}; add.u32 %r5, %r4, 1; {ADD};") == ["add.u32 %r5, %r4, 1"]


def test_nothing_goes_into_or_out_of_a_loop() -> None:
    text = loop(f"bar.sync 0; {USE};").replace("	ret;", f"	bar.sync 1;\n	{ADD};\n	{USE};\n	ret;")
    module = read(text)
    flow = Flow(module, module.entries[0])
    assert not [n for n in Planner(flow, Selection()).plan().moves if flow.code[n].operands.startswith("%r4")]


def test_where_each_line_is_asked_for_all_stays_in_its_line() -> None:
    assert moved(f"bar.sync 0; {ADD}; {USE};", Selection("all", also=("lines",))) == []


def test_what_a_product_hides_anyway_stays_beside_it() -> None:
    product = f"{PRODUCT} {{%r10,%r11}}, %d2, %d1, %p4, 1, 1;"
    body = f"bar.sync 0; {ADD}; add.s64 %d2, %d1, 5; {product} {LANDED} {USE};"
    assert moved(body) == ["add.s64 %d2, %d1, 5"]


def test_in_front_of_copies_goes_what_they_wait_for_alone() -> None:
    copies = "; ".join(f"cp.async.cg.shared.global [full], [%d{n}], 16" for n in (2, 3))
    addresses = [f"add.s64 %d{n}, %d1, {n}" for n in (2, 3)]
    body = f"bar.sync 0; {ADD}; {'; '.join(addresses)}; {copies}; {USE};"
    assert moved(body) == addresses


@pytest.mark.parametrize(
    "text",
    ["@%p3 OWN", "@!%p3 OWN", "{ .reg .pred %own; and.pred %own, %p3, %p4; @%own OWN; }"],
    ids=["predicate", "negated", "within braces, as CUTLASS has it"],
)
def test_what_decides_whether_there_is_a_copy_or_product_goes_along(text: str) -> None:
    decides = "setp.gt.s32 %p3, %r2, 5"
    for own in ("cp.async.cg.shared.global [full], [%d1], 16", "mma.sync.aligned.m8n8k4 {%r10,%r11}, {%r12}, {%r13}"):
        assert moved(f"bar.sync 0; {ADD}; {decides}; {text.replace('OWN', own)}; {USE};") == [decides]


def test_time_is_taken_in_proportion_to_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may be asked of a mark is asked once, not for each instruction: a long loop took minutes."""
    asked: list[int] = []
    whether = Flow.is_behind_jump

    def counted(own: Flow, index: int, behind: bool) -> bool:
        asked.append(index)
        return whether(own, index, behind)

    monkeypatch.setattr(Flow, "is_behind_jump", counted)
    counts = []
    for many in (1, 9):
        asked.clear()
        moved(" ".join(f"bar.sync {n}; {f'{ADD}; ' * many}{USE};" for n in range(8)))
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_in_a_pipelined_matmul_addresses_are_made_beside_the_product(corpus: dict[str, str]) -> None:
    found = instrument(corpus["triton_3.6.0_matmul_90"]).text
    product, wait, copies = (
        found.rindex(own) for own in ("wgmma.mma_async", "wgmma.wait_group.sync.aligned 1", "0x10")
    )
    (barrier,) = [own.start() for own in re.finditer(r"bar\.sync", found) if wait < own.start() < copies]
    made = re.compile(r"\n\t(?:add|setp|selp|shl)\.(?:s64|s32|b32)[^%]*%(?!wl)")
    assert len(made.findall(found, product, wait)) > 20
    assert not made.findall(found, wait, barrier)
    assert not made.findall(found, barrier, copies)


def test_line_information_goes_along(corpus: dict[str, str]) -> None:
    """And names first where a line was inlined, as ptxas wants it."""
    for name in ("triton_3.6.0_matmul_90", "triton_3.9.0_hopper_90"):
        lines = [of_lines(text) for text in (corpus[name], instrument(corpus[name]).text)]
        assert lines[0] <= lines[1]
    given: set[str] = set()
    for own in re.findall(r"\.loc\s+(\d+ \d+ \d+)(?:.*inlined_at (\d+ \d+ \d+))?", instrument(corpus[name]).text):
        assert not own[1] or own[1] in given
        given.add(own[0])


def of_lines(text: str) -> Counter[tuple[str, object]]:
    module = read(text)
    code = Flow(module, module.entries[0]).code
    return Counter((f"{own.opcode} {own.operands}", own.place) for own in code if own.name in ("add", "shl", "selp"))


def test_with_its_state_in_shared_memory_a_kernel_keeps_its_arithmetic_in_place(corpus: dict[str, str]) -> None:
    text = corpus["triton_3.6.0_matmul_90"]
    mode = Mode(Selection(), state=State.SHARED)
    found = [instrument(text, modes={"matmul": replace(mode, hoists=own)}) for own in (False, True)]
    assert found[0].text == found[1].text
    assert found[1].kernels[0].hoisted == 0 < instrument(text).kernels[0].hoisted


def test_without_it_nothing_is_moved(corpus: dict[str, str]) -> None:
    text = corpus["triton_3.6.0_matmul_90"]
    module = read(text)
    plan = Planner(Flow(module, module.entries[0]), Selection(), hoists=False).plan()
    assert not plan.moves
    modes = {hoists: {"matmul": Mode(Selection(), hoists=hoists)} for hoists in (False, True)}
    assert instrument(text, modes=modes[False]).text != instrument(text, modes=modes[True]).text
    assert instrument(text, modes=modes[True]).text == instrument(text).text


# Programs of arithmetic between waits, with few registers, so that each is written and read again and again.
_REGISTER = st.sampled_from(["%r4", "%r5", "%r6", "%r7"])
_SOURCE = st.one_of(_REGISTER, _REGISTER, st.sampled_from(["%r2", "%t", "7"]))
_PREDICATE = st.sampled_from(["%p4", "%p5", "%p6"])
_TWO = st.builds(
    "{}.u32 {}, {}, {};".format, st.sampled_from(["add", "sub", "mul.lo", "min", "max"]), _REGISTER, _SOURCE, _SOURCE
)
_ONE = st.builds(
    "{} {}, {}, {};".format, st.sampled_from(["shl.b32", "shr.u32"]), _REGISTER, _SOURCE, st.integers(0, 9)
)
_SETP = st.builds("setp.{}.u32 {}, {}, {};".format, st.sampled_from(["lt", "eq"]), _PREDICATE, _SOURCE, _SOURCE)
_SELP = st.builds("selp.u32 {}, {}, {}, {};".format, _REGISTER, _SOURCE, _SOURCE, _PREDICATE)
_BOTH = st.builds("setp.lt.u32 {}|{}, {}, {};".format, _PREDICATE, _PREDICATE, _SOURCE, _SOURCE).filter(
    lambda own: own[12:15] != own[16:19]  # two predicates
)
_JOIN = st.builds("mov.b64 %d2, {{{}, {}}};".format, _REGISTER, _REGISTER)
_PART = st.sampled_from(["mov.b64 {%r4, %r5}, %d2;", "mov.b64 {%r7, %r4}, %d2;", "mov.b64 {_, %r6}, %d2;"])
_WIDE = st.sampled_from(["add.u64 %d2, %d1, 5;", "add.u64 %d2, %d2, %d1;", "cvt.u32.u64 %r5, %d2;"])
_ODD = st.builds("\n/* ; */ add.u32\n{}, // bar.sync 7;\n%r2\n, {}/*,*/;".format, _REGISTER, _SOURCE)
_PURE = st.one_of(_TWO, _TWO, _TWO, _ONE, _SETP, _SELP, _BOTH, _JOIN, _PART, _WIDE, _ODD)
_GUARDED = st.builds("@{}{} {}".format, st.sampled_from(["", "!"]), _PREDICATE, _PURE)
_STORE = st.builds(
    "st.global.u32 [out+{}], {};".format, st.sampled_from([4, 8, 12]), _SOURCE.filter(lambda own: own != "7")
)
_LOAD = st.builds("ld.global.u32 {}, [out+{}];".format, _REGISTER, st.sampled_from([4, 8, 12]))
_ELECT = st.builds("elect.sync _|{}, -1;".format, _PREDICATE)
_WAIT = st.builds("bar.sync {};".format, st.integers(0, 3))
_ASK = st.builds("$wN: {} mbarrier.try_wait.parity.shared.b64 %p7, [full], %r2; @!%p7 bra $wN;".format, _PURE)
_BRACED = st.builds("{{ .reg .b32 %own; mov.u32 %own, %r5; {} {} {} }}".format, _PURE, st.one_of(_WAIT, _STORE), _STORE)
_PAIR = st.sampled_from(["st.global.v2.u32 [out+8], {%r4, %r6};", "ld.global.v2.u32 {%r5, %r7}, [out+8];"])
_LEAVE = st.builds("@{} ret;".format, _PREDICATE)
_ITEM = st.one_of(*[_PURE] * 6, _GUARDED, _STORE, _STORE, _LOAD, _ELECT, _WAIT, _WAIT, _ASK, _BRACED, _PAIR)
_BODY = st.lists(st.one_of(*[_ITEM] * 12, _LEAVE), min_size=4, max_size=40)


@dataclass
class Logged(Machine):
    """Keeps what each thread stores where the kernel has its data, in order."""

    stored: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    thread: int = 0

    def executed(self, thread: int, at: int, taken: bool) -> None:
        del at, taken
        self.thread = thread

    def store(self, address: int, value: int) -> None:
        if 1024 <= address < 1056:
            self.stored.setdefault(self.thread, []).append((address, value))
        super().store(address, value)


@settings(max_examples=150, deadline=None)
@given(
    body=_BODY,
    turns=st.integers(1, 4),
    asks=st.integers(1, 3),
    level=st.sampled_from(["waits", "all"]),
)
def test_a_kernel_stores_the_same_with_its_arithmetic_moved(body: list[str], turns: int, asks: int, level: str) -> None:
    """In every lane, in the same order."""
    named = [own.replace("$wN", f"$w{number}") for number, own in enumerate(body)]
    text = loop(" ".join(named), "mov.b64 %d2, 9; " + "".join(f"mov.u32 %r{n}, {n};" for n in range(4, 8)))
    clean = Logged({"full": 64, "out": 1024}, asks=asks)
    clean.run(text, grid=1, threads=64, grid_id=5, arguments={"n": turns})
    marked = Logged({}, asks=asks)
    run(text, turns=turns, machine=marked, selection=Selection(level), depth=400)
    assert marked.stored == clean.stored
