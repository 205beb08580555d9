"""Where the lanes of a warp can be apart.

In: a `Flow`. Out: the blocks to which a branch leads whose predicate can differ between lanes of one warp. A register
differs when it is made of one that does, or is set where lanes are apart. The number of a thread differs; what is left
of it when its low five bits are gone does not. A load gives all lanes that load one address together the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import copy
from typing import TYPE_CHECKING, Final

from warplens.instrument.read import integer

if TYPE_CHECKING:
    from warplens.instrument.flow import Flow
    from warplens.instrument.instruction import Instruction

_DIFFER: Final = frozenset({"%tid", "%laneid"})
_BY_LANE: Final = ("%lanemask",)
_SAME: Final = frozenset({"activemask", "bar", "barrier"})
"""Opcodes whose result is that of the whole warp, whatever goes in."""
_AMONG: Final = frozenset({"vote", "redux"})
"""Opcodes whose result is that of the lanes in a mask, the last operand: of the whole warp where all name one mask."""
_KEEPS: Final = frozenset(
    (  # noqa: SIM905  (a list of them takes fifty lines)
        "abs add addc and bfe bfi bfind brev clz clusterlaunchcontrol cnot copysign cos cvt cvta div ex2 fma fns "
        "isspacep ld ldu lg2 lop3 "
        "mad mad24 madc max mbarrier min mov mul mul24 neg not or popc prmt rcp rem rsqrt sad selp set setp shf shl "
        "shr sin slct sqrt sub subc tanh testp xor mapa getctarank dp4a dp2a"
    ).split()
)
"""Opcodes that make the same of the same; all others are held to give each lane something of its own."""


_FIRST_BEYOND: Final = {"lt": 0, "ge": 0, "lo": 0, "hs": 0, "gt": 1, "le": 1, "hi": 1, "ls": 1}
"""By how much the first number for which a comparison comes out otherwise lies beyond what is compared with."""
_MOST_MORE: Final = 1 << 16
_MOST_STEPS: Final = 1 << 22
"""Blocks looked at for branches whose ways meet at the end alone, in all."""


class Lanes:
    """`apart`: the blocks that only some lanes of a warp can come to, while others wait where they meet again.
    `parting`: the blocks whose branch parts them.

    `to_the_end`: also those whose other lanes meet them only at the function's end.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow, self._to_the_end = flow, False
        self._sources = [self._scoped(number, own.sources) for number, own in enumerate(flow.code)]
        self._targets = [self._scoped(number, own.targets) for number, own in enumerate(flow.code)]
        self._users = _numbers_of(self._sources)
        self._set_by = _numbers_of(self._targets)
        self._threads = self._thread_numbers() if flow.one_dimensional() else {}
        self._parameters = frozenset(re.findall(r"[\w$%]+", flow.module.bare(flow.function.head)))
        self._differing = {name for name in self._users if name in _DIFFER or name.startswith(_BY_LANE)}
        self._steps = 0
        self._ends = frozenset(block for block in range(len(flow.blocks)) if self._leaves(block))
        self.apart: frozenset[int] = frozenset()
        self.parting: frozenset[int] = frozenset()
        self._spread(range(len(flow.code)))

    @classmethod
    def both(cls, flow: Flow) -> tuple[Lanes, Lanes]:
        """Without and with `to_the_end`: what registers hold where no branch parts lanes is found once."""
        own = cls(flow)
        other = copy(own)
        other._to_the_end, other._differing = True, own._differing.copy()
        own._part()
        other._part()
        return own, other

    def _part(self) -> None:
        """Finds the blocks to which branches part lanes, and the registers that differ because of it."""
        flow = self._flow
        branches = [b for b, block in enumerate(flow.blocks) if len(block.after) > 1]
        done: set[int] = set()
        while new := [b for b in branches if b not in done and self._parts(b)]:
            done |= set(new)
            regions = [self._region(branch) for branch in new]
            self.parting |= {branch for branch, region in zip(new, regions, strict=True) if region}
            grown = set().union(*regions) - self.apart
            self.apart |= grown
            self._spread(n for b in grown for n in range(flow.blocks[b].start, flow.blocks[b].stop))

    def _thread_numbers(self) -> dict[str, int]:
        """Registers that hold the number of the thread, or of the thread in a group of whole warps, and how much more
        than it: `(tid & 127) + 31`. None but those that are set once."""
        found: dict[str, int] = {}
        for register, numbers in self._set_by.items():  # in the order of the text, as they are made of each other
            more = self._more(numbers[0], found) if len(numbers) == 1 else None
            if more is not None:
                found[register] = more
        return found

    def _more(self, number: int, found: dict[str, int]) -> int | None:
        """How much more than a thread's number an instruction gives; None for another value."""
        own = self._flow.code[number]
        if own.predicate or own.name not in ("mov", "add", "and"):
            return None
        parts = self._operands(number)
        before = 0 if parts[-1] == "%tid.x" else found.get(parts[1]) if len(parts) > 1 else None
        if before is None:
            return None
        if own.name == "mov":
            return before
        value = integer(parts[2]) if len(parts) == 3 else None
        if value is None or not 0 <= value < _MOST_MORE:
            return None
        if own.opcode in ("add.s32", "add.u32"):
            return before + value
        return 0 if own.opcode == "and.b32" and value & 31 == 31 and before == 0 else None

    def _spread(self, begin: Iterable[int]) -> None:
        """Finds all registers that differ, from these instructions on."""
        pending = [*begin][::-1]  # in the order of the text, as they are made of each other
        block_of = self._flow.block_of
        while pending:
            number = pending.pop()
            new = [name for name in self._targets[number] if name not in self._differing]
            if not new or (block_of[number] not in self.apart and not self._differs(number, self._flow.code[number])):
                continue
            self._differing.update(new)
            for name in new:
                pending += self._users.get(name, ())

    def _differs(self, number: int, own: Instruction) -> bool:
        """Whether lanes that come to this instruction together get different results."""
        name = own.name
        if own.predicate and not self.is_same(self._flow.scoped(number, own.predicate)):
            return True  # lanes keep what they had
        if name in _SAME:
            return False
        if name in _AMONG:
            return not self.is_same(self._operands(number)[-1])
        if name == "shfl":  # shfl.sync.idx d, a, lane, clamp, mask
            parts = self._operands(number)
            return not (".idx" in own.opcode and len(parts) > 3 and self.is_same(parts[2]) and self._is_whole(parts[3]))
        if name not in _KEEPS or own.opcode.startswith("ld.local"):
            return True
        sources = self._sources[number]
        if own.opcode.startswith("ld.param"):  # by its name: else of what a call gave back
            named = [source for source in sources if source[:1] != "%"]
            if named:
                return self._parameters.isdisjoint(named)
        return not self._differing.isdisjoint(sources) and not self._drops_the_lane(number, own)

    def _operands(self, number: int) -> list[str]:
        return self._scoped(number, [part.strip() for part in self._flow.code[number].operands.split(",")])

    def _scoped(self, number: int, names: Iterable[str]) -> list[str]:
        return [self._flow.scoped(number, name) for name in names]

    def _drops_the_lane(self, number: int, own: Instruction) -> bool:
        """Whether it makes of the thread's number something that a warp has once."""
        if not self._threads or own.name not in ("shr", "bfe", "and", "setp"):
            return False
        parts = self._operands(number)
        if len(parts) < 3 or parts[1] not in self._threads:
            return False
        value, more = integer(parts[2]), self._threads[parts[1]]
        if value is None or value < 0:
            return False
        if own.name in ("shr", "bfe"):
            return value >= 5 and more % 32 == 0
        if own.name == "and":
            return value & 31 == 0 and more % 32 == 0
        if own.name == "setp" and all(self.is_same(part.lstrip("!")) for part in parts[3:]):
            asked = own.opcode.partition(".")[2].partition(".")[0]
            return asked in _FIRST_BEYOND and (value - more + _FIRST_BEYOND[asked]) % 32 == 0
        return False

    def _is_whole(self, clamp: str) -> bool:
        """Whether a shuffle's fourth operand makes one segment of the warp: else each of its segments has a lane 0."""
        made = {*self._set_by.get(clamp, ())}
        value = integer(self._flow.code[made.pop()].operands.rpartition(",")[2].strip() if len(made) == 1 else clamp)
        return value is not None and value >> 8 & 31 == 0

    def is_same(self, operand: str) -> bool:
        """Whether an operand, or a predicate ("" for none), holds the same in all lanes that come there."""
        name = operand.partition(".")[0]
        return name not in self._differing and name not in _DIFFER and not name.startswith(_BY_LANE)

    def _parts(self, branch: int) -> bool:
        block = self._flow.blocks[branch]
        number = block.stop - 1
        last = self._flow.code[number]
        asked = last.operands.partition(",")[0].strip() if last.name == "brx" else last.predicate
        return bool(asked) and not self.is_same(self._flow.scoped(number, asked))

    def _region(self, branch: int) -> set[int]:
        """Blocks between a branch and where its ways meet; none when they meet nowhere but at the function's end."""
        from warplens.instrument.flow import reach

        flow = self._flow
        join = flow.joins[branch]
        if not self._to_the_end and (join in (-1, len(flow.blocks)) or self._only_ends(join)):
            return self._region_of_those_who_stay(branch)
        return reach(flow, flow.blocks[branch].after, join)

    def _region_of_those_who_stay(self, branch: int) -> set[int]:
        """The same where some leave on the way, as `if (lane < 16) { if (done) return; ... }`: the others meet in front
        of the end. None where one way alone stays, for those on the other are gone, or where it takes too long."""
        from warplens.instrument.flow import reach

        flow = self._flow
        ways = []
        for begin in flow.blocks[branch].after:
            self._steps += len(flow.blocks)
            if self._steps > _MOST_STEPS:
                return set()
            ways.append(reach(flow, [begin], branch))
        met = {block for number, way in enumerate(ways) for other in ways[:number] for block in way & other}
        before = set().union(*ways) - met
        meet = {block for block in met if not self._leaves(block) and not before.isdisjoint(flow.blocks[block].before)}
        meet |= {block for block in flow.blocks[branch].after if block in met and not self._leaves(block)}
        return reach(flow, flow.blocks[branch].after, meet.pop()) - self._ends if len(meet) == 1 else set()

    def _leaves(self, block: int) -> bool:
        """Whether nothing but the end is there: of the function, or of the kernel by a trap."""
        own = self._flow.blocks[block]
        return not own.after and (self._only_ends(block) or self._flow.code[own.stop - 1].name == "trap")

    def _only_ends(self, block: int) -> bool:
        own = self._flow.blocks[block]
        return not own.after and own.stop - own.start == 1


def _numbers_of(listed: list[list[str]]) -> dict[str, list[int]]:
    """Where each name stands in the lists."""
    out: dict[str, list[int]] = {}
    for number, names in enumerate(listed):
        for name in names:
            out.setdefault(name, []).append(number)
    return out
