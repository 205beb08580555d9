"""What becomes of one compilation of a Triton kernel: which marks it gets is chosen by what they would cost it.

In: Triton's stages. Out: stages whose PTX has marks, and whose machine code neither spills nor, where that can be had,
leaves fewer blocks on an SM. Never lets a compilation fail that would have gone well without marks.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from warplens.capture.modules import registers_and_frame
from warplens.capture.residency import Launch
from warplens.errors import PtxError
from warplens.instrument import Instrumented, Selection, instrument

_FEWER: Final = (Selection("coarse"), Selection("coarse", kinds=()))
"""What is tried where the marks that are wanted spill: those outside of loops, then the kernel's begin and end."""
_CLEAN: Final = "// warplens: registers and local bytes of the clean build:"


@dataclass
class Choice:
    """What a capture wants: kernels whose name holds `kernels`, these marks, caches apart by `key`.

    `tell` says one line to the user, `notes` hold what is not marked.
    """

    kernels: str | None
    selection: Selection
    key: str
    tell: Callable[[str], None]
    notes: list[str]


class StagesHook:
    """What Triton calls: with no arguments for a key of its caches, with five when it is about to compile."""

    def __init__(self, choice: Choice, previous: Any) -> None:
        self._choice, self._previous = choice, previous

    def __call__(self, *arguments: Any) -> Any:
        """A key and its hash, or the stages changed in place; whoever was hooked before is called first."""
        if not arguments:
            before = self._previous() if self._previous is not None else ("", "")
            key = f"{before[0]}{self._choice.key}"
            return key, hashlib.sha256(key.encode()).hexdigest()
        out = self._previous(*arguments) if self._previous is not None else None
        stages = arguments[1]
        if "ptx" in stages and "cubin" in stages:
            built = _Built(self._choice, stages["ptx"], stages["cubin"])
            stages["ptx"], stages["cubin"] = built.ptx, built.cubin
        return out


class _Built:
    """The last two stages of one compilation: which marks the kernel gets is chosen by what they would cost it."""

    def __init__(self, choice: Choice, ptx: Any, cubin: Any) -> None:
        self._choice, self._ptx, self._cubin = choice, ptx, cubin
        self._assembled: dict[str, Any] = {}

    def ptx(self, source: Any, metadata: Any) -> Any:
        """Triton's PTX with marks, or as it is where it cannot have any."""
        text = self._ptx(source, metadata)
        name = str(metadata.get("name", ""))
        if not isinstance(text, str) or not re.search(self._choice.kernels or "", name):
            return text
        try:
            return self._marked(text, name, metadata)
        except Exception as error:  # recording must not harm the program
            self._choice.tell(f"{name} is not marked: {str(error).strip() or type(error).__name__}")
            return text

    def cubin(self, source: Any, metadata: Any) -> Any:
        """The machine code of what `ptx` gave."""
        found = self._assembled.get(source) if isinstance(source, str) else None
        return self._cubin(source, metadata) if found is None else found

    def _marked(self, text: str, name: str, metadata: Any) -> str:
        """The marks that are wanted, or fewer, so that nothing spills and as many blocks fit on an SM as before."""
        wanted = self._choice.selection
        launch = launch_of(text, metadata)
        clean = self._assemble(text, metadata)
        blocks = launch.blocks(clean[0])
        tried = []
        for selection in (wanted, *_FEWER):
            for most in (None, launch.most_registers(blocks)):
                found = instrument(text, selection, most_registers=most)
                marked = f"{found.text}\n{_CLEAN} {clean[0]} {clean[1]}\n"
                registers, frame = self._assemble(marked, metadata)
                if frame > clean[1]:  # it spills; ptxas may do so by its own choice, and not with a limit
                    continue
                fits = launch.blocks(registers)
                tried.append((fits, marked, found, selection is wanted))
                if fits >= blocks:
                    break
            if tried and tried[-1][0] >= blocks:
                break
        if not tried:
            raise PtxError("its registers would spill, even if its begin and end alone were marked")
        fits, marked, found, as_wanted = tried[-1] if tried[-1][0] >= blocks else tried[0]
        if fits < blocks:
            self._choice.tell(f"{name}: its marks leave {fits} blocks on an SM instead of {blocks}")
        self._tell_of(found, name, as_wanted)
        return marked

    def _tell_of(self, found: Instrumented, name: str, as_wanted: bool) -> None:
        """Tells what is not marked."""
        if not as_wanted:
            self._choice.tell(f"{name} has no registers for all of its marks: fewer are taken")
        for kernel in found.kernels:
            self._choice.notes += [f"{kernel.name}: {line}" for line in kernel.left_out]

    def _assemble(self, text: str, metadata: Any) -> tuple[int, int]:
        """Registers and bytes of local memory; keeps the machine code. What Triton prints of a failure is dropped."""
        with contextlib.redirect_stdout(io.StringIO()):
            self._assembled[text] = self._cubin(text, metadata)
        return registers_and_frame(self._assembled[text])


def launch_of(text: str, metadata: Any) -> Launch:
    """What a launch of this PTX asks of an SM beside registers."""
    arch = re.search(r"\.target\s+sm_(\d+)", text)
    threads = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)", text)
    shared = sum(int(size) for size in re.findall(r"\.shared\b[^;]*?\.b8\s+[\w$]+\[(\d+)\]", text))
    warps = int(metadata.get("num_warps", 4))
    return Launch(
        int(arch[1]) if arch else 0,
        int(threads[1]) if threads else 32 * warps,
        int(metadata.get("shared", 0) or 0) + shared,
    )


def clean_resources(ptx: str, launch: Launch, traced: dict[str, int]) -> dict[str, int] | None:
    """What the clean build takes, as the marked PTX notes it; None where an SM's blocks cannot be told as the driver
    does."""
    found = re.search(rf"{re.escape(_CLEAN)} (\d+) (\d+)", ptx)
    if found is None or launch.blocks(traced["registers"]) != traced["resident_blocks"]:
        return None
    registers, frame = int(found[1]), int(found[2])
    return {**traced, "registers": registers, "local_bytes": frame, "resident_blocks": launch.blocks(registers)}
