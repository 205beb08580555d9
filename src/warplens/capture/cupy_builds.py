"""What becomes of the machine code of a module that CuPy compiles: PTX in, machine code with marks out.

In: the PTX that CuPy's compiler made beside its machine code, the compiler's options. Out: machine code with marks, and
what is needed of each kernel when it is launched. Knows nothing of how CuPy loads or launches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warplens.capture.assemble import Wish
from warplens.capture.python_builds import COOPERATIVE, Kernel, Marked, Wanted, mark, symbols
from warplens.capture.tell import one_line
from warplens.errors import PtxError

_GLOBAL: Final = re.compile(r"__global__[^;{]*?\b((?!__)[A-Za-z_]\w*)\s*\(")
_SEPARATE: Final = ("--device-c", "-dc", "-rdc=true", "--relocatable-device-code=true")
_DEBUG: Final = ("-G", "--device-debug")

_files: dict[str, str] = {}
"""Sources of this process, by the names that they have in traces."""


def first_kernel(source: str) -> str:
    """The name of a source's first kernel; "a kernel" where none is found."""
    found = _GLOBAL.search(source)
    return found[1] if found else "a kernel"


def unmarkable(options: Sequence[str], cooperative: bool) -> str | None:
    """Why a module can have no marks; None where it can."""
    if cooperative:
        return COOPERATIVE
    if any(option in _SEPARATE for option in options):
        return "it is compiled to be linked (-rdc), and its PTX is no whole program"
    if any(option in _DEBUG for option in options):
        return "it is compiled for debugging (-G)"
    return None


@dataclass
class Build:
    """One compilation on its way. `file`: what the source is called in traces, for CuPy has it as a string. Is filled
    by `mark`."""

    source: str
    wanted: Wanted
    file: str = ""
    _names: dict[str, str] = field(default_factory=dict)
    _marked: Marked | None = None

    def __post_init__(self) -> None:
        self.file = _file_name(self.source)

    def mark(self, ptx: bytes, mapping: dict[str, str] | None, options: Sequence[str]) -> bytes | None:
        """Machine code with marks; None where none are wanted, or can be had, which is told.

        mapping: symbols by the expressions that name kernels; options: the compiler's. Raises nothing: recording must
        not harm the program.
        """
        self._marked = None
        try:
            text = bytes(ptx).decode("utf-8", "surrogateescape").rstrip("\0")
            name = re.escape(Path(self.file).name)
            text = re.sub(rf'(\.file\s+\d+\s+")[^"]*{name}"', rf'\g<1>{self.file}"', text)
            shown = {symbol: expression for expression, symbol in (mapping or {}).items()}
            self._names = {symbol: shown.get(symbol, symbol) for symbol in symbols(text)}
            self._marked = mark(text, self._names, self.wanted, Wish.of(options), {self.file: self.source})
        except Exception as error:
            self.wanted.tell(f"{first_kernel(self.source)} is not marked: {one_line(error)}")
        return self._marked.cubin if self._marked else None

    def kernels(self, module: int) -> dict[str, Kernel]:
        """All kernels by their symbols. module: the driver's handle of what was loaded."""
        if self._marked is not None:
            return self._marked.kernels(module)
        wanted = self.wanted
        return {
            symbol: Kernel(name, None, wanted.selection if wanted.takes(name) else None)
            for symbol, name in self._names.items()
        }


def _file_name(source: str) -> str:
    """Of a source that is no file: after its first kernel, and the same for the same text."""
    stem = first_kernel(source).replace(" ", "_")
    for number in range(1, len(_files) + 2):
        name = f"cupy/{stem}.cu" if number == 1 else f"cupy/{stem}-{number}.cu"
        if _files.setdefault(name, source) == source:
            return name
    raise PtxError("its source has no name")  # not reached: there are as many names as sources
