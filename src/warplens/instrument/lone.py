"""Blocks that one lane of a warp comes to alone: those behind `if (threadIdx.x == 0)` and `if (elect_one_sync())`.

In: a `Flow`. Out: the blocks to which control comes only by a branch that lets lane 0, or the lane that `elect.sync`
chose, go one way. A mark there tells what that lane does, while the others wait for it; if `elect.sync` chose another
lane than 0, which writes the records, it tells nothing. What cannot be told is no such block.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from warplens.instrument.read import integer

if TYPE_CHECKING:
    from warplens.instrument.flow import Flow
    from warplens.instrument.instruction import Instruction

_DEEPEST: Final = 12


class Lone:
    """`blocks`: those that one lane comes to alone."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._definitions: dict[str, list[Instruction]] = {}
        for own in flow.code:
            for target in own.targets:
                self._definitions.setdefault(target, []).append(own)
        found: set[int] = set()
        for number, block in enumerate(flow.blocks):
            last = flow.code[block.stop - 1]
            if last.name != "bra" or not last.predicate or len(block.after) != 2:
                continue
            for holds in (True, False):
                if self.says_one(last.predicate, holds):
                    taken = holds != last.negated
                    begin = block.after[0] if taken else block.after[1]
                    found |= self._behind(number, begin)
        self.blocks = frozenset(found)

    def _behind(self, branch: int, begin: int) -> set[int]:
        """Blocks from `begin` on that control reaches by this branch alone."""
        flow = self._flow
        if flow.blocks[begin].before != [branch]:
            return set()
        return {number for number in flow.reached if flow.dominates(begin, number)}

    def says_one(self, predicate: str, holds: bool, depth: int = 0) -> bool:
        """Whether the predicate, where it is `holds`, says that the lane is the one."""
        defined = self._definitions.get(predicate, [])
        if not defined or depth > _DEEPEST:
            return False
        return all(not own.predicate and self._is_one(own, predicate, holds, depth) for own in defined)

    def _is_one(self, own: Instruction, predicate: str, holds: bool, depth: int) -> bool:
        parts = [part.strip() for part in own.operands.split(",")]
        if own.name == "elect":
            return holds and parts[0].rpartition("|")[2].strip() == predicate
        if own.opcode == "not.pred":
            return self.says_one(parts[1], not holds, depth + 1)
        if own.opcode in ("and.pred", "or.pred"):
            return holds == (own.name == "and") and any(self.says_one(p, holds, depth + 1) for p in parts[1:])
        words = own.opcode.split(".")[1:]
        if own.name != "setp" or not words or len(parts) < 3 or "|" in parts[0]:
            return False
        if len(parts) == 4 and words[1:2] != (["and"] if holds else ["or"]):
            return False
        if len(parts) == 4 and not parts[3].startswith("!") and self.says_one(parts[3], holds, depth + 1):
            return True
        equal = holds if words[0] == "eq" else not holds
        return words[0] in ("eq", "ne") and self._compares(parts[1], integer(parts[2]), equal, depth + 1)

    def _compares(self, register: str, value: int | None, equal: bool, depth: int) -> bool:
        """Whether it says that the lane is the one, that a register has this value, or has not."""
        if value is None:
            return False
        if equal and (more := self._lane_less(register, depth)) is not None:
            return (value - more) % 32 == 0
        if equal != (value != 0):  # of `elect.sync`'s answer as a number: 0, and 1 where a lane was chosen
            return False
        return self._is_answer(register, depth)

    def _is_answer(self, register: str, depth: int) -> bool:
        """Whether a register is 0, and another number only where a predicate says that the lane is the one."""
        defined = self._definitions.get(register, [])
        tells = False
        for own in defined:
            parts = [part.strip() for part in own.operands.split(",")]
            values = [self._constant(part) for part in parts[1:3]]
            if own.name == "selp" and not own.predicate and values[0] and values[1] == 0:
                tells = self.says_one(parts[3], True, depth + 1)
            elif own.name == "mov" and values[0] and own.predicate and not own.negated:
                tells = self.says_one(own.predicate, True, depth + 1)
            elif own.name == "mov" and len(defined) == 1 and values == [None] and depth < _DEEPEST:
                return self._is_answer(parts[1], depth + 1)
            elif own.name != "mov" or values != [0]:
                return False
            if not tells and values != [0]:
                return False
        return tells

    def _constant(self, operand: str) -> int | None:
        """The number that an operand is, or a register that is set to one, once."""
        defined = self._definitions.get(operand, [])
        if len(defined) == 1 and defined[0].name == "mov" and not defined[0].predicate:
            return integer(defined[0].operands.partition(",")[2].strip())
        return integer(operand)

    def _lane_less(self, register: str, depth: int) -> int | None:
        """What a register holds more than %tid.x, modulo 32; None where it cannot be told."""
        if register == "%tid.x":
            return 0 if self._flow.one_dimensional() else None
        if register == "%laneid":
            return 0
        defined = self._definitions.get(register, [])
        if len(defined) != 1 or defined[0].predicate or depth > _DEEPEST:
            return None
        own = defined[0]
        parts = [part.strip() for part in own.operands.split(",")]
        before = self._lane_less(parts[1], depth + 1) if len(parts) > 1 and parts[1].startswith("%") else None
        if before is None or own.opcode.endswith(("16", "8")):
            return None
        value = integer(parts[2]) if len(parts) > 2 else None
        if own.name == "mov":
            return before
        if value is None or len(parts) != 3:
            return None
        if own.name == "and" and value & 31 == 31:
            return before
        if own.name in ("add", "sub") and re.fullmatch(r"(?:add|sub)\.[su]32", own.opcode):
            return (before + (value if own.name == "add" else -value)) % 32
        return None
