"""A PTX module gets its marks: text in, text and sites out.

In: a PTX module. Out: the module with marks at its waits, which writes what a kernel marked in CUDA C++ writes, and the
sites. Pure: compiles nothing, reads no file, imports no Polars, for it works in the traced process. What
it does not know passes through as it stands (docs/adr/0012-instrumenting-ptx.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from warplens import layout
from warplens.errors import PtxError
from warplens.instrument.calls import unmarked_calls
from warplens.instrument.flow import Flow
from warplens.instrument.frugal import FrugalRecorder
from warplens.instrument.head import sizes
from warplens.instrument.insert import Inserter
from warplens.instrument.local_state import LocalRecorder
from warplens.instrument.marks_lines import Piece, lines_of_files, moved_down, place_callees
from warplens.instrument.read import STATEMENT, Function, Module, integer, read, splice, without_remarks
from warplens.instrument.rebalance import Asked
from warplens.instrument.recorder import Recorder
from warplens.instrument.selection import Selection
from warplens.instrument.shared_state import SHARED_STATE, SharedRecorder, declaration
from warplens.instrument.sites import Plan, Planner
from warplens.instrument.staged import (
    MOST_THREADS,
    NEED,
    SLOT_BYTES,
    STAGE,
    FrugalStagedRecorder,
    NotTogetherError,
    StagedRecorder,
    staged_bytes,
)
from warplens.instrument.staged import declaration as slots
from warplens.instrument.straight import MOST_STRAIGHT, StraightRecorder, stored_together

_ARCH: Final = re.compile(r"sm_([0-9]{1,4})(?![0-9])")
_OF_HOST: Final = re.compile(rf"\.const\s+\.align\s+8\s+\.b8\s+([\w$]*{layout.DESCRIPTOR_SYMBOL})\[")
_OF_WARPLENS: Final = "8warplens6detail4host"  # the kernels that host.hpp brings, as C++ writes their namespace
_CONST: Final = re.compile(r"(?:\.(?:visible|weak|extern|common)\s*+)*\.const\b([^={]*+)")
_SHARED: Final = re.compile(r"(?:\.(?:visible|weak|extern|common)\s+)*\.shared\b.*?\.[busf]\d+\s+([\w$%]+)", re.DOTALL)
_SYMBOL: Final = re.compile(r"[\w$%]+")
_OF_CLUSTERS: Final = re.compile(r"mapa|getctarank|barrier\.cluster|multicast|%\w*cluster")
ALL_MARKED: Final = "this PTX holds no kernel without marks"
_LEAST_ARCH: Final = 80
_HAS_SYSTEM_SHARED: Final = 90
_CONSTANT_BYTES: Final = 65536
_LONGEST_NAME: Final = 200  # of a site set; templates have names of many thousand characters
_OF_TABLE: Final = str.maketrans(
    dict.fromkeys(("\0", layout.SITE_SEPARATOR, layout.FIELD_SEPARATOR, layout.TAIL_SEPARATOR), "\ufffd")
)
_OWN_SHARED: Final = "warplens_own"
_OWN_NAMES: Final = ("%wl_", "$wl_", _OWN_SHARED, SHARED_STATE, STAGE, NEED, layout.SITES_SYMBOL_PREFIX)
_OWN_NAME: Final = re.compile(
    rf"(?<![\w$%])(?:[%$]wl_\w*|(?:{_OWN_SHARED}|{SHARED_STATE}|{STAGE}|{NEED})\b|{layout.SITES_SYMBOL_PREFIX}\w*)"
)


@dataclass
class Kernel:
    """A kernel of the module. `site_set`: as the manifest lists it, None for one that is not marked; `left_out`: what
    of it is not marked and why, a line each. `takes_limit`: whether its registers can be limited; `uses`: the names of
    its instructions, as `wgmma`; `asked`: what its `setmaxnreg` ask for, None where it has none; `hoisted`: how many
    instructions go ahead of a wait; `staged_bytes`: shared memory that its records wait in.
    """

    name: str
    site_set: dict[str, Any] | None
    left_out: list[str] = field(default_factory=list)
    takes_limit: bool = True
    uses: frozenset[str] = frozenset()
    asked: Asked | None = None
    hoisted: int = 0
    staged_bytes: int = 0


class State(Enum):
    """Where the recorder keeps its state between marks: in registers; in fewer, so that a full chunk costs more; in
    shared or local memory, so that each mark costs more. STAGED: records wait in shared memory, with most of the state,
    where whole warps come to each mark of a loop; else as REGISTERS. STAGED_FEWER: with fewer registers, too."""

    STAGED = "records in shared memory"
    STAGED_FEWER = "records in shared memory, fewer registers"
    REGISTERS = "registers"
    FEWER_REGISTERS = "fewer registers"
    SHARED = "shared memory"
    LOCAL = "local memory"


_RECORDERS: Final[dict[State, type[Recorder]]] = {
    State.STAGED: StagedRecorder,
    State.STAGED_FEWER: FrugalStagedRecorder,
    State.REGISTERS: Recorder,
    State.FEWER_REGISTERS: FrugalRecorder,
    State.SHARED: SharedRecorder,
    State.LOCAL: LocalRecorder,
}


@dataclass(frozen=True)
class Mode:
    """How one kernel is marked: which marks it gets, None for none, and what registers its threads may take, where it
    `takes_limit`. `state`: where the recorder's state is. `setmaxnreg`: what it asks for in place of each number.
    `hoists`: arithmetic goes ahead of waits (hoist.py), but where the state is in memory: such a kernel has no
    registers for what then lives longer. `over_scopes`: also over the end of a product's scope. `slot_bytes`: what a
    warp's records have of shared memory, where they wait there."""

    selection: Selection | None
    most_registers: int | None = None
    state: State = State.REGISTERS
    setmaxnreg: Mapping[int, int] | None = None
    hoists: bool = True
    over_scopes: bool = True
    slot_bytes: int = SLOT_BYTES


