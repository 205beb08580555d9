"""The instructions of a function, its basic blocks, its loops, and where a warp's lanes can be apart.

In: a `Module` and one of its functions. Out: `Flow`. Lanes are held to be together at a place unless control comes
there by a branch whose predicate can differ between the lanes of a warp; what cannot be told differs. Blocks that only
lead to the function's end are no place where lanes come together: those that went there are gone.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from warplens.instrument.head import sizes
from warplens.instrument.instruction import Instruction, Place, squeezed
from warplens.instrument.read import CLOSE, LABEL, LINE, OPEN, STATEMENT, UNKNOWN, Function, Module, file_name, integer

if TYPE_CHECKING:
    from warplens.instrument.lanes import Lanes
    from warplens.instrument.lone import Lone

_INSTRUCTION: Final = re.compile(r"(?:@\s*+(!?)\s*+([\w$%]++)\s*+)?([a-z][\w.:]*+(?:\s+\.[\w.:]+)*)(.*)", re.DOTALL)
_LINE_COMMENT: Final = re.compile(r"[ \t]*+//([^\n]*+)")
_OUTER: Final = re.compile(r"@\[\s*([^@\[\]\s]+):([0-9]{1,9}):([0-9]{1,9})[\s\]]*\Z")
"""What LLVM writes behind a `.loc` of inlined code: `// a.py:2:1 @[ b.py:8:3 @[ c.py:9:5 ] ]`."""
_QUIET: Final = re.compile(r"(?<![\w$])(?:__assertfail|vprintf|malloc|free)\b")
"""Functions of the driver's, which read no thread's place."""
_DECLARATION: Final = re.compile(r"\s*\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)", re.DOTALL)
_LONGEST_CHAIN: Final = 32
"""Calls that were inlined in each other: of more, those that the kernel's own are nearer to."""
_DEEPEST_WRAPPER: Final = 4
_MOST_OF_A_WRAPPER: Final = 0.9
"""Of a kernel's instructions, for the line that they come from to say nothing."""
_MOST_DECLARED: Final = 4096
"""Registers of one name and a count within braces: more are damage."""
_ROWS: Final = re.compile(r"%n?tid(?:\.[yz]|(?![.\w]))")
_ENDS: Final = frozenset({"ret", "exit", "trap"})


@dataclass
class Block:
    """Instructions `start` to `stop - 1`, by their index in the flow. `label`: index of the statement of its first
    label; -1 for none."""

    start: int
    stop: int = 0
    label: int = -1
    after: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Loop:
    """A natural loop: `header` and all its `blocks`."""

    header: int
    blocks: frozenset[int]


def _declared(names: str) -> Iterator[str]:
    """The registers that a declaration names: `%r<3>` are %r0, %r1 and %r2."""
    for name in names.split(","):
        stem, _, count = name.strip(" \t\r\n;").partition("<")
        number = integer(count.rstrip("> \t")) if count else None
        yield from (f"{stem}{n}" for n in range(min(number, _MOST_DECLARED))) if number else (stem,)


