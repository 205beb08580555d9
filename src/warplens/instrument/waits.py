"""Where a kernel waits, and where it does its part for something that others wait for.

In: a `Flow`. Out: `Wait`s and `Instant`s, by the index of their instructions. A loop that does nothing but ask is one
wait. What an address names is followed back to a symbol and an offset, as far as registers are set once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from warplens import layout
from warplens.instrument.flow import Flow, Loop
from warplens.instrument.instruction import Instruction
from warplens.instrument.read import integer

_WAITS: Final = (
    (r"(?:bar|barrier)(?:\.cta)?\.(?:sync|red)\b", "barrier", "barrier {0}", True),
    (r"barrier\.cluster\.wait", "cluster barrier", "cluster barrier", True),
    (r"cp\.async\.wait_(?:group|all)", "cp.async", "cp.async", False),
    (r"cp\.async\.bulk\.wait_group\.read", "bulk copies read", "bulk copies", False),
    (r"cp\.async\.bulk\.wait_group", "bulk copies", "bulk copies", False),
    (r"wgmma\.wait_group", "wgmma", "wgmma", False),
    (r"tcgen05\.wait::ld", "tensor memory loads", "tensor memory loads", True),
    (r"tcgen05\.wait::st", "tensor memory stores", "tensor memory stores", True),
    (r"griddepcontrol\.wait", "earlier grid", "earlier grid", False),
    (r"nanosleep", "nanosleep", "", False),
)
"""Opcode, what is waited for, the resource ({0}: its first operand), whether a clock behind it can come too early."""
_INSTANTS: Final = (
    (r"mbarrier\.arrive", "arrive", "arrive {1}", "mbarrier"),
    (r"cp\.async\.mbarrier\.arrive", "mark", "issue cp.async for mbarrier", "mbarrier"),
    (r"tcgen05\.commit", "mark", "tcgen05 commit", "mbarrier"),
    (r"(?:bar|barrier)(?:\.cta)?\.arrive", "arrive", "arrive barrier {0}", "barrier {0}"),
    (r"barrier\.cluster\.arrive", "arrive", "arrive cluster barrier", "cluster barrier"),
    (r"griddepcontrol\.launch_dependents", "arrive", "let the next grid begin", "next grid"),
    (r"cp\.async\.bulk(?:\.tensor)?\.\S*mbarrier", "mark", "issue bulk load", "mbarrier"),
    (r"cp\.async\.bulk(?:\.tensor)?\.\S*bulk_group", "mark", "issue bulk store", ""),
    (r"wgmma\.mma_async", "mark", "issue wgmma", ""),
    (r"tcgen05\.mma", "mark", "issue tcgen05.mma", ""),
    (r"fence\.proxy", "mark", "fence.proxy", ""),
)
"""Opcode, verb, what is done, the resource: of a `mark`, the one that hardware arrives at when it is done."""
_WAIT: Final = re.compile("|".join(f"({own[0]})" for own in _WAITS))
_INSTANT: Final = re.compile("|".join(f"({own[0]})" for own in _INSTANTS))
_REMOTE: Final = re.compile(r"\S*(?:\.multicast|mbarrier\.arrive\S*\.shared::cluster)")
_MAKES: Final = re.compile(r"mbarrier\.(?:init|arrive_drop)")
_ASKS: Final = re.compile(r"mbarrier\.(?:try_wait|test_wait)")
_FLAG: Final = re.compile(r"(?:ld\.(?:volatile|relaxed|acquire)|atom(?:\.\w+)*\.(?:cas|exch|or|add))")
_WORKS: Final = frozenset({"st", "mma", "wgmma", "tcgen05", "cp", "wmma", "shfl", "bar", "barrier", "call"})
_MOST_ASKING: Final = 24
"""Instructions of a loop that only asks: more than any compiler makes of one."""


_LENGTH: Final = re.compile(r"(?<![0-9])[1-9][0-9]?(?=[A-Za-z_])")  # in front of a name, as C++ mangles it
_ARRAY: Final = re.compile(r"\.shared\s+(?:\.align\s+\w+\s+)?\.[bsu](8|16|32|64)\s+([\w$]+)\s*((?:\[\s*\w+\s*\]\s*)+)")
_TAIL: Final = re.compile(r"E?(?:_?[0-9]+)?")
_SYMBOL: Final = re.compile(r"[A-Za-z_$]")


@dataclass(frozen=True)
class Wait:
    """Instructions `first` to `last` wait. `settles`: a clock read right behind can come before the wait has ended.

    `into`: the block behind a loop that asks, None for a single instruction. `arrivals`: of an mbarrier how many end a
    phase of it; None where that is not known.
    """

    first: int
    last: int
    what: str
    resource: str
    settles: bool = False
    into: int | None = None
    arrivals: int | None = None


@dataclass(frozen=True)
class Instant:
    """An instruction that does a warp's part for `resource` (verb "arrive"), or begins something ("mark").

    `arrivals`: of an mbarrier how many of a phase's a warp makes by it; None where that is not known.
    """

    index: int
    verb: str
    what: str
    resource: str
    arrivals: int | None = None


class Waits:
    """What there is to mark in one function."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._readables: dict[str, str] = {}

    @cached_property
    def waits(self) -> list[Wait]:
        """In the order of the text."""
        asking = [wait for loop in self._flow.loops if (wait := self._asking(loop)) is not None]
        inside = {n for wait in asking for n in range(wait.first, wait.last + 1)}
        single = [wait for n, own in enumerate(self._flow.code) if n not in inside and (wait := self._single(n, own))]
        return sorted([*asking, *single], key=lambda wait: wait.first)

    def is_over(self, wait: Wait) -> bool:
        """Whether all that it is for was used in front of it, so that it was waited for there: Triton 3.9 puts
        `tcgen05.wait::ld` behind what computes with the loaded values."""
        flow = self._flow
        if not flow.code[wait.first].opcode.startswith("tcgen05.wait::ld"):
            return False
        used: set[str] = set()
        loads = 0
        for number in range(wait.first - 1, flow.blocks[flow.block_of[wait.first]].start - 1, -1):
            own = flow.code[number]
            if own.opcode.startswith("tcgen05.wait::ld"):
                break
            if own.opcode.startswith("tcgen05.ld"):
                if used.isdisjoint(own.targets):
                    return False
                loads += 1
            used.update(own.sources)
        return loads > 0

    def _single(self, number: int, own: Instruction) -> Wait | None:
        found = _WAIT.match(own.opcode)
        if found is None:
            return None
        _, what, resource, settles = _WAITS[(found.lastindex or 0) - 1]
        if own.opcode.startswith(("bar.warp", "barrier.cluster")) and what == "barrier":
            return None
        if what == "barrier":  # of a reduction the first operand is its result
            parts = [part.strip() for part in own.operands.split(",")]
            first = parts[1] if ".red" in own.opcode and len(parts) > 1 else parts[0]
            return Wait(number, number, f"barrier {self._value(first)}", f"barrier {self._value(first)}", True)
        if what == "cluster barrier":
            settles = not self._in_cluster
        return Wait(number, number, what, resource, settles)

    @cached_property
    def _in_cluster(self) -> bool:
        """Whether the kernel always runs in a cluster. For one that need not ptxas makes a second way with BAR.SYNC,
        which one block alone takes; behind the other, CCTL stands between the wait and the clock."""
        return ".explicitcluster" in self._flow.module.bare(self._flow.function.head)

    def _asking(self, loop: Loop) -> Wait | None:
        """The wait that a loop is, if it does nothing but ask whether it may go on."""
        flow = self._flow
        numbers = [n for block in loop.blocks for n in range(flow.blocks[block].start, flow.blocks[block].stop)]
        if len(numbers) > _MOST_ASKING or max(numbers) - min(numbers) + 1 != len(numbers):
            return None
        code = [flow.code[n] for n in sorted(numbers)]
        if any(own.name in _WORKS or own.name in ("ret", "exit") for own in code):
            return None
        exits = {after for block in loop.blocks for after in flow.blocks[block].after if after not in loop.blocks}
        if len(exits) != 1:
            return None
        into = exits.pop()
        first, last = min(numbers), max(numbers)
        if asks := next((own for own in code if _ASKS.match(own.opcode)), None):
            resource = self._mbarrier(asks)
            return Wait(first, last, resource, resource, into=into, arrivals=self._expected(asks))
        if any(_FLAG.match(own.opcode) and ".shared" not in own.opcode for own in code):
            return Wait(first, last, "flag", "flag", into=into)
        return None

    @cached_property
    def instants(self) -> list[Instant]:
        """Arrivals and issues, in the order of the text; of a run of issues of one kind the first."""
        out: list[Instant] = []
        before = (-2, "", "")
        for number, own in enumerate(self._flow.code):
            matched = _INSTANT.match(own.opcode)
            if matched is None:
                continue
            _, verb, what, resource = _INSTANTS[(matched.lastindex or 0) - 1]
            found = self._mbarrier(own) if resource == "mbarrier" else resource
            if resource == "mbarrier" and _REMOTE.match(own.opcode):
                found = layout.REMOTE + found
            first = self._value(own.operands.partition(",")[0].strip())
            makes = self._makes(number) if resource == "mbarrier" else None
            instant = Instant(number, verb, what.format(first, found), found.format(first), makes)
            same = before[1:] == (what, found) and self._flow.block_of[before[0]] == self._flow.block_of[number]
            if verb != "mark" or not same:
                out.append(instant)
            else:
                out[-1] = replace(out[-1], arrivals=self._together(out[-1], instant))
            before = number, what, found
        return out

    @cached_property
    def announced(self) -> frozenset[str]:
        """Barriers that bytes are announced for without an arrival."""
        return frozenset(self._mbarrier(own) for own in self._flow.code if own.opcode.startswith("mbarrier.expect_tx"))

    def _together(self, first: Instant, more: Instant) -> int | None:
        """Arrivals of a run of issues, which the mark of its first tells of."""
        one, other = self._flow.code[first.index], self._flow.code[more.index]
        if first.arrivals is None or more.arrivals is None:
            return None
        alike = (one.predicate, one.negated) == (other.predicate, other.negated)
        return first.arrivals + more.arrivals if alike or not more.arrivals else None

    def _makes(self, number: int) -> int | None:
        """Arrivals at an mbarrier that a warp makes by an instruction; None where that is not known."""
        own = self._flow.code[number]
        lanes = self._flow.lanes_at(number)
        if own.name == "cp":
            if ".bulk" in own.opcode or ".noinc" not in own.opcode:
                return 0  # bytes; or an arrival that is expected as it is asked for
            return lanes
        if own.name == "tcgen05":
            return lanes
        if lanes is None or own.opcode.startswith("mbarrier.arrive_drop"):
            return None
        parts = own.operands.rpartition("]")[2].split(",")[1:]
        if not parts or "expect_tx" in own.opcode:
            return lanes
        each = self._value(parts[0].strip())
        return None if each == "?" else lanes * int(each)

    def _expected(self, own: Instruction) -> int | None:
        """How many arrivals end a phase of the barrier that an instruction names, by all `mbarrier.init` that may be
        its own; None where they differ, are no constants or are not in this function."""
        symbol, distance, rest = self._place(own)
        found = {
            count
            for base, offset, more, count in self._made
            if (not base and more) or (base == symbol and (rest or more or offset == distance))
        }
        count = found.pop() if len(found) == 1 else "?"
        return None if count == "?" or (not symbol and rest) else int(count)

    @cached_property
    def _made(self) -> list[tuple[str, int, bool, str]]:
        """The place of each `mbarrier.init` (symbol, offset, whether more is added), and its count, `?` if not known.

        One that some thread leaves for good has another count from then on.
        """
        # What a function makes that is called may be any, with any count.
        out = [("", 0, True, "?")] if self._flow.may_call(_MAKES) else []
        for own in self._flow.code:
            if own.opcode.startswith("mbarrier.init"):
                out.append((*self._place(own), self._value(own.operands.rpartition(",")[2].strip())))
            elif own.opcode.startswith("mbarrier.arrive_drop"):
                out.append((*self._place(own), "?"))
        return out

    def _place(self, own: Instruction) -> tuple[str, int, bool]:
        """What an instruction names in brackets: symbol, constant offset, whether something is added that is not
        known."""
        found = re.findall(r"\[\s*([^\]\s+]+)\s*(?:\+\s*(-?\w+))?\s*\]", own.operands)
        if not found:
            return "", 0, True
        base, offset = found[-1] if own.name == "cp" else found[0]
        symbol, distance, rest = self._address(base)
        if offset:
            value = integer(offset)
            distance += value or 0
            rest |= value is None
        return symbol, distance, rest

    def _mbarrier(self, own: Instruction) -> str:
        """A name for the barrier in shared memory that the instruction names in brackets."""
        symbol, distance, rest = self._place(own)
        if not symbol and not distance:
            return layout.MBARRIER
        stages = self._rings.get(symbol, "") if not distance else ""
        symbol = self._readable(symbol or "shared")
        place = f"{symbol}+{distance}" if distance else symbol
        return f"{layout.MBARRIER} {place}" + (f"[{stages}]" if rest else "")

    @cached_property
    def _rings(self) -> dict[str, str]:
        """How many barriers an array in shared memory has, where all that are made in it expect as many arrivals."""
        counts: dict[str, set[str]] = {}
        for own in self._flow.code:
            if own.opcode.startswith("mbarrier.init"):
                place, _, count = own.operands.partition(",")
                symbol, _, _ = self._address(place.strip("[] ").partition("+")[0].strip())
                counts.setdefault(symbol, set()).add(self._value(count.strip()))
        sizes = {}
        for found in _ARRAY.finditer(self._flow.module.plain):
            extents = [integer(own) or 0 for own in re.findall(r"\w+", found[3])]
            sizes[found[2]] = int(found[1]) // 8 * math.prod(extents)
        alike = {symbol for symbol, values in counts.items() if len(values) == 1 and "?" not in values}
        return {symbol: str(size // 8) for symbol, size in sizes.items() if symbol in alike and size % 8 == 0 and size}

    def _readable(self, symbol: str) -> str:
        """What the source calls a variable that C++ mangled, where no other of the kernel has that name."""
        for found in _LENGTH.finditer(symbol) if symbol.startswith("_Z") else ():
            end = found.end() + int(found[0])
            name = symbol[found.end() : end]
            if len(name) == int(found[0]) and _TAIL.fullmatch(symbol, end):
                return name if self._readables.setdefault(name, symbol) == symbol else symbol
        return symbol

    def _address(self, register: str) -> tuple[str, int, bool]:
        """Symbol, constant offset, and whether something is added that is not known."""
        symbol, distance, rest = "", 0, False
        for _ in range(16):
            if not register.startswith("%"):
                value = integer(register)
                if value is None and not _SYMBOL.match(register):
                    return symbol, distance, True
                return (register, distance, rest) if value is None else (symbol, distance + value, rest)
            defined = self._definitions.get(register, [])
            if len(defined) != 1 or defined[0].name not in ("mov", "add", "cvta", "cvt", "or", "mapa"):
                return symbol, distance, True
            parts = [part.strip() for part in defined[0].operands.split(",")][1:]
            parts = parts[:1] if defined[0].name == "mapa" else parts
            registers = [part for part in parts if integer(part) is None]
            distance += sum(integer(part) or 0 for part in parts)
            if not registers:
                return symbol, distance, rest
            known = [part for part in registers if self._leads_to_symbol(part)]
            rest |= len(registers) > 1
            register = known[0] if known else registers[0]
        return symbol, distance, True

    def _leads_to_symbol(self, register: str) -> bool:
        for _ in range(16):
            if not register.startswith("%"):
                return _SYMBOL.match(register) is not None
            defined = self._definitions.get(register, [])
            if len(defined) != 1 or defined[0].name not in ("mov", "add", "cvta", "or", "mapa"):
                return False
            parts = [part.strip() for part in defined[0].operands.split(",")][1:]
            register = next((part for part in parts if integer(part) is None), "%")
        return False

    def _value(self, operand: str) -> str:
        """A number as it stands, or as the register was set; `?` when it is not known."""
        if (value := integer(operand)) is not None:
            return str(value)
        defined = self._definitions.get(operand, [])
        if len(defined) == 1 and defined[0].name == "mov":
            value = integer(defined[0].operands.partition(",")[2].strip())
            return "?" if value is None else str(value)
        return "?"

    @cached_property
    def _definitions(self) -> dict[str, list[Instruction]]:
        out: dict[str, list[Instruction]] = {}
        for own in self._flow.code:
            for target in own.targets:
                out.setdefault(target, []).append(own)
        return out


LEAVES: Final = frozenset({"ret", "exit"})
JUMPS: Final = LEAVES | {"bra", "brx", "trap"}


def may_hang(own: Instruction) -> bool:
    """Whether an instruction may wait for ever, or lead to one that does: not for what hardware does for the thread."""
    if own.opcode.startswith(_WAITS_FOR_OWN):
        return False
    if own.opcode.startswith(_TAKES_FROM_OTHERS):
        return True
    return own.name in ("bar", "barrier", "call", "nanosleep") or "wait" in own.opcode


_TAKES_FROM_OTHERS: Final = ("setmaxnreg.inc", "tcgen05.alloc")
"""They end when other warps have given back registers, or tensor memory."""
_WAITS_FOR_OWN: Final = ("cp.async.wait", "cp.async.bulk.wait", "wgmma.wait_group", "tcgen05.wait")


def is_idle(own: Instruction) -> bool:
    """Whether an instruction only computes: it neither touches memory nor waits nor branches."""
    return own.name in _COMPUTES


_COMPUTES: Final = frozenset(
    {"mov", "add", "sub", "mul", "mad", "shl", "shr", "and", "or", "xor", "not", "setp", "selp", "cvt", "bfe", "bfi"}
    | {"elect", "lop3", "prmt", "neg", "min", "max", "cvta", "shf", "addc", "subc"}
)


def notable(code: list[Instruction]) -> Iterator[str]:
    """Words for what a stretch of code does, the weightiest first."""
    opcodes = {own.opcode for own in code}
    for word, pattern in _NOTABLE:
        if any(pattern.match(opcode) for opcode in opcodes):
            yield word


def lands_later(code: list[Instruction]) -> bool:
    """Whether a stretch reads nothing of what a load in it brings from global memory, and so does not wait for it."""
    read = {register for own in code for register in own.sources}
    return any(_LOAD.match(own.opcode) and read.isdisjoint(own.targets) for own in code)


_LOAD: Final = re.compile(r"ld\.(?:\w+\.)*global")
_NOTABLE: Final = (
    ("wgmma", re.compile(r"wgmma\.mma_async")),
    ("tcgen05.mma", re.compile(r"tcgen05\.mma")),
    ("mma", re.compile(r"mma\.sync|wmma\.mma")),
    ("issue bulk load", re.compile(r"cp\.async\.bulk\S*mbarrier")),
    ("bulk store", re.compile(r"cp\.async\.bulk\S*bulk_group")),
    ("cp.async", re.compile(r"cp\.async\.c[ag]")),
    ("load", _LOAD),
    ("store", re.compile(r"st\.(?:\w+\.)*global")),
    ("atomic", re.compile(r"(?:atom|red)\.(?:\w+\.)*global")),
    ("shuffle", re.compile(r"shfl|redux")),
)
