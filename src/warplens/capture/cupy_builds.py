"""What becomes of the machine code of a module that CuPy compiles: PTX in, machine code with marks out.

In: the PTX that CuPy's compiler made beside its machine code, the compiler's options. Out: machine code with marks, and
what is needed of each kernel when it is launched. Knows nothing of how CuPy loads or launches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warplens.capture.assemble import Wish, assemble
from warplens.capture.chosen import Chosen, choose
from warplens.capture.python_manifest import Loaded
from warplens.capture.residency import Launch
from warplens.errors import PtxError
from warplens.instrument import Kernel as Instrumented
from warplens.instrument import Selection

_ENTRY: Final = re.compile(r"\.entry\s+([\w$]+)([^{;]*)")
_TARGET: Final = re.compile(r"\.target\s+(sm_(\d+)\w*)")
_CLUSTER: Final = re.compile(r"\.reqnctapercluster\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")
_GLOBAL: Final = re.compile(r"__global__[^;{]*?\b((?!__)[A-Za-z_]\w*)\s*\(")
_SEPARATE: Final = ("--device-c", "-dc", "-rdc=true", "--relocatable-device-code=true")
_AS_WANTED: Final = "it gets the marks asked for"
_DEBUG: Final = ("-G", "--device-debug")

_files: dict[str, str] = {}
"""Sources of this process, by the names that they have in traces."""


@dataclass(eq=False)
class Kernel:
    """A kernel of a module that was compiled while recording.

    `name`: as its users know it, `scale<float>`. `loaded`: None for one without marks. `selection`: the marks that were
    asked for, None where none were. `function`: the driver's handle, once it is known. `owner`: what keeps the module
    loaded, so that it is there as long as somebody may write to its memory. `settled`: by which recording, as its door
    has it: launches are not told any more.
    """

    name: str
    loaded: Loaded | None
    selection: Selection | None
    function: int = 0
    owner: Any = None
    settled: object = None


def first_kernel(source: str) -> str:
    """The name of a source's first kernel; "a kernel" where none is found."""
    found = _GLOBAL.search(source)
    return found[1] if found else "a kernel"


def unmarkable(options: Sequence[str], cooperative: bool) -> str | None:
    """Why a module can have no marks; None where it can."""
    if cooperative:
        return "it is launched cooperatively, and marks could leave too few blocks on the GPU"
    if any(option in _SEPARATE for option in options):
        return "it is compiled to be linked (-rdc), and its PTX is no whole program"
    if any(option in _DEBUG for option in options):
        return "it is compiled for debugging (-G)"
    return None


@dataclass
class Build:
    """One compilation on its way.

    `selection`: which marks; `takes`: whether a kernel of this name is wanted; `tell` says one line to the user.
    `file`: what the source is called in traces, for CuPy has it as a string. Is filled by `mark`.
    """

    source: str
    selection: Selection
    takes: Callable[[str], bool]
    tell: Callable[[str], None]
    file: str = ""
    _text: str = ""
    _names: dict[str, str] = field(default_factory=dict)
    _chosen: Chosen | None = None
    _cubin: bytes = b""

    def __post_init__(self) -> None:
        self.file = _file_name(self.source)

    def mark(self, ptx: bytes, mapping: dict[str, str] | None, options: Sequence[str]) -> bytes | None:
        """Machine code with marks; None where none are wanted, or can be had, which is told.

        mapping: symbols by the expressions that name kernels; options: the compiler's. Raises nothing: recording must
        not harm the program.
        """
        try:
            text = bytes(ptx).decode("utf-8", "surrogateescape").rstrip("\0")
            name = re.escape(Path(self.file).name)
            self._text = re.sub(rf'(\.file\s+\d+\s+")[^"]*{name}"', rf'\g<1>{self.file}"', text)
            shown = {symbol: expression for expression, symbol in (mapping or {}).items()}
            self._names = {found[1]: shown.get(found[1], found[1]) for found in _ENTRY.finditer(self._text)}
            return self._marked(Wish.of(options))
        except Exception as error:
            self._chosen = None
            self.tell(f"{first_kernel(self.source)} is not marked: {one_line(error)}")
            return None

    def _marked(self, wish: Wish) -> bytes | None:
        wanted = [re.escape(symbol) for symbol, name in self._names.items() if self.takes(name)]
        if not wanted:
            return None
        made: dict[str, bytes] = {}

        def log_of(text: str) -> str:
            made[text], log = assemble(text, wish)
            return log

        pattern = f"^(?:{'|'.join(wanted)})$"
        self._chosen = own = choose(self._text, self.selection, log_of, kernels=pattern)
        for line in own.lines:
            symbol, _, rest = line.partition(": ")
            if rest.startswith("it gets") and not rest.startswith(_AS_WANTED):
                self.tell(f"{self._names.get(symbol, symbol)}: {rest}, for more would spill or crowd out blocks")
        if own.text is None:
            return None
        self._cubin = made[own.text]
        return self._cubin

    def kernels(self, module: int) -> dict[str, Kernel]:
        """All kernels by their symbols. module: the driver's handle of what was loaded."""
        chosen = self._chosen
        marked = {own.name: own for own in chosen.kernels} if chosen is not None else {}
        out = {}
        for symbol, name in self._names.items():
            own = marked.get(symbol)
            loaded = self._loaded(symbol, own, module) if own is not None and own.site_set else None
            out[symbol] = Kernel(name, loaded, self.selection if self.takes(name) else None)
        return out

    def _loaded(self, symbol: str, own: Instrumented, module: int) -> Loaded:
        assert self._chosen is not None
        assert own.site_set is not None
        clean, target = self._chosen.clean, _TARGET.search(self._text)
        head = next(found[2] for found in _ENTRY.finditer(self._text) if found[1] == symbol)
        cluster = _CLUSTER.search(head)
        known = symbol in clean.registers
        return Loaded(
            name=self._names[symbol],
            symbol=symbol,
            module=module,
            function=0,
            cubin=self._cubin,
            site_set=own.site_set,
            level=self.selection.level,
            launch=Launch(int(target[2]) if target else 0, 0, clean.shared.get(symbol, 0)),
            cluster=tuple(int(size or 1) for size in cluster.groups()) if cluster else (1, 1, 1),
            clean=(clean.registers[symbol], clean.frames.get(symbol, 0)) if known else None,
            target=target[1] if target else "",
            left_out=tuple(f"{self._names[symbol]}: {line}" for line in own.left_out),
            texts={self.file: self.source},
        )


def one_line(error: Exception) -> str:
    """An error's first line, or its class."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _file_name(source: str) -> str:
    """Of a source that is no file: after its first kernel, and the same for the same text."""
    stem = first_kernel(source).replace(" ", "_")
    for number in range(1, len(_files) + 2):
        name = f"cupy/{stem}.cu" if number == 1 else f"cupy/{stem}-{number}.cu"
        if _files.setdefault(name, source) == source:
            return name
    raise PtxError("its source has no name")  # not reached: there are as many names as sources
