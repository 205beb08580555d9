"""Puts the marks of a plan into the text of a kernel.

In: a `Flow` and its `Plan`. Out: pieces to splice into the module's text. Every piece stands between two statements;
none of the kernel's own text is changed, but that a predicated `ret` or `exit` gets a branch round what stands in front
of it. Marks that no branch and no label parts ask for space once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from warplens import layout
from warplens.errors import PtxError
from warplens.instrument.flow import Block, Flow, Instruction
from warplens.instrument.read import LINE, STATEMENT, Module
from warplens.instrument.recorder import END_CODE, MOST_MARKS, Recorder
from warplens.instrument.scopes import DECLARES, Scopes
from warplens.instrument.sites import Mark, Plan
from warplens.layout import Verb

Piece = tuple[int, int, str]
_NO_MARK: Final = 1  # a line that is the code of none
_LEAVES: Final = frozenset({"ret", "exit"})
_JUMPS: Final = frozenset({"bra", "brx", "ret", "exit", "trap"})
_LOADS: Final = ("ld.global", "cp.async", "ld.relaxed", "ld.acquire", "ld.volatile.global", "ld.weak")


def marks_file(module: Module) -> int:
    """The number by which line information names what marks are made of; 0 for a module that has no lines."""
    return max(module.files, default=-1) + 1 if module.files else 0


class Inserter:
    """Makes the pieces of one kernel; `pieces` has them."""

    def __init__(self, flow: Flow, plan: Plan, recorder: Recorder) -> None:
        self._flow, self._plan, self._recorder = flow, plan, recorder
        self._statements = flow.module.statements
        self._number = 0
        self._rare: list[str] = []
        self._scopes = Scopes(flow)
        self.pieces: list[Piece] = []
        self._places = [
            (start, flow.module.source(index))
            for index, (kind, start, _) in enumerate(self._statements[: flow.function.last])
            if index >= flow.function.first and kind == LINE and flow.module.text.startswith(".loc", start)
        ]
        self._file = marks_file(flow.module)

    def insert(self) -> list[Piece]:
        """Raises PtxError where a mark cannot be placed."""
        body = self._statements[self._flow.function.first - 1].end
        self.pieces.append((body, body, _lines(self._recorder.declarations())))
        begin = self._begin_of_code()
        code = 1 << layout.CODE_SITE_SHIFT | Verb.PHASE << layout.CODE_VERB_SHIFT
        self._add(begin, self._recorder.begin(), code)
        ask, opened = self._places_to_open()
        self._add(ask, self._recorder.ask())
        self._add(opened, self._recorder.open(code))
        runs = [*self._runs()]
        blocks = [self._flow.block_of[run[0].index] for run in runs]
        for run, own, behind in zip(runs, blocks, [*blocks[1:], None], strict=False):
            self._run(run, is_last=own != behind)
        for number, own in enumerate(self._flow.code):
            if own.name in _LEAVES and self._flow.block_of[number] in self._flow.reached:
                self._leave(number, own)
        self._finish()
        return self.pieces

    def _begin_of_code(self) -> int:
        """In front of the first label or instruction, behind declarations."""
        for index in range(self._flow.function.first, self._flow.function.last):
            kind, start, _ = self._statements[index]
            if kind in (STATEMENT, LINE) and (kind == LINE or self._flow.module.source(index).startswith(DECLARES)):
                continue
            return start
        raise PtxError(f"{self._flow.function.name} has no instructions")

    def _places_to_open(self) -> tuple[int, int]:
        """Where to ask for memory and where to use it, both in the first block and in front of its first mark.

        What was asked for takes as long as a load that misses all caches: it is asked for behind the last load that
        the block begins with, so that both are waited for together.
        """
        flow = self._flow
        block = flow.blocks[0]
        first = min((m.index + m.behind for m in self._plan.marks if flow.block_of[m.index] == 0), default=block.stop)
        last = next((n for n in range(block.start, min(first, block.stop)) if flow.code[n].name in _JUMPS), first)
        opened = min(first, last, block.stop)
        loads = [n for n in range(block.start, opened) if flow.code[n].opcode.startswith(_LOADS)]
        ask = loads[-1] + 1 if loads else opened
        return self._in_block(block, min(ask, opened)), self._in_block(block, opened)

    def _in_block(self, block: Block, index: int) -> int:
        """The place in the text in front of an instruction of the block, or behind its last."""
        if index < block.stop:
            return self._scopes.outside(self._flow.code[index].statement, behind=False)
        return self._scopes.outside(self._flow.code[index - 1].statement, behind=True)

    def _runs(self) -> Iterator[list[Mark]]:
        """Marks that ask for space together: in one block, with no guard."""
        run: list[Mark] = []
        for mark in self._plan.marks:
            if run and not self._goes_with(run, mark):
                yield run
                run = []
            run.append(mark)
        if run:
            yield run

    def _goes_with(self, run: list[Mark], mark: Mark) -> bool:
        before = run[-1]
        flow = self._flow
        if before.guard or mark.guard or len(run) == MOST_MARKS:
            return False
        jumps = before.behind and flow.code[before.index].name in _JUMPS
        return not jumps and flow.block_of[before.index] == flow.block_of[mark.index]

    def _run(self, run: list[Mark], *, is_last: bool) -> None:
        """`is_last`: of its block. What stands behind it there must find the place where it is."""
        recorder = self._recorder
        if recorder.straight is not None:
            self._run_straight(run)
            return
        held: int | None = None  # the slot of a record that is not stored yet
        for slot, mark in enumerate(run):
            text = recorder.settle() if mark.settles else []
            text += recorder.pin(mark.pins) if mark.pins else []
            code = mark.site << layout.CODE_SITE_SHIFT | mark.verb << layout.CODE_VERB_SHIFT
            guard = "%wl_p5" if mark.guard else ""
            if slot == 0:
                together = not self._flow.is_in_part(mark.index, mark.behind)
                text += recorder.check(self._next(), len(run), together)
            else:
                text += recorder.clock(slot)
            text += recorder.any_lane(mark.guard, mark.negated) if mark.guard else []
            text += recorder.record("%wl_now" if slot == 0 else "", code, slot)
            text += recorder.put(held) if held is not None else []
            held = slot if self._can_wait(mark) and (is_last or mark is not run[-1]) else None
            text += recorder.put(slot, guard) if held is None else []
            if mark is run[-1] and held is None:
                text += recorder.advance(len(run), guard)
            self._add(self._scopes.outside(self._flow.code[mark.index].statement, mark.behind), text, code)
        if held is not None:
            at = self._end_of_block(self._flow.blocks[self._flow.block_of[run[-1].index]])
            self._add(at, [*recorder.put(held), *recorder.advance(len(run))])

    def _can_wait(self, mark: Mark) -> bool:
        """Whether a mark's record is stored behind the next clock, where the kernel is about to wait anyway."""
        if mark.verb != Verb.PHASE or mark.guard:
            return False
        block = self._flow.blocks[self._flow.block_of[mark.index]]
        last = self._flow.code[block.stop - 1]
        behind = mark.index + mark.behind
        return (
            behind < block.stop
            and self._scopes.depth(last.statement) == 0
            and not (last.predicate and last.name in _LEAVES)
        )

    def _end_of_block(self, block: Block) -> int:
        """The place in front of the jump that ends a block, or behind its last instruction."""
        last = self._flow.code[block.stop - 1]
        return self._in_block(block, block.stop - 1 if last.name in _JUMPS else block.stop)

    def _run_straight(self, run: list[Mark]) -> None:
        recorder = self._recorder
        for mark in run:
            code = mark.site << layout.CODE_SITE_SHIFT | mark.verb << layout.CODE_VERB_SHIFT
            text = recorder.settle() if mark.settles else []
            text += recorder.pin(mark.pins) if mark.pins else []
            slot = self._plan.marks.index(mark) + 1
            text += [*recorder.clock(slot), *recorder.record("", code, slot), *recorder.put(slot)]
            self._add(self._scopes.outside(self._flow.code[mark.index].statement, mark.behind), text, code)

    def _next(self) -> int:
        self._number += 1
        self._rare += self._recorder.next(self._number)
        return self._number

    def _leave(self, number: int, own: Instruction) -> None:
        """The warp's end in front of a ret or exit; round both goes who does not take it."""
        start = self._statements[own.statement].start
        together = not self._flow.is_in_part(number, False) and not own.predicate
        text = self._recorder.end(self._next(), together)
        if own.predicate:
            skip = f"$wl_stay_{self._number}"
            sign = "" if own.negated else "!"
            self._add(start, [f"@{sign}{own.predicate} bra {skip};", *text], END_CODE)
            self._add(self._statements[own.statement].end, [f"{skip}:"])
        else:
            self._add(start, text, END_CODE)

    def _finish(self) -> None:
        """What is rare goes behind the last instruction."""
        last = self._flow.code[-1]
        end = self._statements[last.statement].end
        if self._scopes.depth(last.statement):
            end = self._statements[self._flow.function.last].start
        if last.name not in _JUMPS or last.predicate:  # falls off the end, which is a ret
            self._add(end, [*self._recorder.end(self._next(), False), "ret;"], END_CODE)
        self._add(end, self._rare)

    def _add(self, at: int, lines: list[str], code: int = _NO_MARK) -> None:
        """Lines at a place in the text, named in the line information as those of the mark with this code."""
        before = bisect_left(self._places, (at, "")) - 1
        if self._file and before >= 0 and lines:
            lines = [f".loc {self._file} {code} 0", *lines, self._places[before][1]]
        self.pieces.append((at, at, _lines(lines)))


def _lines(lines: list[str]) -> str:
    return "".join(f"\n\t{line}" for line in lines) + "\n\t" if lines else ""
