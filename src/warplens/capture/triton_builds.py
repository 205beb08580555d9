"""What becomes of the machine code of a Triton kernel: which marks it gets is chosen by what they would cost it.

In: a compiled kernel, as Triton is about to load it. Out: machine code with marks that neither spills nor has ptxas
complain nor, where that can be had, leaves fewer blocks on an SM. Whoever compiled the kernel (the process, a worker,
an earlier run) and whatever cache it came from, this is the one door; nothing of it reaches a cache.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from warplens import layout
from warplens.capture import triton_inductor
from warplens.capture.chosen import IN_MEMORY, Built, Ways, fewer_and_fewer, gets, moves_of
from warplens.capture.modules import registers_and_frame, shared_bytes
from warplens.capture.residency import MOST_REGISTERS, Launch, fewer
from warplens.errors import PtxError
from warplens.instrument import Instrumented, Kernel, Mode, Selection, State, instrument
from warplens.instrument.head import sizes, target
from warplens.instrument.read import integer, without_comments
from warplens.instrument.shared_state import SHARED_STATE_BYTES
from warplens.instrument.sites import TOO_MANY
from warplens.instrument.staged import LARGE_SLOT_BYTES, SLOT_BYTES, staged_bytes

_SHARED_LIMIT: Final = 48 * 1024
"""Bytes of shared memory that a block may have where nothing is asked of the driver."""
_CLEAN: Final = "// warplens: registers and local bytes of the clean build:"


@dataclass
class Choice:
    """What a capture wants: kernels whose name holds `kernels`, these marks, compiled apart by `key`.

    `tell` says one line of what is not recorded, `remark` one of how the rest is; `notes` hold what is not marked.
    `staged`: records may wait in shared memory.
    """

    kernels: str | None
    selection: Selection
    key: str
    tell: Callable[[str], None]
    notes: list[str]
    remark: Callable[[str], None]
    staged: bool = True

    def takes(self, name: str) -> bool:
        """Whether a kernel of this name is wanted."""
        return re.search(self.kernels or "", name) is not None


@dataclass
class Marked:
    """PTX with marks, and its machine code."""

    ptx: str
    cubin: bytes


def mark(kernel: Any, choice: Choice, assemble: Callable[[str], bytes]) -> Marked | None:
    """The kernel with marks; None where it is not wanted or cannot have any, which is told.

    `kernel`: Triton's, not loaded yet. `assemble`: PTX in, machine code out. Raises nothing: recording must not harm
    the program.
    """
    name = str(getattr(kernel, "name", "a kernel"))
    if not choice.takes(name):
        return None
    facts = kernel.metadata
    backend = getattr(getattr(facts, "target", None), "backend", "cuda")
    if backend != "cuda":
        choice.tell(f"Triton compiles for {backend}: only kernels of NVIDIA GPUs are recorded")
        return None
    if int(getattr(facts, "profile_scratch_size", 0) or 0) > 0:
        choice.tell(f"{name} is instrumented by Proton already: it is not marked")
        return None
    try:
        text = _ptx_of(kernel)
        return _Builds(choice, assemble, kernel.asm["cubin"]).marked(text, name, facts)
    except Exception as error:
        choice.tell(f"{name} is not marked: {_first_line(error)}")
        return None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _ptx_of(kernel: Any) -> str:
    """What Triton keeps of its PTX, or the file of it in Triton's cache."""
    text = kernel.asm.get("ptx")
    if text is None:
        files = [path for name, path in (kernel.metadata_group or {}).items() if str(name).endswith(".ptx")]
        if not files:
            raise PtxError("Triton kept no PTX of it (TRITON_STORE_BINARY_ONLY?)")
        text = Path(files[0]).read_text(encoding="utf-8")
    return str(text)