@dataclass
class Instrumented:
    """The new text, and what it marks."""

    text: str
    kernels: list[Kernel]


def instrument(
    text: str,
    selection: Selection | None = None,
    *,
    kernels: str | None = None,
    most_registers: int | None = None,
    state: State = State.REGISTERS,
    modes: Mapping[str, Mode] | None = None,
    in_program: bool = False,
) -> Instrumented:
    """Marks the kernels of a PTX module.

    `selection`: which marks (waits, all of them, by default). `kernels`: regular expression that a kernel's name must
    hold. `most_registers`: what their threads may take, where a kernel takes a limit: it has none itself (`.maxnreg`),
    and no `setmaxnreg`, which would then count where it had not. `state`: where the recorder's state is; in shared
    memory, a block takes SHARED_STATE_BYTES more of it. `modes`: all of this, for kernels by their names.
    `in_program`: the module is of a translation unit with host.hpp, whose descriptor the marks then use; kernels that
    have marks already stay as they are. Raises
    PtxError for text that is no PTX, holds no kernel, is for a GPU before sm_80, or is marked already.
    """
    module = read(_checked(text, in_program))
    arch = _arch(module)
    if not module.entries:
        raise PtxError("this PTX holds no kernel (.entry) with a body: there is nothing to mark")
    space, descriptor = _descriptor_of(module, in_program)
    _check_names(module)
    clean = [entry for entry in module.entries if not (in_program and _is_ours(module, entry, descriptor))]
    if not clean:
        raise PtxError(ALL_MARKED)
    chosen = [entry for entry in clean if kernels is None or re.search(kernels, entry.name)]
    if not chosen:
        names = ", ".join(entry.name for entry in clean[:8])
        raise PtxError(f"no kernel without marks has a name that holds {kernels or ''!r}: there are {names}")
    set_names = dict(zip(map(id, module.entries), _names(module), strict=True))
    every = Mode(selection or Selection(), most_registers, state)
    made: list[tuple[_Entry, Mode]] = []
    for own in chosen:
        mode = (modes or {}).get(own.name, every)
        made.append((_Entry(module, own, arch, set_names[id(own)], space, descriptor, in_program), mode))
    pieces = [piece for entry, mode in made if mode.selection for piece in entry.mark(mode)]
    if not pieces and any(mode.selection for _, mode in made):
        raise PtxError(f"{chosen[0].name} has no instructions: there is nothing to mark")
    for entry, mode in made:
        pieces += entry.limit(mode.most_registers) if mode.most_registers else []
        pieces += entry.move(mode.setmaxnreg) if mode.setmaxnreg else []
    pieces += place_callees(module)
    at = module.statements[module.entries[0].head].start
    at = min([at, *(module.statements[function.head].start for function in module.functions)])
    symbols = [*([] if in_program else [_descriptor(space)]), *(entry.symbol for entry, _ in made if entry.symbol)]
    symbols += lines_of_files(module)
    if any(entry.needs_shared for entry, _ in made):
        symbols.append(f".shared .align 4 .b32 {_OWN_SHARED};")
    if any(mode.selection and mode.state is State.SHARED for _, mode in made):
        symbols.append(declaration())
    if threads := max(entry.staged_threads for entry, _ in made):
        symbols.append(slots(max(entry.kernel.staged_bytes for entry, _ in made), threads))
    pieces.append((at, at, "\n".join(symbols) + "\n\n"))
    return Instrumented(splice(text, moved_down(module, pieces)), [entry.kernel for entry, _ in made])