class Flow:
    """Instructions and blocks of one function."""

    def __init__(self, module: Module, function: Function) -> None:
        self.module, self.function = module, function
        self.code: list[Instruction] = []
        self._labels: list[tuple[int, str, int, tuple[int, ...]]] = []  # instruction, name, statement, scope
        self._scopes: list[tuple[int, ...]] = []
        self._declared: dict[int, set[str]] = {}  # registers that braces have of their own
        self._bits: dict[str, int] = {}  # of registers outside of braces; `%r<` of all that `%r<9>` declares
        self._inlined: dict[Place, tuple[Place, ...]] = {}  # the chain of a place, where it was said last
        self._chains: list[tuple[Place, ...]] = []  # of each instruction, from the kernel into what was inlined
        self.said: dict[int, tuple[Place, Place | None]] = {}
        """What each `.loc` says (`Module.loc`), by its statement."""
        self.not_read: list[str] = []
        """A line for each directive that is not known, with what stands behind it on its line."""
        self._read()
        self._unwrap()
        self._targets = {number: self._targets_of(number) for number in range(len(self.code))}
        self.blocks = list(self._cut())
        self._connect()

    def _read(self) -> None:
        place: Place = (0, 0, 0)
        chain: tuple[Place, ...] = ()
        scope: list[int] = []
        module = self.module
        for index in range(self.function.first, self.function.last):
            kind, start, _ = module.statements[index]
            if kind == STATEMENT:
                if module.plain[start] == ".":
                    if declared := _DECLARATION.match(module.bare(index)):
                        self._declare(scope, *declared.groups())
                    continue
                found = _INSTRUCTION.match(module.bare(index).rstrip("; \t\r\n").lstrip())
                if found:
                    negated, predicate, opcode, operands = found.groups()
                    opcode = "".join(opcode.split())
                    name = opcode.partition(".")[0]
                    operands = squeezed(operands.strip())
                    own = Instruction(index, predicate or "", negated == "!", opcode, name, operands, place)
                    self.code.append(own)
                    self._scopes.append(tuple(scope))
                    self._chains.append(chain)
            elif kind == LINE:
                if (said := module.loc(index)) is not None:
                    self.said[index] = said
                chain = self._chain(index) or chain
                place = chain[0] if chain and chain[0][1] else place
            elif kind == UNKNOWN:
                words = f"the directive {' '.join(module.bare(index).split()):.60} is not known"
                self.not_read.append(f"line {module.line(start)}: {words}: nothing on its line is marked")
            elif kind == LABEL:
                name = module.bare(index).rstrip(": \t\r\n")
                self._labels.append((len(self.code), name, index, tuple(scope)))
            elif kind == OPEN:
                scope.append(index)
            elif kind == CLOSE and scope:
                scope.pop()

    def _declare(self, scope: list[int], kind: str, names: str) -> None:
        if scope:
            self._declared.setdefault(scope[-1], set()).update(_declared(names))
        elif bits := re.fullmatch(r"[busf](16|32|64|128)", kind):
            stems = (name.strip(" \t\r\n;").partition("<") for name in names.split(","))
            self._bits |= {f"{stem}{counted}": int(bits[1]) for stem, counted, _ in stems}

    def bits(self, number: int, name: str) -> int | None:
        """How wide a register is; None for one that cannot be named out of the braces round an instruction."""
        if self.scoped(number, name) != name:
            return None
        return self._bits.get(name) or self._bits.get(f"{name.rstrip('0123456789')}<")

    def _unwrap(self) -> None:
        """Where one line of the kernel's own source calls all that it does, as in templates whose kernel is a wrapper,
        instructions stand where that was written: else all of them would have this line's name."""
        for _ in range(_DEEPEST_WRAPPER):
            lines = Counter(own.place[:2] for own in self.code)
            line, most = lines.most_common(1)[0] if lines else ((0, 0), 0)
            inner = {}
            if most >= _MOST_OF_A_WRAPPER * len(self.code):
                for number, (own, chain) in enumerate(zip(self.code, self._chains, strict=True)):
                    within = chain[chain.index(own.place) + 1 :] if own.place in chain else ()
                    if own.place[:2] == line and within:
                        inner[number] = within[0]
            if len(inner) < most / 2:
                return
            for number, place in inner.items():
                self.code[number].place = place

    def scoped(self, number: int, name: str) -> str:
        """What tells a register of an instruction's from one of the same name that other braces declare."""
        for brace in reversed(self._scopes[number]) if self._declared else ():
            if name in self._declared.get(brace, ()):
                return f"{name}${brace}"
        return name

    def place(self, index: int, before: Place) -> Place:
        """Where a `.loc` stands in the kernel's own source: out of what was inlined, as far as the PTX tells."""
        chain = self._chain(index)
        return chain[0] if chain and chain[0][1] else before

    def _chain(self, index: int) -> tuple[Place, ...]:
        """The calls that a `.loc` was inlined through, the kernel's own first; empty for what is none."""
        if index not in self.said:
            return ()
        own, inlined_at = self.said[index]
        comment = _LINE_COMMENT.match(self.module.text, self.module.statements[index].end)
        if comment and "@[" in comment[1] and (outer := _OUTER.search(comment[1])) and outer[1] in self._numbered:
            return ((self._numbered[outer[1]], int(outer[2]), int(outer[3])),)
        if not inlined_at:
            return (own,)
        # A template that calls itself, for one member of a tuple less, is inlined at the place where it stands.
        self._inlined[own] = (*self._inlined.get(inlined_at, (inlined_at,)), own)[:_LONGEST_CHAIN]
        return self._inlined[own]

    @cached_property
    def _numbered(self) -> dict[str, int]:
        """Numbers of files by the last part of their paths."""
        return {file_name(path): number for number, path in reversed(self.module.files.items())}

    def _find(self, name: str, scope: tuple[int, ...]) -> int | None:
        """The label of this name, in the innermost scope that has one; its number."""
        while True:
            if (found := self._numbers.get((name, scope))) is not None:
                return found
            if not scope:
                return None
            scope = scope[:-1]

    @cached_property
    def _numbers(self) -> dict[tuple[str, tuple[int, ...]], int]:
        return {(name, scope): number for number, (_, name, _, scope) in enumerate(self._labels)}

    def _targets_of(self, number: int) -> list[int] | None:
        """Labels that a branch leads to; None for one whose targets are not known, empty for no branch."""
        own = self.code[number]
        if own.name == "bra":
            found = self._find(own.operands.strip(), self._scopes[number])
            return None if found is None else [found]
        if own.name != "brx":
            return []
        table = self._find(own.operands.rpartition(",")[2].strip(), self._scopes[number])
        if table is None:
            return None
        listed = self.module.bare(self._labels[table][2] + 1)
        if not listed.startswith(".branchtargets"):
            return None
        names = listed[len(".branchtargets") :].rstrip("; \t\r\n").split(",")
        labels = [self._find(name.strip(), self._scopes[number]) for name in names]
        return None if None in labels else [label for label in labels if label is not None]

    @cached_property
    def led_to(self) -> list[int]:
        """Where in the text the labels stand that a branch leads to, but not those that tell of lines or tables."""
        labels = {label for own in self._targets.values() for label in own or ()}
        return sorted(self.module.statements[self._labels[label][2]].start for label in labels)

    @property
    def unknown_branch(self) -> Instruction | None:
        """A branch whose targets cannot be told; None when all can."""
        return next((self.code[number] for number, labels in self._targets.items() if labels is None), None)

    def _cut(self) -> Iterator[Block]:
        led_to = {label for labels in self._targets.values() for label in labels or ()}
        labels = {self._labels[label][0]: self._labels[label][2] for label in sorted(led_to, reverse=True)}
        starts = {0, *labels}
        starts |= {n + 1 for n, own in enumerate(self.code) if own.name in _ENDS or self._targets[n] != []}
        ordered = sorted(start for start in starts if start < len(self.code))
        if not ordered:
            return
        for start, stop in zip(ordered, [*ordered[1:], len(self.code)], strict=True):
            yield Block(start, stop, labels.get(start, -1))

    def _connect(self) -> None:
        of = {block.start: number for number, block in enumerate(self.blocks)}
        for number, block in enumerate(self.blocks):
            last = self.code[block.stop - 1]
            after = [of[self._labels[label][0]] for label in self._targets[block.stop - 1] or () if self._exists(label)]
            falls = last.name not in (*_ENDS, "bra", "brx") or bool(last.predicate)
            if falls and number + 1 < len(self.blocks):
                after.append(number + 1)
            block.after = list(dict.fromkeys(after))
        for number, block in enumerate(self.blocks):
            for following in block.after:
                self.blocks[following].before.append(number)

    def leaves(self, number: int) -> bool:
        """Whether an instruction ends the kernel for who takes it: ret, exit, or a branch to a label at the end."""
        labels = self._targets[number] or ()
        return self.code[number].name in ("ret", "exit") or any(not self._exists(label) for label in labels)

    @cached_property
    def ends_at_label(self) -> bool:
        """Whether a branch leads to a label that no instruction follows."""
        return any(not self._exists(label) for labels in self._targets.values() for label in labels or ())

    def _exists(self, label: int) -> bool:
        """Whether an instruction stands behind the label: else it is the function's end."""
        return self._labels[label][0] < len(self.code)

    @cached_property
    def block_of(self) -> list[int]:
        """The block of each instruction."""
        return [number for number, block in enumerate(self.blocks) for _ in range(block.start, block.stop)]

    @cached_property
    def reached(self) -> frozenset[int]:
        """Blocks that control can come to."""
        return frozenset(_reach([block.after for block in self.blocks], [0]))

    @cached_property
    def dominators(self) -> list[int]:
        """The immediate dominator of each block; -1 of the first and of those that are not reached."""
        return _immediate([block.after for block in self.blocks], [block.before for block in self.blocks], 0)

    def dominates(self, first: int, then: int) -> bool:
        """Whether every way to block `then` leads through block `first`."""
        one, other = self._spans[first], self._spans[then]
        return then == first or one[0] < other[0] < one[1]

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """When a walk of the dominators' tree comes to each block and leaves it; (-1, -1) for those not reached."""
        below: list[list[int]] = [[] for _ in self.blocks]
        for block, above in enumerate(self.dominators):
            if above >= 0:
                below[above].append(block)
        spans = [(-1, -1)] * len(self.blocks)
        clock = 0
        pending = [0]
        while pending:
            block = pending.pop()
            clock += 1
            if block >= 0:
                spans[block] = clock, clock
                pending += [~block, *below[block]]
            else:
                spans[~block] = spans[~block][0], clock
        return spans

    @cached_property
    def loops(self) -> list[Loop]:
        """Natural loops, the smallest first; those of one header are one."""
        bodies: dict[int, set[int]] = {}
        before = [block.before for block in self.blocks]
        for number in self.reached:
            for header in self.blocks[number].after:
                if self.dominates(header, number):
                    body = bodies.setdefault(header, {header})
                    body |= set(_reach(before, [number], {header}))
        return sorted((Loop(h, frozenset(b)) for h, b in bodies.items()), key=lambda loop: len(loop.blocks))

    @cached_property
    def joins(self) -> list[int]:
        """Where all ways from a block come together again, for each block; len(blocks) for the function's end."""
        end = len(self.blocks)
        after = [block.after or [end] for block in self.blocks] + [[]]
        turns = self._endless(after, end)
        for header, turn in turns.items():  # who turns there may as well end
            for number in self.blocks[header].before:
                if self.dominates(header, number):
                    after[number] = [turn if following == header else following for following in after[number]]
            after.append([header, end])
        joins = _immediate(_turned(after), after, end)
        headers = {turn: header for header, turn in turns.items()}
        return [headers.get(join, join) for join in joins[: end + 1]]

    def _endless(self, after: list[list[int]], end: int) -> dict[int, int]:
        """Headers of loops that nothing leads out of, each with a number beyond those of the blocks."""
        known = _reach(_turned(after), [end])
        out: dict[int, int] = {}
        for loop in reversed(self.loops):
            if known.isdisjoint(loop.blocks):
                known |= loop.blocks
                out[loop.header] = end + 1 + len(out)
        return out

    @cached_property
    def _lanes(self) -> tuple[Lanes, Lanes]:
        from warplens.instrument.lanes import Lanes

        return Lanes.both(self)

    @property
    def lone(self) -> frozenset[int]:
        """Blocks that one lane of a warp comes to alone."""
        return self._lone.blocks

    @cached_property
    def _lone(self) -> Lone:
        from warplens.instrument.lone import Lone

        return Lone(self)

    def lanes_at(self, index: int) -> int | None:
        """How many lanes of a warp do an instruction, where any does: 1, or all 32; None where that is not known."""
        own = self.code[index]
        if self.block_of[index] in self.lone or self._lone.says_one(own.predicate, not own.negated):
            return 1
        whole = self._ends_together and self._lanes[1].is_same(self.scoped(index, own.predicate))
        return 32 if whole and not self.is_in_part(index, False) else None

    @cached_property
    def _ends_together(self) -> bool:
        """Whether no `ret` or `exit` lets some lanes of a warp go before the others."""
        ends = [number for number, own in enumerate(self.code) if own.predicate and self.leaves(number)]
        return all(self._lanes[1].is_same(self.scoped(number, self.code[number].predicate)) for number in ends)

    def is_apart(self, index: int, behind: bool) -> bool:
        """Whether some lanes of a warp, but not one alone, can come in front of or behind an instruction while others
        wait for them."""
        return self.block_of[index] not in self.lone and self._is_in(self._lanes[0], index, behind)

    def is_in_part(self, index: int, behind: bool) -> bool:
        """Whether some lanes of a warp may not come there: they wait, or go to the function's end.

        Lanes that a predicated `ret` or `exit` took are not counted: vote.sync and bar.warp.sync wait for those of
        their mask that have not exited.
        """
        return self._is_in(self._lanes[1], index, behind)

    def _is_in(self, lanes: Lanes, index: int, behind: bool) -> bool:
        block = self.block_of[index]
        jumps = behind and index == self.blocks[block].stop - 1 and len(self.blocks[block].after) > 1
        return block in lanes.apart or (jumps and block in lanes.parting)

    def is_behind_jump(self, index: int, behind: bool) -> bool:
        """Whether a place lies behind a jump, where only those come that did not take it."""
        return behind and self.code[index].name in (*_ENDS, "bra", "brx")

    def passed_once(self, blocks: Sequence[int]) -> bool:
        """Whether each warp that comes to the function's end, or leaves before, has passed each of these blocks once,
        in this order."""
        after = [block.after for block in self.blocks]
        ends = [b for b in self.reached if not self.blocks[b].after or self.leaves(self.blocks[b].stop - 1)]
        chain = [*dict.fromkeys(blocks)]
        return (
            all(block not in _reach(after, after[block]) for block in chain)
            and all(self.dominates(one, then) for one, then in itertools.pairwise(chain))
            and all(self.dominates(block, end) for block in chain for end in ends)
        )

    def one_dimensional(self) -> bool:
        """Whether a block's threads differ in x alone: the header requires it, or names one size and nothing reads the
        others. A header's maximum is that of the product of a block's sizes: it allows blocks of more rows."""
        head = self.module.bare(self.function.head)
        required = sizes(head, "reqntid")
        found = required or sizes(head, "maxntid")
        if found is None or found[1:] != (1, 1):
            return False
        return required is not None or not self._reads_rows

    @cached_property
    def _reads_rows(self) -> bool:
        """Whether the function, or one that it may call, reads a thread's place in y or z."""
        return self.may_call(_ROWS) or any(_ROWS.search(own.operands) for own in self.code)

    def may_call(self, pattern: re.Pattern[str]) -> bool:
        """Whether a function that it may call holds what the pattern finds: any of the module, and surely one of
        another module, or behind a pointer."""
        module = self.module
        called = [own.called for own in self.code if own.name == "call" and not _QUIET.search(own.operands)]
        functions = [own for own in module.functions if not own.is_entry]
        if not {*called} <= {own.name for own in functions}:
            return True
        spans = [(module.statements[own.head].start, module.statements[own.last].end) for own in functions]
        return bool(called) and any(pattern.search(module.plain, *span) for span in spans)