class _Builds:
    """The builds of one kernel, from the most marks to the fewest."""

    def __init__(self, choice: Choice, assemble: Callable[[str], bytes], clean_cubin: bytes) -> None:
        self._choice, self._assemble, self._clean_cubin = choice, assemble, clean_cubin
        self._clean_says: Counter[str] | None = None

    def marked(self, text: str, name: str, facts: Any) -> Marked:
        """The marks that are wanted, or fewer, so that nothing spills, ptxas complains of nothing new, and as many
        blocks fit on an SM as before. What was tried goes into the notes."""
        clean = registers_and_frame(self._clean_cubin)
        blocks = launch_of(text, facts).blocks(clean[0])
        state = State.STAGED if self._choice.staged else State.REGISTERS
        plain = Mode(self._choice.selection, state=state)
        wanted = instrument(text, plain.selection, state=state)
        can = _ways(wanted.kernels, text, facts, clean[0])
        tried: list[tuple[int, Marked, Instrumented, str]] = []
        lines: list[str] = []
        for what, selection in fewer_and_fewer(self._choice.selection):
            for named, mode in can.modes(what, selection):
                modes = {own.name: mode for own in wanted.kernels}
                found = wanted if mode == plain else instrument(text, modes=modes)
                build = self._built(text, found, modes, clean)
                if isinstance(build, str):
                    lines.append(f"{name}: {named}: {build}")
                    continue
                marked, registers = build
                fits = launch_of(marked.ptx, facts).blocks(registers)
                tried.append((fits, marked, found, named))
                if fits >= blocks:
                    break
                lines.append(f"{name}: {named}: {fewer(fits, blocks)}")
            if tried and tried[-1][0] >= blocks:
                break
        if lines:
            self._choice.notes += [*lines, *(f"{name}: {line}" for line in can.untried)]
        if not tried:
            why = lines[-1].removeprefix(f"{name}: ")
            raise PtxError(f"its marks would change it, even if its begin and end alone were marked ({why})")
        fits, marked, found, named = tried[-1] if tried[-1][0] >= blocks else tried[0]
        if fits < blocks:
            self._choice.remark(f"{name}: its marks leave {fits} blocks on an SM instead of {blocks}")
        if not named.startswith("the marks asked for"):
            self._choice.remark(f"{name} has no registers for all of its marks: it gets {named}")
        elif any(state in named for state in IN_MEMORY.values()):
            self._choice.remark(f"{name}: {gets(named)}")
        elif lines:
            self._choice.notes.append(f"{name}: {gets(named)}")
        for kernel in found.kernels:
            for line in kernel.left_out:
                if TOO_MANY in line:
                    self._choice.remark(f"{kernel.name}: {line}")
                else:
                    self._choice.notes.append(f"{kernel.name}: {line}")
        return marked

    def _built(
        self, text: str, found: Instrumented, modes: dict[str, Mode], clean: tuple[int, int]
    ) -> tuple[Marked, int] | str:
        """The kernel with marks, and the registers of a thread; or what speaks against these modes.

        found: `text` with marks. clean: registers and local bytes of the clean build.
        """
        ptx = f"{found.text}\n{_CLEAN} {clean[0]} {clean[1]}\n"
        cubin, says = self._assembled(ptx)
        if complaint := self._new_complaint(says, text):
            return f"ptxas says {complaint}"
        registers, frame = registers_and_frame(cubin)
        spilled = (
            frame - clean[1] - max(layout.LOCAL_STATE_BYTES * (mode.state is State.LOCAL) for mode in modes.values())
        )
        if spilled > 0:  # ptxas may do so by its own choice, and not with a limit
            return f"{spilled} bytes spill"
        if any(mode.setmaxnreg for mode in modes.values()) and registers != clean[0]:
            return f"{registers} registers at launch in place of {clean[0]}"
        for kernel in found.kernels:
            wanted = SHARED_STATE_BYTES if modes[kernel.name].state is State.SHARED else kernel.staged_bytes
            more = shared_bytes(cubin, kernel.name) - shared_bytes(self._clean_cubin, kernel.name) if wanted else 0
            if more != wanted:  # what the launch asks for stands behind, and may need its alignment
                return f"shared memory moves by {more:,} bytes in place of {wanted:,}"
        return Marked(ptx, cubin), registers

    def _assembled(self, text: str) -> tuple[bytes, Counter[str]]:
        """The machine code, empty where ptxas refuses it for want of registers; what it complains of, and how often."""
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):  # what ptxas says, and what Triton prints of a failure
                cubin = self._assemble(text)
        except Exception as error:
            says = _complaints(str(error))
            if not says:
                raise
            return b"", says
        return cubin, _complaints(printed.getvalue())

    def _new_complaint(self, says: Counter[str], clean: str) -> str:
        """The first of them that the clean kernel has not, or not as often; it is assembled for that, once."""
        if says and self._clean_says is None:
            self._clean_says = self._assembled(clean)[1]
        return next((code for code, count in says.items() if count > (self._clean_says or Counter())[code]), "")