def _check_names(module: Module) -> None:
    seen: set[str] = set()
    for entry in module.entries:
        if entry.name in seen:
            where = module.line(module.statements[entry.head].start)
            raise PtxError(f"line {where}: a second kernel named {entry.name}: ptxas takes no such module")
        seen.add(entry.name)


def _arch(module: Module) -> int:
    found = _ARCH.search(module.directive("target") or "")
    if module.directive("version") is None or found is None:
        raise PtxError("this is no PTX module: it has no .version or no .target with a GPU such as sm_90")
    if module.directive("address_size") == "32":
        raise PtxError("this PTX has addresses of 32 bits (.address_size 32): marks need 64")
    if int(found[1]) < _LEAST_ARCH:
        raise PtxError(f"this PTX is for {found[0]}: marks need sm_{_LEAST_ARCH} or newer")
    return int(found[1])


def _descriptor_of(module: Module, in_program: bool) -> tuple[str, str]:
    """Space and name of the descriptor that marks read."""
    if not in_program:
        return _space(module), layout.DESCRIPTOR_SYMBOL
    found = _OF_HOST.search(module.plain)
    if found is None:
        raise PtxError("this PTX is of no translation unit with warplens/host.hpp, which needs C++17")
    return "const", found[1]


def _is_ours(module: Module, entry: Function, descriptor: str) -> bool:
    """Whether a kernel is one of host.hpp, or its source has marks."""
    begin, end = module.statements[entry.first - 1].end, module.statements[entry.last].start
    return _OF_WARPLENS in entry.name or module.plain.find(descriptor, begin, end) >= 0


def _checked(text: str, in_program: bool) -> str:
    if layout.DESCRIPTOR_SYMBOL in text and not in_program:
        raise PtxError("this PTX has marks of warplens already: instrument what the compiler wrote")
    found = _OWN_NAME.search(without_remarks(text)) if any(name in text for name in _OWN_NAMES) else None
    if found and not (in_program and found[0].startswith(layout.SITES_SYMBOL_PREFIX)):
        where = f"{found[0]!r} is a name that marks use"
        raise PtxError(f"this PTX cannot be marked, for {where}: rename it, or instrument what the compiler wrote")
    if text.startswith(("\x7fELF", "!<arch>", "\x50\xed\x55\xba")):
        raise PtxError("this is machine code, not PTX: a binary that holds no PTX cannot be instrumented")
    if "\0" in text:
        raise PtxError("this is no PTX: it holds bytes of 0; cuobjdump -ptx takes the PTX out of a binary")
    return text


def _space(module: Module) -> str:
    """Constant memory for the descriptor, unless the module has all but used it up (64 KiB), or may have."""
    inside = {index for function in module.functions for index in range(function.first, function.last)}
    used = 0
    for index, (kind, start, _) in enumerate(module.statements):
        if kind == STATEMENT and module.text[start] == "." and index not in inside:
            used += _constant_bytes(module.bare(index))
    return "const" if used <= _CONSTANT_BYTES - 256 else "global"


def _constant_bytes(statement: str) -> int:
    """What a declaration takes of constant memory; all of it where its size cannot be told."""
    found = _CONST.match(statement)
    if found is None:
        return 0
    size = re.search(r"\.[bsuf](8|16|32|64)\b", found[1])
    vector = re.search(r"\.v([24])\b", found[1])
    count = int(vector[1]) if vector else 1
    for extent in re.findall(r"\[([^\[\]]*+)\]", found[1]):  # without a number: as many as there are initial values
        number = integer(extent.strip()) if extent.strip() else statement.count(",") + 1
        count = min(count * (_CONSTANT_BYTES if number is None else number), _CONSTANT_BYTES)
    return count * (int(size[1]) if size else 64) // 8


