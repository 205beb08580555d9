"""Puts the marks of a plan into the text of a kernel.

In: a `Flow` and its `Plan`. Out: pieces to splice into the module's text. Every piece stands between two statements;
none of the kernel's own text is changed, but that a predicated `ret` or `exit` gets a branch round what stands in front
of it, and that arithmetic goes in front of a mark where the plan says so. Marks that no branch and no label parts ask
for space once.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from warplens import layout
from warplens.errors import PtxError
from warplens.instrument.flow import Block, Flow, Loop, reach
from warplens.instrument.marks_lines import Piece, as_lines, marks_file, own_place, own_place_from
from warplens.instrument.places import any_lane
from warplens.instrument.read import LINE, STATEMENT, UNKNOWN
from warplens.instrument.recorder import END_CODE, MOST_A_TURN, MOST_MARKS, Recorder
from warplens.instrument.scopes import DECLARES, Scopes
from warplens.instrument.sites import Mark, Plan
from warplens.instrument.staged import StagedRecorder
from warplens.instrument.straight import StraightRecorder, can_be_held
from warplens.instrument.waits import JUMPS, LEAVES, is_idle, may_hang
from warplens.layout import Verb

_NO_MARK: Final = 1  # a line that is the code of none
_NUMBER: Final = re.compile(r",\s*-?\d\w*\Z")
_MOST_LATE: Final = 256
"""Instructions of a loop whose records are kept up to its end. Matmuls with 82 and 75 gained 0.6 and 1.4 points by it;
attention with 557 lost 3 with four marks and 5 with seven (benchmarks/results/triton_marks_late_steps.json, and
triton_proton_late.json for four marks that are not kept)."""
_LOADS: Final = ("ld.global", "cp.async", "ld.relaxed", "ld.acquire", "ld.volatile.global", "ld.weak")


@dataclass(frozen=True)
class _Turn:
    """A loop that passes so many `marks` a turn, at most.

    `latch`: the block that ends with the jump to its begin, at `label`; `outside`: the blocks that lead into it.
    `records`: the number of the register of each mark, by its id. `asks_at`: id of the mark that asks for the next
    turn's space, 0 for none; `at_end`: marks from there on. `is_even`: each turn passes each mark, and they are even in
    number: then records go out by twos, which one store of 8 bytes can write where a turn begins at such a place.
    `is_late`: all records of one of its blocks are stored behind its last mark.
    """

    loop: Loop
    marks: int
    latch: int
    outside: list[int]
    label: str
    records: dict[int, int]
    asks_at: int
    at_end: int
    is_even: bool
    is_late: bool


def _behind(records: list[tuple[int, int]], advanced: int) -> list[tuple[int, int]]:
    """Records, each with how many words it stands behind the place, which is so far ahead of where they count from."""
    return [(own, slot - advanced) for own, slot in records]


class Inserter:
    """Makes the pieces of one kernel; `pieces` has them."""

    def __init__(self, flow: Flow, plan: Plan, recorder: Recorder) -> None:
        self._flow, self._plan, self._recorder = flow, plan, recorder
        self._statements = flow.module.statements
        self._number = 0
        self._rare: list[str] = []
        self._asked: dict[int, int] = {}  # the question for space of a ret within braces
        self._scopes = Scopes(flow)
        self.pieces: list[Piece] = []
        self._said = [(number, *own) for number, own in flow.said.items()]  # of each `.loc`
        self._places = [self._statements[number].start for number, _, _ in self._said]
        self._file = marks_file(flow.module)

    def insert(self) -> list[Piece]:
        """Raises PtxError where a mark cannot be placed."""
        self._move()
        body = self._statements[self._flow.function.first - 1].end
        self.pieces.append((body, body, as_lines(self._recorder.declarations())))
        begin = self._begin_of_code()
        code = 1 << layout.CODE_SITE_SHIFT | Verb.PHASE << layout.CODE_VERB_SHIFT
        self._add(begin, self._recorder.begin(), code)
        ask, opened = self._places_to_open()
        self._add(ask, self._recorder.ask())
        self._add(opened, self._recorder.open(code))
        if isinstance(self._recorder, StraightRecorder):
            self._rare += self._recorder.lost()
        leaves = [
            n
            for n, own in enumerate(self._flow.code)
            if own.name in LEAVES and self._flow.block_of[n] in self._flow.reached
        ]
        for number in leaves:
            self._stay(number)
        asks_by_turns = self._recorder.in_registers and not isinstance(self._recorder, StraightRecorder)
        turns = self._turns() if asks_by_turns else []
        self._turn_of = {mark: turn for turn in turns for mark in turn.records}
        runs = [*self._runs()]
        blocks = [self._flow.block_of[run[0].index] for run in runs]
        for run, own, behind in zip(runs, blocks, [*blocks[1:], None], strict=False):
            self._run(run, is_last=own != behind)
        for turn in turns:
            self._ask_each_turn(turn)
        for turn in turns:  # behind the jump of a loop that this one follows
            self._ask_outside(turn)
        for number in leaves:
            self._leave(number)
        self._finish()
        return self.pieces

    def _move(self) -> None:
        """Takes instructions from where they stand to in front of a mark, ahead of all else that comes there."""
        for number, mark in self._plan.moves.items():
            statement = self._flow.code[number].statement
            _, start, end = self._statements[statement]
            at = self._scopes.outside(self._flow.code[mark.index].statement, mark.behind)
            own = self._flow.module.source(statement)
            lines = [own]
            if not self._places:
                lines = [own_place_from(self._flow.module, start), *lines, own_place(self._flow.module)]
            elif self._place(start) != self._place(at):
                lines = [*self._chain(start), *lines, self._place(at)]
            # Its lines stay, empty: where what follows it stands is told by the place of the mark before.
            self.pieces += [(at, at, as_lines(lines)), (start, end, "\n" * own.count("\n"))]

    def _begin_of_code(self) -> int:
        """In front of the first label or instruction, behind declarations."""
        for index in range(self._flow.function.first, self._flow.function.last):
            kind, start, _ = self._statements[index]
            if kind in (LINE, UNKNOWN) or (kind == STATEMENT and self._flow.module.source(index).startswith(DECLARES)):
                continue
            return start
        raise PtxError(f"{self._flow.function.name} has no instructions")

    def _places_to_open(self) -> tuple[int, int]:
        """Where to ask for memory and where to use it, both in the first block and in front of its first mark.

        What was asked for takes as long as a load that misses all caches: it is asked for in front of the last load
        that the block begins with, so that both are waited for together. Behind it ptxas would put what the kernel does
        with what it has loaded in front of the question. A first block that a jump leads back to comes behind both.

        The record of a straight kernel's first mark can wait for it with that of the begin. All comes ahead of what may
        hang: the begin is told then, and what the kernel waits for anyway hides the wait for memory.
        """
        flow, recorder = self._flow, self._recorder
        if flow.blocks[0].before:
            return self._begin_of_code(), self._begin_of_code()
        block = flow.blocks[0]
        marks = [mark for mark in self._plan.marks if flow.block_of[mark.index] == 0]
        places = [self._scopes.outside(flow.code[own.index].statement, own.behind) for own in marks]
        behind = [own.index + own.behind for own in marks]
        opened = self._opened(block, min(behind, default=block.stop))
        if isinstance(recorder, StraightRecorder) and marks and 0 in recorder.waiting and can_be_held(marks[0]):
            later = self._opened(block, min(behind[1:], default=block.stop))
            if min([self._open_at(block, later), *places[1:]]) > places[0]:
                opened, places, self._recorder = later, places[1:], replace(recorder, holds_first=True)
        loads = [n for n in range(block.start, opened) if flow.code[n].opcode.startswith(_LOADS)]
        ask = loads[-1] if loads else opened
        at = min([self._open_at(block, opened), *places])  # a mark behind an instruction comes ahead of the next one
        return min(self._open_at(block, ask), at), at

    def _opened(self, block: Block, index: int) -> int:
        """In front of which instruction of the first block to use memory that something in front of `index` needs."""
        code = self._flow.code
        leaves = (n for n in range(block.start, block.stop) if code[n].name in JUMPS or may_hang(code[n]))
        opened = min(index, next(leaves, block.stop))
        leads_to_loop = any(loop.header in block.after for loop in self._flow.loops)
        return self._ahead_of_numbers(block, opened) if leads_to_loop else opened

    def _ahead_of_numbers(self, block: Block, index: int) -> int:
        """In front of the numbers that a loop behind the block begins with: ptxas (13.5) does not unroll a loop that
        something stands between (a reduction of Inductor's had one load under way in place of five)."""
        out = index
        for number in range(index - 1, block.start - 1, -1):
            own = self._flow.code[number]
            if not is_idle(own):
                break
            if own.name == "mov" and _NUMBER.search(own.operands):
                out = number
        return out

    def _open_at(self, block: Block, index: int) -> int:
        """The last place in the first block in front of an instruction, or behind the one before it, that is not among
        others within braces."""
        for number in range(min(index, block.stop - 1), block.start - 1, -1):
            statement, behind = self._flow.code[number].statement, number < index == block.stop
            for side in (True, False) if behind else (False,):
                if self._scopes.is_outside(statement, side):
                    return self._scopes.outside(statement, side)
        return self._begin_of_code()

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
        if before.guard or mark.guard or len(run) == MOST_MARKS or flow.is_behind_jump(mark.index, mark.behind):
            return False
        return flow.block_of[before.index] == flow.block_of[mark.index]

    def _run(self, run: list[Mark], *, is_last: bool) -> None:
        """`is_last`: of its block. What stands behind it there must find the place where it is."""
        recorder = self._recorder
        if isinstance(recorder, StraightRecorder):
            self._run_straight(recorder, run)
            return
        flow = self._flow
        block = flow.block_of[run[0].index]
        turn = self._turn_of.get(id(run[0]))
        in_turn = turn.records[id(run[0])] if turn is not None else 0  # marks of the turn in front of the run
        held: list[tuple[int, int]] = []  # records that are not stored yet: register and place of each
        is_late = turn is not None and turn.is_late
        to_make: list[str] = []  # what makes records of their clocks
        advanced = 0  # what the place is ahead of the run's begin
        for slot, mark in enumerate(run):
            together = not flow.is_in_part(mark.index, mark.behind)
            text = recorder.settle(together) if mark.settles else []
            text += recorder.pin(mark.pins) if mark.pins else []
            code = mark.site << layout.CODE_SITE_SHIFT | mark.verb << layout.CODE_VERB_SHIFT
            guard = "%wl_p5" if mark.guard else ""
            own = slot % 2 if turn is None else turn.records[id(mark)]
            asks = slot == 0 and turn is None
            early = turn is not None and turn.asks_at == id(mark)
            if asks:
                text += recorder.check(self._next(together), len(run), together)
            elif early and turn is not None:
                text += recorder.ask_turn(turn.marks + turn.at_end, together)
                if recorder.advances_early and not mark.guard:  # who writes the place waits for the turn's last store
                    text += recorder.advance(len(run))
                    advanced = len(run)
            else:
                text += recorder.clock(own)
            text += any_lane(mark.guard, mark.negated) if mark.guard else []
            made = recorder.record("%wl_now" if asks or early else "", code, own)
            is_second = turn is not None and turn.is_even and (in_turn + slot) % 2 == 1
            if held and not is_late and not (is_second and len(held) == 1):
                text += [*to_make, *recorder.put(_behind(held, advanced))]
                held, to_make = [], []
            held.append((own, slot))
            if asks or early or turn is None:
                text += made
            else:  # behind the wait that the kernel comes to next, or the copies that it issues
                to_make += made
            begins_pair = turn is not None and turn.is_even and not is_second
            waits = self._can_wait(mark, in_front_of_wait=begins_pair, is_late=is_late)
            if not waits or (mark is run[-1] and not (is_last and (turn is None or block == turn.latch))):
                text += [*to_make, *self._put(held, advanced, turn, in_turn, guard)]
                held, to_make = [], []
            if mark is run[-1] and not held and not advanced:
                text += recorder.advance(len(run), guard)
            self._add(self._scopes.outside(flow.code[mark.index].statement, mark.behind), text, code)
        if held:
            text = [*to_make, *self._put(held, advanced, turn, in_turn)]
            text += [] if advanced else recorder.advance(len(run))
            self._add(self._end_of_block(flow.blocks[block]), text)

    def _put(
        self, held: list[tuple[int, int]], advanced: int, turn: _Turn | None, in_turn: int, guard: str = ""
    ) -> list[str]:
        """Stores records: two at once of a turn that is even, where they are within 8 bytes."""
        out: list[str] = []
        while held:
            is_pair = turn is not None and turn.is_even and (in_turn + held[0][1]) % 2 == 0
            together, held = held[: 1 + is_pair], held[1 + is_pair :]
            out += self._recorder.put(_behind(together, advanced), guard)
        return out

    def _can_wait(self, mark: Mark, *, in_front_of_wait: bool, is_late: bool) -> bool:
        """Whether a mark's record is stored behind the next clock, where the kernel is about to wait anyway.

        `in_front_of_wait`: also behind a wait of the kernel's, where that cannot hang. `is_late`: wherever there is
        text behind it.
        """
        if is_late and not mark.guard:
            last = self._flow.code[self._flow.blocks[self._flow.block_of[mark.index]].stop - 1]
            return self._scopes.depth(last.statement) == 0 and not (last.predicate and last.name in LEAVES)
        if mark.guard or not self._recorder.in_registers or (mark.verb != Verb.PHASE and not in_front_of_wait):
            return False
        block = self._flow.blocks[self._flow.block_of[mark.index]]
        last = self._flow.code[block.stop - 1]
        behind = mark.index + mark.behind
        stop = min([block.stop, *(own.index + own.behind for own in self._plan.marks if own.place > mark.place)])
        return (
            behind < block.stop
            and not any(map(may_hang, self._flow.code[behind:stop]))
            and self._scopes.depth(last.statement) == 0
            and not (last.predicate and last.name in LEAVES)
        )

    def _end_of_block(self, block: Block) -> int:
        """The place in front of the jump that ends a block, or behind its last instruction."""
        last = self._flow.code[block.stop - 1]
        return self._in_block(block, block.stop - 1 if last.name in JUMPS else block.stop)

    def _run_straight(self, recorder: StraightRecorder, run: list[Mark]) -> None:
        first = next(number for number, mark in enumerate(self._plan.marks, 1) if mark is run[0])  # others may equal it
        for slot, mark in enumerate(run, first):
            code = mark.site << layout.CODE_SITE_SHIFT | mark.verb << layout.CODE_VERB_SHIFT
            text = recorder.settle(not self._flow.is_in_part(mark.index, mark.behind)) if mark.settles else []
            text += recorder.pin(mark.pins) if mark.pins else []
            own = recorder.register_of(slot)
            waits, behind = slot in recorder.waiting, slot - 1 in recorder.waiting
            text += [*recorder.clock(own), *recorder.record("", code, own)]
            if slot > 1 or not recorder.holds_first:
                text += recorder.group(slot, waits=waits, behind=behind)
            self._add(self._scopes.outside(self._flow.code[mark.index].statement, mark.behind), text, code)

    def _turns(self) -> list[_Turn]:
        """Loops whose marks ask for space once a turn, at its end.

        There ptxas puts what is rare behind the loop; in it, the jump over that costs more than all else that a mark
        does.
        """
        out = []
        done: set[int] = set()
        for loop in self._flow.loops:
            turn = self._turn(loop, [mark for mark in self._plan.marks if self._is_within(mark, loop)])
            if turn is not None and done.isdisjoint(loop.blocks):
                out.append(turn)
                done |= loop.blocks
        return out

    def _is_within(self, mark: Mark, loop: Loop) -> bool:
        """Whether a mark is the loop's: not where it stands behind a jump, and who does not jump leaves the loop."""
        block = self._flow.block_of[mark.index]
        behind_jump = self._flow.is_behind_jump(mark.index, mark.behind)
        return block in loop.blocks and (not behind_jump or block + 1 in loop.blocks)

    def _turn(self, loop: Loop, marks: list[Mark]) -> _Turn | None:
        """None for a loop without marks, and where not each of them is passed once a turn at most."""
        flow = self._flow
        before = flow.blocks[loop.header].before
        outside = [block for block in before if block not in loop.blocks and block in flow.reached]
        latches = [block for block in before if block in loop.blocks]
        if not 0 < len(marks) <= MOST_A_TURN or not outside or len(latches) != 1:
            return None
        last = flow.code[flow.blocks[latches[0]].stop - 1]
        label = flow.blocks[loop.header].label
        ends = [flow.code[flow.blocks[block].stop - 1] for block in (*outside, *latches)]
        if last.name != "bra" or label < 0 or any(self._scopes.depth(own.statement) for own in ends):
            return None
        if loop.header not in flow.blocks[latches[0]].after[:1] or (last.predicate and latches[0] + 1 == loop.header):
            return None
        behind_jump = {mark.index for mark in self._plan.marks if flow.is_behind_jump(mark.index, mark.behind)}
        if loop.header - 1 in outside and flow.blocks[loop.header].start - 1 in behind_jump:
            return None  # a mark between the question and the loop
        marked = {flow.block_of[mark.index] for mark in marks}
        if any(block in reach(flow, flow.blocks[block].after, loop.header) for block in marked - {loop.header}):
            return None
        name = flow.module.bare(label).rstrip().removesuffix(":").rstrip()
        at_end = [mark for mark in marks if flow.block_of[mark.index] == latches[0] and mark.index not in behind_jump]
        # Beside a matrix product the question costs nothing, but in front of another clock, which waits for it; else it
        # is put as early as can be.
        products = [mark for mark in at_end if self._begins_product(mark, latches[0])]
        last_ones = (mark for mark in reversed(products) if mark.place == products[0].place)
        best = next(last_ones, at_end[0] if at_end else None)
        asks_at = id(best) if best and len(marks) + len(at_end) <= layout.BLOCK_RECORD_SLOTS else 0
        records = {id(mark): number for number, mark in enumerate(marks)}
        blocks = [*(flow.block_of[mark.index] for mark in marks), latches[0]]
        always = all(itertools.starmap(flow.dominates, itertools.pairwise(blocks))) and not any(m.guard for m in marks)
        length = sum(flow.blocks[block].stop - flow.blocks[block].start for block in loop.blocks)
        late = self._recorder.stores_late and length <= _MOST_LATE
        is_even = (
            always
            and len(marks) % 2 == 0
            and behind_jump.isdisjoint(mark.index for mark in marks)
            and any(
                self._goes_with([one], other) and self._can_wait(one, in_front_of_wait=True, is_late=late)
                for one, other in zip(marks[::2], marks[1::2], strict=True)
            )
        )
        is_late = is_even and late
        return _Turn(loop, len(marks), latches[0], outside, name, records, asks_at, len(at_end), is_even, is_late)

    def _begins_product(self, mark: Mark, block: int) -> bool:
        """Whether wgmma instructions stand between a mark and the next, or the end of the block."""
        first = mark.index + mark.behind
        places = [other.index + other.behind for other in self._plan.marks if other.place > mark.place]
        stop = min([self._flow.blocks[block].stop, *places])
        return not mark.guard and any(own.opcode.startswith("wgmma.mma") for own in self._flow.code[first:stop])

    def _ask_outside(self, turn: _Turn) -> None:
        for number in turn.outside:
            block = self._flow.blocks[number]
            together = not self._flow.is_in_part(block.stop - 1, False)
            asked = self._recorder.check(self._next(together), turn.marks, together, even=turn.is_even)
            self._add(self._end_of_block(block), asked)

    def _ask_each_turn(self, turn: _Turn) -> None:
        flow, recorder = self._flow, self._recorder
        block = flow.blocks[turn.latch]
        last = flow.code[block.stop - 1]
        together = not flow.is_in_part(block.stop - 1, False)
        predicate = f"{'!' if last.negated else ''}{last.predicate}" if last.predicate else ""
        text = [] if turn.asks_at else recorder.ask_turn(turn.marks, together)
        text += recorder.turn(self._next(together, turn.label, turn.marks), together, predicate, turn.label)
        self._add(self._end_of_block(block), text)

    def _next(self, together: bool, back: str = "", records: int = 0) -> int:
        """The number of a question for space; `back`: the label behind it, where the kernel has one."""
        self._number += 1
        self._rare += self._recorder.next(self._number, together, back, records)
        return self._number

    def _stay(self, number: int) -> None:
        """The label behind a ret or exit for who does not take it, in front of all else that comes there; within braces
        also what is rare at the warp's end."""
        own = self._flow.code[number]
        rare: list[str] = []
        if self._scopes.depth(own.statement):  # labels within braces cannot be seen from where else it would stand
            rare, self._rare = self._rare, rare
            self._asked[number] = self._next(False)
            rare, self._rare = self._rare, rare
        text = [*rare, *([f"$wl_stay_{number}:"] if own.predicate else [])]
        if text:
            self._add(self._statements[own.statement].end, text)

    def _leave(self, number: int) -> None:
        """The warp's end in front of a ret or exit; round both goes who does not take it."""
        own = self._flow.code[number]
        together = not self._flow.is_in_part(number, False) and not own.predicate
        asked = self._asked.get(number)
        one_way = isinstance(self._recorder, StraightRecorder | StagedRecorder)
        together = together and not (one_way and asked)  # what is rare stands within no braces then
        text = self._recorder.end(asked or self._next(one_way and together), together)
        if own.predicate:
            sign = "" if own.negated else "!"
            text = [f"@{sign}{own.predicate} bra $wl_stay_{number};", *text]
        self._add(self._statements[own.statement].start, text, END_CODE)

    def _finish(self) -> None:
        """What is rare goes behind the last instruction."""
        last = self._flow.code[-1]
        end = self._statements[last.statement].end
        if self._scopes.depth(last.statement) or self._flow.ends_at_label:
            end = self._statements[self._flow.function.last].start
        if last.name not in JUMPS or last.predicate or self._flow.ends_at_label:  # falls off the end, which is a ret
            self._add(end, [*self._recorder.end(self._next(False), False), "ret;"], END_CODE)
        self._add(end, self._rare)

    def _add(self, at: int, lines: list[str], code: int = _NO_MARK) -> None:
        """Lines at a place in the text, named in the line information as those of the mark with this code."""
        if lines:
            behind = self._place(at) if self._places else own_place(self._flow.module)
            lines = [f".loc {self._file} {layout.MARKS_LINES + code} 0", *lines, behind]
        self.pieces.append((at, at, as_lines(lines)))

    def _chain(self, at: int) -> list[str]:
        """The `.loc` that holds at a place in the text, behind those that it says it was inlined at: ptxas wants each
        of them first."""
        number = self._at(at)
        out = [self._loc(number)]
        while (inlined_at := self._said[number][2]) is not None:
            number = next((n for n in range(number - 1, -1, -1) if self._said[n][1] == inlined_at), -1)
            if number < 0:
                break
            out.insert(0, self._loc(number))
        return out

    def _place(self, at: int) -> str:
        """The `.loc` that holds at a place in the text."""
        return self._loc(self._at(at))

    def _at(self, at: int) -> int:
        """Which of `_places` that is; what has no line has the first one."""
        return max(bisect_left(self._places, at) - 1, 0)

    def _loc(self, number: int) -> str:
        module, index = self._flow.module, self._said[number][0]
        own = module.source(index)
        return own if own == module.bare(index) else " ".join(module.bare(index).split())
