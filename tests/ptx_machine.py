"""A machine that runs PTX on the CPU, one lane after the other: what the recorder of instrumented PTX writes.

In: a module's text, a launch shape, memory. Out: what is in memory afterwards. It knows the instructions that the
recorder and the small kernels of the tests are made of, and fails on any other. Lanes of a warp run one after the
other: nothing here needs them together.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from warplens.instrument.flow import Flow
from warplens.instrument.read import read

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1
LANES = (0, 1, 31)
"""Lanes of a warp that are run: one that writes, and some that do not."""


@dataclass
class Machine:
    """Memory and clocks of one GPU. `symbols`: address of each, in any space."""

    symbols: dict[str, int]
    memory: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """32-bit words by address."""
    clock: int = 1 << 33
    step: int = 7
    """Cycles that an instruction takes."""
    globaltimer: int = 1_795_000_000_000_000_000
    waits: dict[str, int] = field(default_factory=dict)
    """Cycles that a barrier of this number takes."""
    others: int = 0
    """Of so many votes of all lanes one finds that another lane says yes; 0: none does."""
    votes: int = 0
    touched: set[int] = field(default_factory=set)
    """Addresses that were written."""
    shared: dict[tuple[int, int], int] = field(default_factory=dict)
    """32-bit words of shared memory by block and address."""
    asks: int = 1
    """Of so many questions of a lane at an mbarrier one is answered with yes."""
    most_steps: int = 100_000
    """A lane that has run more instructions is held to run for ever."""

    def load(self, address: int) -> int:
        assert address % 4 == 0, hex(address)
        return self.memory[address]

    def store(self, address: int, value: int) -> None:
        assert address % 4 == 0, hex(address)
        self.touched.add(address)
        self.memory[address] = value & MASK32

    def store_shared(self, block: int, thread: int, address: int, value: int) -> None:
        """A thread stores a word of its block's shared memory."""
        assert address % 4 == 0, (thread, hex(address))
        self.shared[block, address] = value & MASK32

    def load_wide(self, address: int) -> int:
        return self.load(address) | self.load(address + 4) << 32

    def store_wide(self, address: int, value: int) -> None:
        self.store(address, value & MASK32)
        self.store(address + 4, value >> 32)

    def executed(self, thread: int, at: int, taken: bool) -> None:
        """Is called at each instruction of a thread, `at` in the kernel; for what a test wants to know of it."""

    def run(
        self,
        text: str,
        *,
        grid: int,
        threads: int,
        grid_id: int,
        arguments: dict[str, int] | None = None,
        kernel: str | None = None,
    ) -> None:
        """Runs a kernel of the module, the first by default, warp after warp, in some lanes.

        A lane's clock begins where its warp's did.
        """
        program = _program(text, kernel)
        for block in range(grid):
            for warp in range(-(-threads // 32)):
                begin, longest = self.clock, self.clock
                for thread in (warp * 32 + lane for lane in LANES if warp * 32 + lane < threads):
                    self.clock = begin
                    special = {"%tid.x": thread, "%ctaid.x": block, "%ntid.x": threads, "%nctaid.x": grid}
                    special |= {"%smid": block % 132, "%gridid": grid_id, "%nctaid.y": 1, "%ntid.y": 1, "%nctaid.z": 1}
                    _Lane(self, program, special, arguments or {}).run()
                    longest = max(longest, self.clock)
                self.clock = longest


Action = Callable[["_Lane", list[str], list[str]], None]
ACT, END, JUMP, JOIN = range(4)
Step = tuple[str, bool, int, Action, list[str], list[str], list[int]]
"""Predicate ("" for none) and whether it is negated; which of ACT, END (ret, exit), JUMP and JOIN (a vote, a barrier of
the warp) it is; what it does, its operands, its opcode's parts; where it may jump to."""


class _Program:
    """A kernel, with the steps of those of its instructions that were run, so that each is taken apart once."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.steps: list[Step | None] = [None] * len(flow.code)

    def step(self, at: int) -> Step:
        own, flow = self.flow.code[at], self.flow
        action: Action = _arrive
        what, parts, kind, targets = ACT, [own.operands.partition(",")[0]], [own.name], list[int]()
        if own.name in ("ret", "exit"):
            what = END
        elif own.name in ("bra", "brx"):
            labels = flow._targets[at]
            assert labels, own
            what, targets = JUMP, [flow._labels[label][0] for label in labels]
        else:
            what = JOIN if own.name == "vote" or own.opcode == "bar.warp.sync" else ACT
            action, parts, kind = _decoded(own.opcode, own.operands)
        found = (own.predicate, own.negated, what, action, parts, kind, targets)
        self.steps[at] = found
        return found


class _Lane:
    def __init__(self, machine: Machine, program: _Program, special: dict[str, int], arguments: dict[str, int]) -> None:
        self.machine, self.program, self.special, self.arguments = machine, program, special, arguments
        self.registers: dict[str, int] = {}
        self.local: dict[int, int] = {}
        """32-bit words by address; one that was never stored is an error."""
        self.asked = 0

    def run(self) -> None:
        at = 0
        machine, program, thread = self.machine, self.program, self.special["%tid.x"]
        steps, registers, executed, cycles = program.steps, self.registers, machine.executed, machine.step
        for _ in range(machine.most_steps):
            if at >= len(steps):
                return
            predicate, negated, what, action, parts, kind, targets = steps[at] or program.step(at)
            machine.clock += cycles
            taken = not predicate or bool(registers[predicate]) != negated
            executed(thread, at, taken)
            if taken and what == END:
                return
            if taken and what == JUMP:
                at = targets[self.value(parts[0]) if kind[0] == "brx" else 0]
                continue
            if taken:
                action(self, parts, kind)
            at += 1
        raise AssertionError("the kernel does not end")

    def value(self, operand: str) -> int:
        held = self.registers.get(operand)
        if held is not None:
            return held
        machine = self.machine
        if operand.startswith("!"):
            return int(not self.value(operand[1:]))
        number = _number(operand)
        if number is not None:
            return number
        if operand == "%clock64":
            return machine.clock
        if operand == "%clock":
            return machine.clock & MASK32
        if operand in ("%globaltimer", "%globaltimer_lo"):
            value = machine.globaltimer + machine.clock // 2
            return value & (MASK32 if operand.endswith("lo") else MASK64)
        if operand in machine.symbols:
            return machine.symbols[operand]
        assert not operand.startswith("%wl_"), f"{operand} is read before it is written"
        return self.special.get(operand, 0) if operand.startswith("%") else self.arguments[operand]

    def address(self, operand: str) -> int:
        base, offset = _base(operand)
        return self.value(base) + offset

    def write(self, register: str, value: int, kind: list[str]) -> None:
        wide = kind[-1] in ("u64", "b64", "s64") or "wide" in kind
        self.registers[register] = value & (MASK64 if wide else MASK32)


@lru_cache(maxsize=1 << 14)
def _decoded(opcode: str, operands: str) -> tuple[Action, list[str], list[str]]:
    for name, action in ACTIONS.items():
        if opcode == name or opcode.startswith(name + "."):
            return action, _split(operands), opcode.split(".")
    raise AssertionError(f"the machine does not know {opcode} {operands}")


@lru_cache(maxsize=1 << 14)
def _number(operand: str) -> int | None:
    return int(operand.rstrip("U"), 0) if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand) else None


@lru_cache(maxsize=1 << 14)
def _base(operand: str) -> tuple[str, int]:
    base, _, offset = operand.strip("[] ").partition("+")
    return base, int(offset) if offset else 0


@lru_cache(maxsize=16)
def _program(text: str, kernel: str | None) -> _Program:
    module = read(text)
    return _Program(Flow(module, next(own for own in module.entries if kernel in (None, own.name))))


def _split(operands: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", operands)] if operands else []


@lru_cache(maxsize=1 << 14)
def _pair(text: str) -> list[str]:
    return [part.strip() for part in text.strip("{} ").split(",")]


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 & 1 else value


def _of_32(value: int) -> int:
    return _signed(value & MASK32)


def _mov(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    if parts[0].startswith("{"):
        low, high = _pair(parts[0])
        value = lane.value(parts[1])
        lane.registers[low], lane.registers[high] = value & MASK32, value >> 32
    elif parts[1].startswith("{"):
        halves = [lane.value(part) for part in _pair(parts[1])]
        lane.write(parts[0], halves[0] | halves[1] << 32, kind)
    else:
        lane.write(parts[0], lane.value(parts[1]), kind)


def _check_aligned(address: int, values: int, kind: list[str]) -> None:
    bytes_each = int(kind[-1][1:]) // 8
    assert address % (bytes_each * values) == 0, f"{values} {kind[-1]} at {address:#x}"


def _load(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    if "param" in kind:
        lane.write(parts[0], lane.arguments.get(parts[1].strip("[] "), 0), kind)
        return
    address = lane.address(parts[1])
    targets = _pair(parts[0]) if parts[0].startswith("{") else [parts[0]]
    _check_aligned(address, len(targets), kind)
    if "shared" in kind:
        block = lane.special.get("block", lane.special["%ctaid.x"])
        for number, target in enumerate(targets):
            lane.write(target, lane.machine.shared.get((block, address + 4 * number), 0), kind)
        return
    if "local" in kind:
        for number, target in enumerate(targets):
            lane.write(target, lane.local[address + 4 * number], kind)
        return
    for number, target in enumerate(targets):
        wide = kind[-1] == "u64"
        lane.write(target, lane.machine.load_wide(address) if wide else lane.machine.load(address + 4 * number), kind)


def _store(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    address = lane.address(parts[0])
    sources = _pair(parts[1])
    _check_aligned(address, len(sources), kind)
    if "shared" in kind:
        special = lane.special
        block, thread = (special.get(name, special[own]) for name, own in (("block", "%ctaid.x"), ("thread", "%tid.x")))
        for number, source in enumerate(sources):
            lane.machine.store_shared(block, thread, address + 4 * number, lane.value(source))
        return
    if "local" in kind:
        lane.local[address] = lane.value(parts[1]) & MASK32
        return
    if kind[-1] == "u64":
        lane.machine.store_wide(address, lane.value(parts[1]))
        return
    for number, source in enumerate(sources):
        lane.machine.store(address + 4 * number, lane.value(source))


COMPARES = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def _setp(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    one, other = lane.value(parts[1]), lane.value(parts[2])
    if kind[-1] == "s32":
        one, other = _signed(one & MASK32), _signed(other & MASK32)
    elif kind[-1] == "u32":
        one, other = one & MASK32, other & MASK32
    found: bool = COMPARES[kind[1]](one, other)
    if len(parts) > 3:
        third = bool(lane.value(parts[3]))
        found = (found and third) if kind[2] == "and" else (found or third)
    holds, _, fails = parts[0].partition("|")
    lane.registers[holds] = int(found)
    if fails:
        lane.registers[fails] = int(not found)


def _rotate(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    low, high, bits = (lane.value(part) & MASK32 for part in parts[1:])
    lane.write(parts[0], (low | high << 32) >> (bits & 31), kind)


def _atom(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    address = lane.address(parts[1])
    before = lane.machine.load(address)
    lane.machine.store(address, before + lane.value(parts[2]))
    lane.write(parts[0], before, kind)


def _red(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    address, value = lane.address(parts[0]), lane.value(parts[1])
    if "min" in kind:
        lane.machine.store(address, min(lane.machine.load(address), value))
    else:
        lane.machine.store_wide(address, lane.machine.load_wide(address) + value)


def _barrier(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    del kind
    lane.machine.clock += lane.machine.waits.get(parts[0], 0)


def _of(compute: Callable[..., int]) -> Callable[[_Lane, list[str], list[str]], None]:
    def run(lane: _Lane, parts: list[str], kind: list[str]) -> None:
        held = lane.registers
        values = [held[part] if part in held else lane.value(part) for part in parts[1:]]
        lane.write(parts[0], compute(*values), kind)

    return run


def _vote(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    machine = lane.machine
    machine.votes += parts[2] == "0xffffffff"
    others = parts[2] == "0xffffffff" and machine.others > 0 and machine.votes % machine.others == 0
    lane.write(parts[0], int(bool(lane.value(parts[1])) or others), kind)


def _arrive(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    """It is counted nowhere: who asks is let pass."""


def _ask(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    del kind
    lane.asked += 1
    lane.registers[parts[0]] = int(lane.asked % lane.machine.asks == 0)


def _elect(lane: _Lane, parts: list[str], kind: list[str]) -> None:
    del kind
    _, _, predicate = parts[0].partition("|")
    lane.registers[predicate] = int(lane.special.get("thread", lane.special["%tid.x"]) % 32 == 0)


ACTIONS: dict[str, Action] = {
    "mov": _mov,
    "ld": _load,
    "st": _store,
    "setp": _setp,
    "shf.r.wrap": _rotate,
    "atom.global.add": _atom,
    "red.global": _red,
    "bar.sync": _barrier,
    "add": _of(lambda a, b: a + b),
    "sub": _of(lambda a, b: a - b),
    "mul.lo": _of(lambda a, b: a * b),
    "mul.hi": _of(lambda a, b: a * b >> 32),
    "mad": _of(lambda a, b, c: (a & MASK32) * b + c),
    "shl": _of(lambda a, b: a << b),
    "shr": _of(lambda a, b: a >> b),
    "and": _of(lambda a, b: a & b),
    "or": _of(lambda a, b: a | b),
    "not": _of(lambda a: a ^ 1),
    "neg": _of(lambda a: -a),
    "min.s32": _of(lambda a, b: min(a, b, key=_of_32)),
    "max.s32": _of(lambda a, b: max(a, b, key=_of_32)),
    "min": _of(min),
    "max": _of(max),
    "selp": _of(lambda a, b, p: a if p else b),
    "cvt": _of(lambda a: a),
    "activemask": _of(lambda: MASK32),
    "vote.sync.any": _vote,
    "mbarrier.init": _arrive,
    "mbarrier.arrive": _arrive,
    "mbarrier.try_wait": _ask,
    "cp.async.mbarrier.arrive": _arrive,
    "cp.async.wait_all": _arrive,
    "mapa": _arrive,
    "elect.sync": _elect,
    "bar.warp.sync": _arrive,
}