def _reach(after: Sequence[Sequence[int]], begin: Sequence[int], stop: set[int] | None = None) -> set[int]:
    """All that is reached from `begin`, itself included, without going through `stop`."""
    seen = set(begin) | (stop or set())
    pending = [own for own in begin if own not in (stop or ())]
    while pending:
        for following in after[pending.pop()]:
            if following not in seen:
                seen.add(following)
                pending.append(following)
    return seen - (stop or set()) | set(begin)


def _turned(after: Sequence[Sequence[int]]) -> list[list[int]]:
    """The graph with its edges the other way about."""
    before: list[list[int]] = [[] for _ in after]
    for number, following in enumerate(after):
        for other in following:
            before[other].append(number)
    return before


def reach(flow: Flow, begin: Sequence[int], stop: int) -> set[int]:
    """Blocks on the ways from `begin` up to the block `stop`, which is not among them."""
    return _reach([block.after for block in flow.blocks], [own for own in begin if own != stop], {stop}) - {stop}


def _immediate(after: Sequence[Sequence[int]], before: Sequence[Sequence[int]], root: int) -> list[int]:
    """Immediate dominators from `root` on (Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm", 2001)."""
    order: list[int] = []
    seen = {root}
    stack = [(root, iter(after[root]))]
    while stack:
        own, following = stack[-1]
        nearest = next((n for n in following if n not in seen), None)
        if nearest is None:
            order.append(own)
            stack.pop()
        else:
            seen.add(nearest)
            stack.append((nearest, iter(after[nearest])))
    rank = {own: number for number, own in enumerate(order)}
    out = {root: root}
    changed = True
    while changed:
        changed = False
        for own in reversed(order[:-1]):
            known = [b for b in before[own] if b in out]
            new = known[0]
            for other in known[1:]:
                one = other
                while one != new:
                    if rank[one] < rank[new]:
                        one = out[one]
                    else:
                        new = out[new]
            if out.get(own) != new:
                out[own] = new
                changed = True
    return [out[own] if own in out and own != root else -1 for own in range(len(after))]