def _ways(kernels: list[Kernel], text: str, facts: Any, registers: int) -> Ways:
    """What can be tried with each choice of marks. registers: of a thread, in the clean build."""
    launch = launch_of(text, facts)
    blocks = launch.blocks(registers)
    most = launch.most_registers(blocks) if all(own.takes_limit for own in kernels) else None
    moves, untried = moves_of(kernels[0], registers, ignored=False) if len(kernels) == 1 else ([], "")
    static_bytes = launch_of(text, facts, dynamic=False).shared_bytes
    crowded = _crowded(launch, static_bytes, registers, SHARED_STATE_BYTES)
    hoisted = any(own.hoisted for own in kernels)
    slots = max(own.staged_bytes for own in kernels)
    threads = 32 * slots // SLOT_BYTES
    sizes = (*(LARGE_SLOT_BYTES if blocks == 1 else ()), SLOT_BYTES)  # else other blocks go on while a slot goes out
    fits = (size for size in sizes if not _crowded(launch, static_bytes, registers, staged_bytes(threads, size)))
    slot_bytes = next(fits, 0) if slots else 0
    spare = (most or MOST_REGISTERS) - registers
    return Ways(most, not crowded, moves, tuple(filter(None, (crowded, untried))), hoisted, spare, slot_bytes)


def _crowded(launch: Launch, static_bytes: int, registers: int, more_bytes: int) -> str:
    """Why the recorder's state cannot be in shared memory; "" where it can, and no launch fails by it.

    Triton raises the limit of what a launch may ask for, to what the GPU has, for kernels that ask for more than 48 KiB
    themselves.
    """
    more = replace(launch, shared_bytes=launch.shared_bytes + more_bytes)
    asked = launch.shared_bytes - static_bytes
    text = f"state in shared memory is not tried: with {more_bytes:,} bytes more"
    if static_bytes + more_bytes > _SHARED_LIMIT or (asked <= _SHARED_LIMIT and more.shared_bytes > _SHARED_LIMIT):
        return f"{text} than {launch.shared_bytes:,} a block would pass {_SHARED_LIMIT:,}, and could not be launched"
    before, now = launch.blocks(registers), more.blocks(registers)
    if now < max(before, 1):
        return f"{text} {fewer(now, before)}"
    return ""


def _complaints(log: str) -> Counter[str]:
    """How often ptxas says each of C75xx and C76xx."""
    out: Counter[str] = Counter()
    for (_, code), count in Built.of(log).complaints.items():
        out[code] += count
    return out


def assembler(kernel: Any) -> Callable[[str], bytes]:
    """Triton's own way from PTX to machine code for this kernel, with the options that it was compiled with."""
    facts = kernel.metadata._asdict()
    backend = importlib.import_module("triton.compiler.compiler").make_backend(kernel.metadata.target)
    options = backend.parse_options({**facts, "num_warps": 4})  # of one that is warp-specialised it may be any number
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, getattr(kernel.src, "language", None) or _language())

    def assemble(text: str) -> bytes:
        with _printing_what_ptxas_says():
            try:
                cubin: bytes = stages["cubin"](text, dict(facts))
            except Exception as error:
                if "Unsupported .version" not in str(error):
                    raise
                with triton_inductor.ptxas_of_workers():
                    cubin = stages["cubin"](text, dict(facts))
        return cubin

    return assemble


@contextlib.contextmanager
def _printing_what_ptxas_says() -> Iterator[None]:
    """Has Triton print the log of ptxas, where it knows how; its complaints are seen by that alone."""
    nvidia = getattr(getattr(importlib.import_module("triton"), "knobs", None), "nvidia", None)
    if not hasattr(nvidia, "dump_ptxas_log"):
        yield
        return
    own = vars(nvidia)  # to assign the attribute would set an environment variable too
    before = dict(own)
    own["dump_ptxas_log"] = True
    try:
        yield
    finally:
        own.pop("dump_ptxas_log", None)
        own.update({key: value for key, value in before.items() if key == "dump_ptxas_log"})


def _language() -> Any:
    """Of a kernel that came out of torch.compile's caches: it has lost its source, and its PTX needs none."""
    return importlib.import_module("triton.backends.compiler").Language.TRITON


def launch_of(text: str, facts: Any, *, dynamic: bool = True) -> Launch:
    """What a launch of this PTX asks of an SM beside registers. `facts`: Triton's metadata of the kernel; `dynamic`:
    with the shared memory that each launch asks for."""
    plain = without_comments(text)
    gpu, threads = target(plain), sizes(plain, "reqntid") or sizes(plain, "maxntid")
    shared = sum(integer(size) or 0 for size in re.findall(r"\.shared\b[^;]*?\.b8\s+[\w$]+\s*\[\s*(\w+)\s*\]", plain))
    warps = int(getattr(facts, "num_warps", 4))
    return Launch(
        gpu[1] if gpu else 0,
        threads[0] if threads else 32 * warps,
        shared + (int(getattr(facts, "shared", 0) or 0) if dynamic else 0),
    )


def clean_resources(ptx: str) -> tuple[int, int] | None:
    """Registers and local bytes of the clean build, as the marked PTX notes them."""
    found = re.search(rf"{re.escape(_CLEAN)} (\d+) (\d+)", ptx)
    return (int(found[1]), int(found[2])) if found else None
