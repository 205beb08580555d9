"""Which marks the kernels of a module get: those that are wanted, or fewer, so that none costs registers it lacks.

In: PTX, and a function that assembles it. Out: PTX with marks, each kernel with the first mode in which it neither
spills more nor is said more about by ptxas (C75xx and C76xx: wgmma made serial, setmaxnreg ignored, too few registers)
than when clean, and leaves as many blocks on an SM where its block's size is known; where it is not, the largest block
that the clean build could have still fits. Starts no process itself.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from warplens.capture.residency import Launch, fewer
from warplens.errors import PtxError
from warplens.instrument import Instrumented, Kernel, Mode, Selection, State, instrument
from warplens.instrument.head import head_of, sizes, target
from warplens.instrument.read import without_comments
from warplens.instrument.rebalance import pool_registers, told
from warplens.instrument.staged import SLOT_BYTES

_COMPILING: Final = re.compile(r"Compiling entry function '([^']+)'|Function properties for (\S+)")
_SPILLS: Final = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED: Final = re.compile(r"Used (\d+) registers(?:.*?\b(\d+) bytes smem)?")
_COMPLAINT: Final = re.compile(r"\(?\b(C7[56]\d\d)\b")
_COMPLAINED_OF: Final = ("setmaxnreg", "wgmma")
"""What ptxas complains of without a name, ahead of all kernels, is laid to those that have one of these."""
IGNORED: Final = ("C7507", "C7508")
"""What ptxas says where it ignores every `setmaxnreg`."""
IN_MEMORY: Final = {State.SHARED: "state in shared memory", State.LOCAL: "state in local memory"}
STAGED: Final = "records in shared memory"
_SPARE: Final = 32
"""Registers to spare with which records wait in shared memory first of all. A matmul with 12 ran 3 points slower so
with few marks, and faster with many, which left it no registers else (benchmarks/results/triton_proton.json at once,
triton_proton_staged.json in shared memory); and 4 points slower with records at once and arithmetic moved over the end
of a scope (triton_marks_late_steps.json)."""
FRUGAL: Final = "a recorder with fewer registers"
_IN_PLACE: Final = "arithmetic left behind waits"
_FEWER_BLOCKS: Final = ", on fewer blocks"
_MOST_WARPS: Final = 32  # of a block
_NAMED: Final = re.compile(r"(?:function '([^']+)'|in function ([\w$]+))")


@dataclass
class Built:
    """What ptxas says of a module, by its kernels: registers, bytes of local memory, bytes that spill, shared memory,
    and complaints (C75xx, C76xx) with how often each came, of "" where it names no kernel."""

    registers: dict[str, int] = field(default_factory=dict)
    frames: dict[str, int] = field(default_factory=dict)
    spills: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    complaints: Counter[tuple[str, str]] = field(default_factory=Counter)

    @classmethod
    def of(cls, log: str) -> Built:
        """Reads what `ptxas -v` writes."""
        out = cls()
        name = ""
        for line in log.splitlines():
            if found := _COMPILING.search(line):
                name = found[1] or found[2]
            elif found := _SPILLS.search(line):
                out.frames[name] = int(found[1])
                out.spills[name] = int(found[2]) + int(found[3])
            elif found := _USED.search(line):
                out.registers[name] = int(found[1])
                out.shared[name] = int(found[2] or 0)
            if found := _COMPLAINT.search(line):
                named = _NAMED.search(line)
                out.complaints[(named[1] or named[2]) if named else name, found[1]] += 1
        return out

    def worse(self, clean: Built, name: str, room: Room | None, *, suspect: bool = True) -> str:
        """What is worse of a kernel than in the clean build; "" for nothing. `suspect`: so is what names no kernel."""
        more = self.spills.get(name, 0) - clean.spills.get(name, 0)
        if more > 0:
            return f"{more} bytes spill"
        for (kernel, code), count in self.complaints.items():
            if (kernel == name or (suspect and not kernel)) and count > clean.complaints[kernel, code]:
                return f"ptxas says {code}"
        if room is not None and self.registers.get(name, 0) > clean.registers.get(name, 0):
            now = room.launch.blocks(self.registers.get(name, 0))
            if now < room.blocks:
                many = fewer(now, room.blocks)
                return (
                    many if room.sized else f"a block of {room.launch.threads} threads would not fit on an SM any more"
                )
        return ""


@dataclass(frozen=True)
class Room:
    """What a kernel is to leave on an SM: so many blocks of `launch`. `sized`: whether the kernel says how large its
    blocks are; else it is one block, of as many threads as the clean build could have."""

    launch: Launch
    blocks: int
    sized: bool


@dataclass
class Chosen:
    """The module with marks; `text` is None where no kernel can have any. `lines`: what was tried, and what is not
    marked, a line each. `clean`: the build without marks."""

    text: str | None
    kernels: list[Kernel] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    clean: Built = field(default_factory=Built)


@dataclass
class _Tries:
    """The modes of one kernel, in order, and which one it is at. `room`: None where it is not known what fits.

    `suspect`: it may be what ptxas complains of without a name. `untried`: which modes it cannot have, and why.
    """

    modes: list[tuple[str, Mode]]
    room: Room | None
    suspect: bool
    untried: str = ""
    at: int = 0

    @property
    def name(self) -> str:
        return self.modes[self.at][0]

    @property
    def mode(self) -> Mode:
        return self.modes[self.at][1]

    def worse(self, build: Built, clean: Built, kernel: str) -> str:
        """What speaks against the mode that it is at; "" for nothing."""
        if self.mode.selection is None:
            return ""
        now, before = build.registers.get(kernel, 0), clean.registers.get(kernel, 0)
        if self.mode.setmaxnreg and now and now != before:
            return f"{now} registers at launch in place of {before}"
        room = None if self.name.endswith(_FEWER_BLOCKS) else self.room
        return build.worse(clean, kernel, room, suspect=self.suspect)


def choose(
    text: str,
    wanted: Selection,
    assemble: Callable[[str], str],
    *,
    kernels: str | None = None,
    in_program: bool = False,
) -> Chosen:
    """`assemble`: gives what `ptxas -v` writes of a module, and raises PtxError where it refuses it.

    Raises PtxError as `instrument` does, for PTX that ptxas refuses as it stands, and for PTX with marks that it
    refuses without saying C75xx or C76xx.
    """
    found = instrument(text, wanted, kernels=kernels, in_program=in_program)
    clean = Built.of(assemble(text))
    plain = without_comments(text)
    tries = {own.name: _tries(plain, own, wanted, clean) for own in found.kernels}
    if not any(tried.suspect for tried in tries.values()):
        for tried in tries.values():
            tried.suspect = True
    lines: list[str] = []
    builds: dict[str, Built] = {}  # what is tried on fewer blocks is often what was tried before on as many
    while True:
        own = _made(text, tries, kernels, in_program) if any(tried.at for tried in tries.values()) else found
        if not any(kernel.site_set for kernel in own.kernels):
            lines += [f"{name}: {gets(tried.name)}" for name, tried in tries.items()]
            return Chosen(None, own.kernels, lines, clean)
        if own.text not in builds:
            builds[own.text] = _build(assemble, own.text)
        build = builds[own.text]
        worse = {name: why for name, tried in tries.items() if (why := tried.worse(build, clean, name))}
        if not worse:
            break
        for name, why in worse.items():
            lines.append(f"{name}: {tries[name].name}: {why}")
            if tries[name].untried and not tries[name].at:
                lines.append(f"{name}: {tries[name].untried}")
            tries[name].at += 1
    for name, tried in tries.items():
        if tried.at:
            lines.append(f"{name}: {gets(tried.name)}")
    lines += [f"{kernel.name}: {line}" for kernel in own.kernels for line in kernel.left_out]
    return Chosen(own.text, own.kernels, lines, clean)


def gets(named: str) -> str:
    """What is told of the mode that a kernel gets, by its name."""
    dearer = any(state in named for state in IN_MEMORY.values())
    more = ": marks cost more there (matmuls ran 1.4 to 1.5 times as long), and fewer may fit in registers (--sites)"
    return f"it gets {named}{more if dearer else ''}"


def _build(assemble: Callable[[str], str], text: str) -> Built:
    """What ptxas says of a module with marks; a refusal for want of registers is a complaint like others."""
    try:
        return Built.of(assemble(text))
    except PtxError as error:
        refused = Built.of(str(error))
        if not refused.complaints:
            raise
        return refused


def _made(text: str, tries: dict[str, _Tries], kernels: str | None, in_program: bool) -> Instrumented:
    modes = {name: tried.mode for name, tried in tries.items()}
    return instrument(text, kernels=kernels, modes=modes, in_program=in_program)


def fewer_and_fewer(wanted: Selection) -> list[tuple[str, Selection]]:
    """What is tried in turn, by its name: the marks that are wanted, then fewer."""
    out = [("the marks asked for", wanted)]
    if wanted.level not in ("off", "coarse"):
        out.append(("marks outside of loops", Selection("coarse", wanted.sites, wanted.kinds)))
    return [*out, ("begin and end", Selection("off", kinds=()))]


@dataclass(frozen=True)
class Ways:
    """What can be tried with each choice of marks.

    `most`: the registers that its threads may take, where it takes a limit; `shared`: the recorder's state can be in
    shared memory, else it is in local memory; `moves`: what its roles can ask for in place of what they ask for;
    `untried`: what is not tried, and why, a line each; `hoisted`: with the marks asked for arithmetic goes ahead of
    waits, which can take registers; `spare`: registers that it can have more than when clean; `slot_bytes`: what a
    warp's records can have of shared memory to wait in, which is tried first, for it costs least; 0 for none.
    """

    most: int | None
    shared: bool
    moves: Sequence[Mapping[int, int]] = ()
    untried: tuple[str, ...] = ()
    hoisted: bool = False
    spare: int = 255
    slot_bytes: int = 0

    def modes(self, what: str, selection: Selection) -> Iterator[tuple[str, Mode]]:
        """In the order to try, by their names."""
        limit = f", {self.most} registers at most" if self.most else ""
        fewer = State.FEWER_REGISTERS
        is_full = self.spare < _SPARE
        at_once = what, Mode(selection, over_scopes=not is_full)
        staged = f"{what}, {STAGED}", Mode(selection, state=State.STAGED)
        lean = f"{what}, {STAGED}, {FRUGAL}{limit}", Mode(selection, self.most, State.STAGED_FEWER)
        if not self.slot_bytes or selection.level not in ("waits", "all"):  # others are in no loop
            yield at_once
        else:
            if self.slot_bytes > SLOT_BYTES and not is_full:
                large = Mode(selection, state=State.STAGED, slot_bytes=self.slot_bytes)
                yield f"{what}, {STAGED}, {self.slot_bytes >> 10} KiB for each warp", large
            yield from (at_once, lean, staged) if is_full else (staged, lean, at_once)
        yield f"{what}, {FRUGAL}{limit}", Mode(selection, self.most, fewer)
        if self.most:
            yield f"{what}{limit}", Mode(selection, self.most)
        if self.hoisted and selection.level in ("waits", "all"):  # fewer marks are in no loop, and move nothing
            yield f"{what}, {_IN_PLACE}{limit}", Mode(selection, self.most, hoists=False)
            yield f"{what}, {FRUGAL}, {_IN_PLACE}{limit}", Mode(selection, self.most, fewer, hoists=False)
        for moved in self.moves:
            yield f"{what}, {told(moved)}", Mode(selection, setmaxnreg=moved)
        state = State.SHARED if self.shared else State.LOCAL
        stored = f"{what}, {IN_MEMORY[state]}"
        yield stored, Mode(selection, state=state)
        if self.most:
            yield f"{stored}{limit}", Mode(selection, self.most, state)
        for moved in self.moves:
            yield f"{stored}, {told(moved)}", Mode(selection, state=state, setmaxnreg=moved)


def moves_of(kernel: Kernel, registers: int, *, ignored: bool) -> tuple[list[dict[int, int]], str]:
    """What a kernel's roles can ask for in place of what they ask for; or why nothing, "" for a kernel whose roles
    ask for nothing.

    registers: of a thread at launch, in the clean build. ignored: ptxas says of it that it ignores `setmaxnreg`.
    """
    if kernel.asked is None:
        return [], ""
    why = kernel.asked.unknown
    if ignored:
        why = "ptxas ignores its setmaxnreg"
    elif not why and not pool_registers(registers):
        why = f"{registers} registers at launch are no multiple of 8"
    moves = [] if why else list(kernel.asked.moves(registers))
    if not moves:
        why = why or "no other numbers are known to fit wherever these do"
    return moves, f"registers cannot be moved between roles: {why}" if why else ""


def _tries(plain: str, kernel: Kernel, wanted: Selection, clean: Built) -> _Tries:
    """What is tried in turn."""
    name = kernel.name
    room = _room(plain, name, clean)
    most = room.launch.most_registers(room.blocks) if room and kernel.takes_limit else None
    ignored = any(code in IGNORED for _, code in clean.complaints)
    moves, untried = moves_of(kernel, clean.registers.get(name, 0), ignored=ignored)
    # How much shared memory a launch asks for is not known here: with more of it one could fail that would not.
    can = Ways(most, shared=False, moves=moves, hoisted=kernel.hoisted > 0)
    out: list[tuple[str, Mode]] = []
    for what, selection in fewer_and_fewer(wanted):
        out += can.modes(what, selection)
        if room and room.sized:
            out.append((what + _FEWER_BLOCKS, Mode(selection)))
    suspect = any(word in kernel.uses for word in _COMPLAINED_OF)
    return _Tries([*out, ("no marks", Mode(None))], room, suspect, untried)


def _room(plain: str, name: str, clean: Built) -> Room | None:
    """What the kernel is to leave on an SM; None where its registers or its GPU are not known."""
    gpu = target(plain)
    if gpu is None or name not in clean.registers:
        return None
    head = head_of(plain, name)
    threads = math.prod(sizes(head, "reqntid") or sizes(head, "maxntid") or (0,))
    registers, shared = clean.registers[name], clean.shared.get(name, 0)
    if threads:
        launch = Launch(gpu[1], threads, shared)
        return Room(launch, launch.blocks(registers), sized=True)
    blocks = (Launch(gpu[1], 32 * warps, shared) for warps in range(_MOST_WARPS, 0, -1))
    largest = next((own for own in blocks if own.blocks(registers)), None)
    return Room(largest, 1, sized=False) if largest else None
