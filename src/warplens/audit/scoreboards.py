"""Which results are still under way at each instruction, and what each instruction waits for.

In: a `Flow`. Out: `Scoreboards`. An instruction of variable length names a scoreboard that it counts up at issue and
down when its result is there (write barrier) or its operands have been read (read barrier); a bit of an instruction's
wait mask holds the warp until that scoreboard is 0. So what was counted into a scoreboard has arrived once somebody
waited for it, and may be under way until then: `may` holds what is under way on some path to here, `must` what is on
all of them. Where they differ the machine code alone does not tell. Nothing is assumed about how long anything takes.

cp.async has no scoreboard of its own: LDGDEPBAR counts those since the one before (a group) into one, and
`DEPBAR.LE SBn, k` waits until k groups are left, the newest ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from warplens.audit.flow import Flow, Pending
from warplens.audit.sass import NO_BARRIER, SCOREBOARDS, Instruction

Tokens = frozenset[int]
"""2 * index: the result of the instruction; 2 * index + 1: its operands; negative: what came before a function."""

_NOTHING: Final[Tokens] = frozenset()
_LOOSE: Final = SCOREBOARDS
"""In place of a scoreboard: asynchronous copies that no LDGDEPBAR has counted yet."""
_PLACES: Final = SCOREBOARDS + 1
_DEPBAR: Final = re.compile(r"SB(\d)\s*,\s*(0x[0-9a-f]{1,8}|\d{1,8})")
_BRACES: Final = re.compile(r"\{([\d,\s]*)\}")
_LOADS: Final = re.compile(r"LD|LDG|LDS|LDSM|LDL|LDGSTS|LDT|TLD|TLD4|TEX|TMML|TXD|SULD|ATOM|ATOMG|ATOMS")
_UNSEEN: Final = frozenset({"ARRIVES"})
"""ARRIVES.LDGSTSBAR hands the copies so far to an mbarrier: whether they have landed is no longer in the code."""

Groups = tuple[tuple[Tokens, ...] | None, ...]
"""For each scoreboard the groups counted into it, oldest first; None when paths disagree about them."""


@dataclass(frozen=True)
class State:
    """What is under way, by scoreboard, and asynchronous copies without one in the last place."""

    may: tuple[Tokens, ...] = (_NOTHING,) * _PLACES
    must: tuple[Tokens, ...] = (_NOTHING,) * _PLACES
    groups: Groups = ((),) * SCOREBOARDS

    def merged(self, other: State) -> State:
        """What holds where two paths meet."""
        return State(
            tuple(a | b for a, b in zip(self.may, other.may, strict=True)),
            tuple(a & b for a, b in zip(self.must, other.must, strict=True)),
            tuple(a if a == b else None for a, b in zip(self.groups, other.groups, strict=True)),
        )

    def without(self, scoreboards: Iterable[int]) -> State:
        """After a wait for all that `scoreboards` counted."""
        gone = set(scoreboards)
        if not gone:
            return self
        return State(
            tuple(_NOTHING if b in gone else tokens for b, tokens in enumerate(self.may)),
            tuple(_NOTHING if b in gone else tokens for b, tokens in enumerate(self.must)),
            tuple(() if b in gone else groups for b, groups in enumerate(self.groups)),
        )


_OUTSIDE: Final = State(
    may=tuple(frozenset({-1 - b}) for b in range(_PLACES)),
    must=tuple(frozenset({-1 - b}) for b in range(_PLACES)),
    groups=(None,) * SCOREBOARDS,
)
"""At the begin of a function: whatever its caller had under way."""


def is_load(instruction: Instruction) -> bool:
    """Whether it brings data from memory: loads, asynchronous copies by a warp, atomics that return a value.

    Not one that nobody ever does: ptxas puts three `@!PT LDS RZ, [RZ]` in front of copies to shared memory.
    """
    if instruction.predicate == "!PT":
        return False
    if instruction.name.startswith("ATOM"):
        return instruction.control.write != NO_BARRIER
    return _LOADS.fullmatch(instruction.name) is not None


class Scoreboards:
    """The states of a kernel. `readable` is False when some path could not be followed: then nothing is known."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.code = flow.section.code
        self._acting = [[i for i in block if _acts(self.code[i])] for block in flow.blocks]
        self._summaries: dict[int, State | None] = {}
        self._unrolled: tuple[int, list[State]] = (-1, [])  # a block, and the state in front of each instruction
        self._groups_of: dict[int, bool] = {}  # whether a function has to do with groups
        self._states: dict[int, State] = {}  # at the begin of a block, over all functions that it is part of
        self.reached: set[int] = set()
        if self.code:
            self._keep(self._solve(0, State()))
            for entry in {index for index in flow.calls.values() if index is not None}:
                self._keep(self._solve(flow.block_of[entry], _OUTSIDE))
        self.readable = not (self.reached & flow.unreadable)

    def at(self, index: int) -> State | None:
        """What is under way when instruction `index` issues, its own waits done; None when nothing leads there."""
        before = self.before(index)
        return None if before is None else before.without(_waited(self.code[index]))

    def before(self, index: int) -> State | None:
        """What is under way in front of instruction `index` and its waits; None when nothing leads there."""
        block = self.flow.block_of[index]
        state = self._states.get(block)
        if state is None:
            return None
        if self._unrolled[0] != block:
            states = []
            for at in self.flow.blocks[block]:
                states.append(state)
                state = self._past(at, state) if _acts(self.code[at]) else state
            self._unrolled = block, states
        return self._unrolled[1][index - self.flow.blocks[block].start]

    def waits(self, index: int) -> Tokens:
        """What the instruction waits for, on some path: its wait mask, and what DEPBAR names."""
        state = self.before(index)
        if state is None:
            return _NOTHING
        after = _past_depbar(self.code[index], state.without(_waited(self.code[index])))
        return frozenset().union(*(b - a for b, a in zip(state.may, after.may, strict=True)))

    def loads(self, state: State) -> tuple[set[int], set[int], bool]:
        """Indices of loads under way on all paths, and on some; and whether there may be more (of a caller)."""
        may = frozenset().union(*state.may)
        must = frozenset().union(*state.must)
        is_result = {token // 2 for token in may if token >= 0 and not token % 2 and is_load(self.code[token // 2])}
        return {i for i in is_result if 2 * i in must}, is_result, any(token < 0 for token in may)

    def _keep(self, states: dict[int, State]) -> None:
        self.reached |= states.keys()
        for block, state in states.items():
            known = self._states.get(block)
            self._states[block] = state if known is None else known.merged(state)

    def _solve(self, entry: int, begin: State) -> dict[int, State]:
        """The state at the begin of each block that `entry` leads to."""
        states = {entry: begin}
        pending = Pending([entry])
        while pending:
            block = pending.pop()
            state = self._past_block(block, states[block])
            for follower in self.flow.after[block]:
                known = states.get(follower)
                merged = state if known is None else known.merged(state)
                if merged != known:
                    states[follower] = merged
                    pending.add(follower)
        return states

    def _past_block(self, block: int, state: State) -> State:
        for index in self._acting[block]:
            state = self._past(index, state)
        if block not in self.flow.calls:
            return state
        called = self._past_call(self.flow.calls[block], state)
        return called.merged(state) if self.code[self.flow.blocks[block][-1]].predicate else called

    def _past(self, index: int, state: State) -> State:
        instruction = self.code[index]
        control = instruction.control
        state = _past_depbar(instruction, state.without(_waited(instruction)))
        if instruction.name == "LDGDEPBAR" and control.write < SCOREBOARDS:
            return _counted_group(state, control.write)
        if instruction.name in _UNSEEN:
            return replace(state, must=(*state.must[:_LOOSE], _NOTHING))
        for scoreboard, token in ((control.write, 2 * index), (control.read, 2 * index + 1)):
            if scoreboard < SCOREBOARDS:
                state = _counted(state, scoreboard, token)
        if instruction.name == "LDGSTS" and control.write >= SCOREBOARDS:
            state = _counted(state, _LOOSE, 2 * index)
        return state

    def _past_call(self, callee: int | None, state: State) -> State:
        """What a function leaves under way. One that cannot be followed may have waited for all, or left anything."""
        left = self._summary(callee)
        if left is None:
            outside = tuple(frozenset({-1 - b}) for b in range(_PLACES))
            anything = tuple(a | b for a, b in zip(state.may, outside, strict=True))
            return State(anything, (_NOTHING,) * _PLACES, (None,) * SCOREBOARDS)
        may: list[Tokens] = []
        must: list[Tokens] = []
        for b in range(_PLACES):
            own = frozenset({-1 - b})
            may.append((state.may[b] if own <= left.may[b] else _NOTHING) | (left.may[b] - own))
            must.append((state.must[b] if own <= left.must[b] else _NOTHING) | (left.must[b] - own))
        assert callee is not None
        if callee not in self._groups_of:
            self._groups_of[callee] = self._touches_groups(callee)
        groups = (None,) * SCOREBOARDS if self._groups_of[callee] else state.groups
        return State(tuple(may), tuple(must), groups)

    def _summary(self, callee: int | None) -> State | None:
        """The state at the returns of a function, over what its caller had under way."""
        if callee is None:
            return None
        if callee not in self._summaries:
            self._summaries[callee] = None  # what a function that calls itself sees
            states = self._solve(self.flow.block_of[callee], _OUTSIDE)
            ends = [self._past_block(b, states[b]) for b in sorted(states.keys() & self.flow.returns)]
            if ends and not states.keys() & self.flow.unreadable:
                out = ends[0]
                for end in ends[1:]:
                    out = out.merged(end)
                self._summaries[callee] = out
        return self._summaries[callee]

    def _touches_groups(self, callee: int) -> bool:
        seen: set[int] = set()
        pending: list[int | None] = [callee]
        while pending:
            function = pending.pop()
            if function is None:
                return True
            if function in seen:
                continue
            seen.add(function)
            blocks = self.flow.region(self.flow.block_of[function])
            acting = (self.code[index].name for block in blocks for index in self._acting[block])
            if any(name in ("LDGDEPBAR", "DEPBAR", "LDGSTS") for name in acting):
                return True
            pending += [self.flow.calls[block] for block in blocks & self.flow.calls.keys()]
        return False


def _acts(instruction: Instruction) -> bool:
    """Whether it changes what is under way."""
    control = instruction.control
    named = instruction.name in {"DEPBAR", "LDGDEPBAR", "LDGSTS", *_UNSEEN}
    return named or control.wait != 0 or control.write < SCOREBOARDS or control.read < SCOREBOARDS


def _waited(instruction: Instruction) -> list[int]:
    return [b for b in range(SCOREBOARDS) if instruction.control.wait >> b & 1]


def _past_depbar(instruction: Instruction, state: State) -> State:
    """DEPBAR waits for the scoreboards in braces, and until one of them has no more than so many left."""
    if instruction.name != "DEPBAR":
        return state
    if braces := _BRACES.search(instruction.operands):
        state = state.without(int(n) for n in braces[1].split(",") if n.strip().isdigit())
    found = _DEPBAR.search(instruction.operands)
    if found is None or int(found[1]) >= SCOREBOARDS:
        return state
    scoreboard, left = int(found[1]), int(found[2], 0)
    if left == 0:
        return state.without([scoreboard])
    groups = state.groups[scoreboard]
    if groups is None:  # some have landed, nobody knows which
        return replace(state, must=_put(state.must, scoreboard, _NOTHING))
    newest = frozenset[int]().union(*groups[-left:])
    gone = frozenset[int]().union(*groups[:-left]) - newest
    return State(
        _put(state.may, scoreboard, state.may[scoreboard] - gone),
        _put(state.must, scoreboard, state.must[scoreboard] - gone),
        (*state.groups[:scoreboard], groups[-left:], *state.groups[scoreboard + 1 :]),
    )


def _counted(state: State, scoreboard: int, token: int) -> State:
    one = frozenset({token})
    return replace(
        state,
        may=_put(state.may, scoreboard, state.may[scoreboard] | one),
        must=_put(state.must, scoreboard, state.must[scoreboard] | one),
    )


def _counted_group(state: State, scoreboard: int) -> State:
    """The copies that no group holds yet become one, counted by `scoreboard`."""
    groups = state.groups[scoreboard]
    sure = state.may[_LOOSE] == state.must[_LOOSE]
    grown = (*groups, state.may[_LOOSE]) if groups is not None and sure else None
    return State(
        _put(_put(state.may, scoreboard, state.may[scoreboard] | state.may[_LOOSE]), _LOOSE, _NOTHING),
        _put(_put(state.must, scoreboard, state.must[scoreboard] | state.must[_LOOSE]), _LOOSE, _NOTHING),
        (*state.groups[:scoreboard], grown, *state.groups[scoreboard + 1 :]),
    )


def _put(values: tuple[Tokens, ...], at: int, value: Tokens) -> tuple[Tokens, ...]:
    return (*values[:at], value, *values[at + 1 :])