def _descriptor(space: str) -> str:
    size = layout.DESCRIPTOR.itemsize
    return f".visible .{space} .align 8 .b8 {layout.DESCRIPTOR_SYMBOL}[{size}];"


def _names(module: Module) -> Iterator[str]:
    """Names of the kernels' site sets, in the order of the kernels: fit for a symbol, no two names or hashes alike."""
    own = [entry.name for entry in module.entries]
    plain = {name for name in own if re.fullmatch(r"\w+", name)}
    names: set[str] = set()
    hashes: set[int] = set()
    tried: dict[str, int] = {}
    for kernel in own:
        base = name = re.sub(r"\W", "_", kernel)
        while name in names or (name in plain and name != kernel) or layout.sites_hash(name) in hashes:
            tried[base] = tried.get(base, 1) + 1
            name = f"{base}_{tried[base]}"
        names.add(name)
        hashes.add(layout.sites_hash(name))
        yield name


class _Entry:
    """One kernel on its way: its plan, its symbol, its pieces."""

    def __init__(
        self, module: Module, function: Function, arch: int, name: str, space: str, descriptor: str, in_program: bool
    ) -> None:
        self._flow = Flow(module, function)
        self._arch, self._space, self._descriptor, self._in_program = arch, space, descriptor, in_program
        self.name = name
        uses = frozenset(own.name for own in self._flow.code)
        head = module.bare(function.head)
        free = ".maxnreg" not in head and ".minnctapersm" not in head and "setmaxnreg" not in uses
        self.kernel = Kernel(function.name, None, takes_limit=free, uses=uses, asked=Asked.by(self._flow))
        self.symbol = ""
        self.needs_shared = False
        self.staged_threads = 0
        unknown = self._flow.unknown_branch
        if unknown is not None:
            raise PtxError(f"{function.name}: the target of {unknown.opcode} {unknown.operands} is not in the kernel")

    def mark(self, mode: Mode) -> list[Piece]:
        """The pieces; fills `kernel` and `symbol`."""
        assert mode.selection is not None
        flow = self._flow
        if not flow.code:
            self.kernel.left_out.append("not marked: it has no instructions")
            return []
        hoists = mode.hoists and _RECORDERS[mode.state].in_registers
        plan = Planner(flow, mode.selection, hoists=hoists, over_scopes=mode.over_scopes).plan()
        left_out = [*plan.left_out, *unmarked_calls(flow), *flow.not_read]
        if self._in_program:  # other units, and this one for other GPUs, may have a kernel of this name
            facts = repr((self.name, plan.sites)).encode("utf-8", "replace")
            self.name = f"{self.name[:_LONGEST_NAME]}_{hashlib.sha256(facts).hexdigest()[:8]}"
        digest = layout.sites_hash(self.name)
        site_set = {"name": self.name, "hash": digest, "sites": plan.sites, "left_out": left_out}
        self.kernel = replace(self.kernel, site_set=site_set, left_out=left_out, hoisted=len(plan.moves))
        self.symbol = _site_symbol(site_set, "weak" if self._in_program else "visible")
        facts_of_kernel = (
            layout.code_bits(len(plan.sites)),
            digest,
            flow.one_dimensional(),
            self._shared() if any(mark.settles for mark in plan.marks) else "0",
            self._space,
            self._descriptor,
            self._in_program,
        )
        recorder = _RECORDERS[mode.state](*facts_of_kernel)
        if recorder.in_registers and self._is_straight(plan):
            frugal = mode.state is State.FEWER_REGISTERS
            recorder = StraightRecorder(*facts_of_kernel, len(plan.marks), stored_together(flow, plan), frugal)
        if isinstance(recorder, StagedRecorder):
            recorder = replace(recorder, slot_bytes=mode.slot_bytes)
            threads = self._threads_of_slots(plan)
            with contextlib.suppress(NotTogetherError):
                pieces = Inserter(flow, plan, recorder).insert() if threads else []
                if pieces:
                    self.staged_threads = threads
                    self.kernel = replace(self.kernel, staged_bytes=staged_bytes(threads, mode.slot_bytes))
                    return pieces
            recorder = Recorder(*facts_of_kernel)
        return Inserter(flow, plan, recorder).insert()

    def _threads_of_slots(self, plan: Plan) -> int:
        """Threads of a block whose records can wait in shared memory; 0 where they cannot, as far as marks tell."""
        flow = self._flow
        threads = math.prod(sizes(flow.module.bare(flow.function.head), "reqntid") or (0,))
        in_part = any(flow.is_in_part(mark.index, mark.behind) for mark in plan.marks)
        return threads if threads <= MOST_THREADS and threads % 32 == 0 and not in_part and flow.loops else 0

    def limit(self, most_registers: int) -> list[Piece]:
        """The piece that limits its registers, where it takes one."""
        _, _, end = self._flow.module.statements[self._flow.function.head]
        return [(end, end, f"\n.maxnreg {most_registers}\n")] if self.kernel.takes_limit else []

    def move(self, moved: Mapping[int, int]) -> list[Piece]:
        """The pieces with which its roles ask for other numbers of registers."""
        return self.kernel.asked.pieces(self._flow, moved) if self.kernel.asked else []

    def _is_straight(self, plan: Plan) -> bool:
        """Whether each mark is passed once and their records fit one chunk."""
        some_times = any(mark.guard or self._flow.is_behind_jump(mark.index, mark.behind) for mark in plan.marks)
        if len(plan.marks) > MOST_STRAIGHT or some_times:
            return False
        blocks = [0, *(self._flow.block_of[mark.index] for mark in plan.marks)]
        return self._flow.passed_once(blocks)

    def _shared(self) -> str:
        """An address of shared memory that can be read, as `settle` in device.cuh wants it: of what the kernel has
        itself, for a variable of another kernel's would take its place here too.

        A kernel without any reads the word at 0, but where it may be in a cluster: there to read that is an illegal
        instruction. Of what a launch says the size of there may be nothing: it comes last.
        """
        named = {*_SYMBOL.findall("\n".join(own.operands for own in self._flow.code))}
        own = [found for found in self._declared_shared() if found[0] in named]
        fixed = next((name for name, of_launch in own if not of_launch), None)
        if fixed is not None:
            return fixed
        if self._arch >= _HAS_SYSTEM_SHARED and not self._may_be_in_cluster():
            return "0"
        if own:
            return own[0][0]
        self.needs_shared = True
        return _OWN_SHARED

    def _declared_shared(self) -> Iterator[tuple[str, bool]]:
        """Variables in shared memory that the kernel can name, and of each whether a launch says how large it is."""
        module, flow = self._flow.module, self._flow
        apart = {index for own in module.functions for index in range(own.first, own.last)}
        for index, (kind, start, _) in enumerate(module.statements[: flow.code[0].statement]):
            if kind == STATEMENT and module.text[start] == "." and (index not in apart or index >= flow.function.first):
                found = _SHARED.match(module.bare(index))
                if found:
                    yield found[1], found[0].startswith(".extern")

    def _may_be_in_cluster(self) -> bool:
        head = self._flow.module.bare(self._flow.function.head)
        own = _OF_CLUSTERS.search("\n".join(f"{own.opcode} {own.operands}" for own in self._flow.code))
        return own is not None or "cluster" in head or self._flow.may_call(_OF_CLUSTERS)


def site_text(site_set: dict[str, Any]) -> str:
    """A set of sites as a string: what WARPLENS_SITES_FROM leaves, with file, line and arrivals of each, and behind
    them what is not marked.

    Names and files come from the user's source: what would end a field or the string is U+FFFD in the table.
    """
    keys = ("name", "kind", "resource", "file", "line", "arrivals")
    rows = [["" if site[key] is None else _field(site[key]) for key in keys] for site in site_set["sites"]]
    text = "".join(layout.SITE_SEPARATOR + layout.FIELD_SEPARATOR.join(row) for row in rows)
    parts = [text, rows[0][3], rows[0][4], *map(_field, site_set["left_out"])]
    return layout.TAIL_SEPARATOR.join(parts)


def _field(value: str | int) -> str:
    return str(value).translate(_OF_TABLE)


def _site_symbol(site_set: dict[str, Any], linkage: str) -> str:
    data = (site_text(site_set) + "\0").encode("utf-8", "surrogateescape")
    listed = ",".join(map(str, data))
    return (
        f".{linkage} .global .align 1 .b8 {layout.SITES_SYMBOL_PREFIX}{site_set['name']}[{len(data)}] = {{{listed}}};"
    )
