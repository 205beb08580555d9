"""Kernels made at random, as PTX text: loops of all shapes, ways out of them, and what is marked in between.

In: what hypothesis draws. Out: the text of a kernel `made` that ends on any machine. Its branches are the same in all
lanes of a warp, but for those that are said to part them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from warplens.instrument.source import marker

HEAD = """
.version 8.0
.target sm_90
.address_size 64
.global .align 4 .b32 out;
.visible .entry made(.param .u32 n)
.reqntid 64
{
	.reg .b32 %r<8>, %c<99>, %h, %t;
	.reg .pred %p<8>;
	.shared .align 8 .b64 full;
	.shared .align 8 .b64 empty;
"""
BEGIN = """	ld.param.u32 %r1, [n];
	mov.u32 %r2, 0;
	mov.u32 %h, {seed};
	mov.u32 %r6, %tid.x;
	and.b32 %r7, %r6, 31;
"""
WORK = "	st.global.u32 [out], %r2;" + "\n	add.u32 %r5, %r2, 3;" * 9
CHANCE = """	mad.lo.u32 %h, %h, 1103515245, 12345;
	shr.u32 %t, %h, 16;
	and.b32 %t, %t, 3;
	setp.eq.u32 {p}, %t, {n};"""
"""A predicate that holds in one of four turns, the same in all lanes."""
SOMETIMES = CHANCE.replace("{p}", "%p3").replace("{n}", "1")
ASKS = "$w{n}:\n	mbarrier.try_wait.parity.shared.b64 %p7, [full], %r2;\n	@!%p7 bra $w{n};"
LONE = "	setp.ne.u32 %p2, %r6, 0;\n	@%p2 bra $l{n};\n	mbarrier.arrive.shared.b64 _, [empty];\n{more}\n$l{n}:"
BRACED = "	{\n	.reg .b32 %own;\n	INSIDE\n	}"
ITEMS = {
    "nothing": "",
    "barrier": "	bar.sync {n};",
    "work": WORK,
    "arrive": "	mbarrier.arrive.shared.b64 _, [full];",
    "arrive sometimes": SOMETIMES + "\n	@%p3 mbarrier.arrive.shared.b64 _, [full];",
    "arrive mostly": SOMETIMES + "\n	@!%p3 mbarrier.arrive.shared.b64 _, [full];",
    "ask": ASKS,
    "ask and work": ASKS + "\n" + WORK,
    "lane 0 alone": LONE.replace("{more}", ""),
    "lane 0 alone, twice": LONE.replace("{more}", WORK + "\n	mbarrier.arrive.shared.b64 _, [full];"),
    "barrier in braces": BRACED.replace("INSIDE", "bar.sync {n};"),
    "barrier among others in braces": BRACED.replace(
        "INSIDE", "mov.u32 %own, 1;\n	bar.sync {n};\n	not.b32 %own, %own;"
    ),
    "ask among others in braces": BRACED.replace("INSIDE", "mov.u32 %own, 1;\n" + ASKS),
    "ask in braces": BRACED.replace("INSIDE", ASKS),
    "some lanes end": "	setp.gt.u32 %p4, %r7, 20;\n	@%p4 ret;",
    "lanes apart": "	setp.gt.u32 %p4, %r7, 8;\n	@%p4 bra $l{n};\n" + WORK + "\n$l{n}:",
    "warps leave": "	setp.gt.u32 %p4, %r6, 31;\n	@%p4 exit;",
    "own copies": "	cp.async.wait_all;",
    "own copies and work": "	cp.async.wait_all;\n" + WORK,
    "load": "	ld.global.u32 %r5, [out+128];",
    "numbers": "	mov.u32 %r5, 0;\n	mov.u32 %r4, 7;",
    "phase of the source": marker("phase", "own"),
    "ranges of the source": f"{marker('range_push', 'outer')}\n{marker('range_push', 'inner')}",
    "their ends": f"{marker('range_pop', 'inner')}\n{marker('range_pop', 'outer')}",
    "many barriers": "\n".join(f"	bar.sync {number};\n{WORK}" for number in range(6)),
}
LEAVES = ("continue", "continue at the latch", "break", "ret", "ret in braces", "to the end", "exit in a block")
LOOPS = (
    "while", "while not", "top", "top not", "by ret", "from two blocks", "turned", "middle", "branch table", "lanes",
    "falls", "next",
)  # fmt: skip


@dataclass
class Loop:
    """What the loop is called, and how many turns it makes."""

    number: int
    turns: str

    @property
    def again(self) -> str:
        return f"	setp.lt.u32 %p1, %c{self.number}, {self.turns};"


@dataclass
class Maker:
    """Makes the text of one program, a list of items: names, and tuples of a kind and the items inside."""

    number: int = 0
    loops: list[Loop] = field(default_factory=list)

    def items(self, program: list[object]) -> str:
        return "\n".join(self.item(own) for own in program)

    def item(self, own: object) -> str:
        self.number += 1
        n = self.number
        if isinstance(own, str):
            number = n % 7 if own.startswith("barrier") else n
            return ITEMS[own].replace("{n}", str(number)) if own in ITEMS else self.leave(own)
        assert isinstance(own, tuple)
        kind, body = own
        chance = CHANCE.format(p="%p5", n=n % 4)
        if kind == "if":
            return f"{chance}\n	@!%p5 bra $x{n};\n{self.items(body)}\n$x{n}:"
        if kind == "else":
            half = len(body) // 2
            first, other = self.items(body[:half]), self.items(body[half:])
            return f"{chance}\n	@%p5 bra $e{n};\n{first}\n	bra.uni $x{n};\n$e{n}:\n{other}\n$x{n}:"
        return self.pair(body) if kind == "pair" else self.loop(kind, body)

    def leave(self, kind: str) -> str:
        n = self.number
        chance = CHANCE.format(p="%p6", n=n % 4)
        loop = self.loops[-1] if self.loops else None
        if kind == "exit in a block":
            return f"{chance}\n	@!%p6 bra $s{n};\n{WORK}\n	exit;\n$s{n}:"
        if kind == "ret in braces":
            return f"{chance}\n	{{\n	.reg .b32 %own;\n	mov.u32 %own, 1;\n	@%p6 ret;\n	mov.u32 %own, 2;\n	}}"
        if kind == "to the end":
            return f"{chance}\n	@%p6 bra $end;"
        if kind == "ret" or loop is None:
            return f"{chance}\n	@%p6 ret;"
        if kind == "break":
            return f"{chance}\n	@%p6 bra $x{loop.number};"
        if kind == "continue at the latch":
            return f"{chance}\n	@%p6 bra $l{loop.number};"
        return f"{chance}\n	setp.lt.and.u32 %p6, %c{loop.number}, {loop.turns}, %p6;\n	@%p6 bra $h{loop.number};"

    def pair(self, body: list[object]) -> str:
        """Two loops with nothing between."""
        half = (len(body) + 1) // 2
        text = ""
        begin = ""
        for part in (body[:half], body[half:]):
            self.number += 1
            n = self.number
            own = Loop(n, "%r1" if not self.loops else "2")
            self.loops.append(own)
            inside = self.items(part)
            self.loops.pop()
            begin += f"	mov.u32 %c{n}, 0;\n"
            count = f"	add.u32 %c{n}, %c{n}, 1;"
            text += f"$h{n}:\n{count}\n{inside}\n$l{n}:\n{own.again}\n	@%p1 bra $h{n};\n$x{n}:\n"
        return begin + text

    def loop(self, kind: str, body: list[object]) -> str:
        n = self.number
        turns = "%r1" if not self.loops else str(2 + n % 2)
        own = Loop(n, turns)
        begin, count = f"	mov.u32 %c{n}, 0;", f"	add.u32 %c{n}, %c{n}, 1;"
        self.loops.append(own)
        half = len(body) // 2
        first, other = self.items(body[:half]), self.items(body[half:])
        self.loops.pop()
        chance = CHANCE.format(p="%p5", n=n % 4)
        inside = f"{count}\n{first}\n{other}\n$l{n}:"
        more = {
            "while": f"$h{n}:\n{inside}\n{own.again}\n	@%p1 bra $h{n};",
            "while not": f"$h{n}:\n{inside}\n{own.again.replace('.lt', '.ge')}\n	@!%p1 bra $h{n};",
            "top": f"$h{n}:\n{own.again.replace('.lt', '.ge')}\n	@%p1 bra $x{n};\n{inside}\n	bra.uni $h{n};",
            "top not": f"$h{n}:\n{own.again}\n	@!%p1 bra $x{n};\n{inside}\n{WORK}\n	bra $h{n};",
            "by ret": f"$h{n}:\n{own.again}\n	@!%p1 ret;\n{inside}\n	bra $h{n};",
            "from two blocks": (
                f"{chance}\n	@%p5 bra $f{n};\n{WORK}\n	bra $h{n};\n$f{n}:\n	bar.sync 7;\n"
                f"$h{n}:\n{inside}\n{own.again}\n	@%p1 bra $h{n};"
            ),
            "turned": f"	bra.uni $t{n};\n$h{n}:\n{inside}\n$t{n}:\n{own.again}\n	@%p1 bra $h{n};",
            "middle": (
                f"{chance}\n	@%p5 bra $m{n};\n$h{n}:\n{count}\n{first}\n$m{n}:\n{other}\n$l{n}:\n"
                f"{count}\n{own.again}\n	@%p1 bra $h{n};"
            ),
            "branch table": (
                f"	bra.uni $h{n};\n$b{n}:\n	.branchtargets $x{n}, $h{n};\n$h{n}:\n{inside}\n{own.again}\n"
                f"	selp.u32 %t, 1, 0, %p1;\n	brx.idx %t, $b{n};"
            ),
            "lanes": f"$h{n}:\n{inside}\n	and.b32 %t, %r6, 3;\n	setp.le.u32 %p1, %c{n}, %t;\n	@%p1 bra $h{n};",
            "falls": (
                f"	bra.uni $h{n};\n$u{n}:\n{other}\n{chance}\n	@%p5 bra $x{n};\n$h{n}:\n{count}\n"
                f"{first}\n$l{n}:\n{own.again}\n	@%p1 bra $u{n};"
            ),
            "next": (
                f"	bra.uni $h{n};\n$u{n}:\n{other}\n{chance}\n	@%p5 bra $h{n};\n$h{n}:\n{count}\n"
                f"{first}\n$l{n}:\n{own.again}\n	@%p1 bra $u{n};"
            ),
        }[kind]
        return f"{begin}\n{more}\n$x{n}:"


def kernel(program: list[object], seed: int, *, again: bool) -> str:
    """`again`: the first block is a loop's begin, and all is done as often as the kernel is told."""
    body = f"{BEGIN.format(seed=seed)}{Maker().items(program)}\n"
    if again:
        count = "	ld.global.u32 %r3, [out+64];\n	add.u32 %r3, %r3, 1;\n	st.global.u32 [out+64], %r3;\n"
        body = f"$first:\n{body}{count}	setp.lt.u32 %p1, %r3, %r1;\n	@%p1 bra $first;\n"
    end = "$end:" if "$end;" in body else "	ret;"
    return f"{HEAD}{body}{end}\n}}\n"


def _more(inside: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    kinds = ["if", "else", "pair", "pair", *LOOPS * 2]
    return st.tuples(st.sampled_from(kinds), st.lists(inside, min_size=1, max_size=5))


_leaf: st.SearchStrategy[object] = st.sampled_from([*ITEMS, *ITEMS, *LEAVES])
programs: st.SearchStrategy[list[object]] = st.lists(st.recursive(_leaf, _more, max_leaves=12), min_size=1, max_size=6)
