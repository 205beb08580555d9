"""What becomes of PTX that a Python package has compiled: machine code with marks.

In: PTX, the names that its kernels have for users, what the compiler's options say to ptxas. Out: machine code with
marks, and what is needed of each kernel when it is launched. Knows nothing of how a package loads or launches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from warplens.capture.assemble import Wish, assemble
from warplens.capture.chosen import IN_MEMORY, Chosen, choose
from warplens.capture.python_manifest import Loaded
from warplens.capture.residency import Launch
from warplens.instrument import Kernel as Instrumented
from warplens.instrument import Selection, State
from warplens.instrument.head import head_of, sizes, target
from warplens.instrument.read import without_comments
from warplens.instrument.sites import TOO_MANY

COOPERATIVE: Final = "it is launched cooperatively, and marks could leave too few blocks on the GPU"
_ENTRY: Final = re.compile(r"\.entry\s+([\w$]+)")
_AS_WANTED: Final = "it gets the marks asked for"


@dataclass(eq=False)
class Kernel:
    """A kernel that a package has loaded while recording.

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


@dataclass
class Wanted:
    """What a capture wants of a module.

    `selection`: which marks; `takes`: whether a kernel of this name is wanted; `tell` says one line of what is not
    recorded, `remark` one of how the rest is.
    """

    selection: Selection
    takes: Callable[[str], bool]
    tell: Callable[[str], None]
    remark: Callable[[str], None]


@dataclass
class Marked:
    """A module with marks. `names`: of all its kernels, by their symbols; `texts`: sources that are no files."""

    names: dict[str, str]
    cubin: bytes
    wanted: Wanted
    texts: dict[str, str] = field(default_factory=dict)
    _text: str = ""
    _chosen: Chosen = field(default_factory=lambda: Chosen(None))

    def kernels(self, module: int) -> dict[str, Kernel]:
        """All kernels by their symbols. module: the driver's handle of what was loaded."""
        marked = {own.name: own for own in self._chosen.kernels}
        out = {}
        for symbol, name in self.names.items():
            own = marked.get(symbol)
            loaded = self._loaded(symbol, own, module) if own is not None and own.site_set else None
            out[symbol] = Kernel(name, loaded, self.wanted.selection if self.wanted.takes(name) else None)
        return out

    def _loaded(self, symbol: str, own: Instrumented, module: int) -> Loaded:
        assert own.site_set is not None
        clean, plain = self._chosen.clean, without_comments(self._text)
        gpu = target(plain)
        known = symbol in clean.registers
        return Loaded(
            name=self.names[symbol],
            symbol=symbol,
            module=module,
            function=0,
            cubin=self.cubin,
            site_set=own.site_set,
            level=self.wanted.selection.level,
            launch=Launch(gpu[1] if gpu else 0, 0, clean.shared.get(symbol, 0)),
            cluster=sizes(head_of(plain, symbol), "reqnctapercluster") or (1, 1, 1),
            clean=(clean.registers[symbol], clean.frames.get(symbol, 0)) if known else None,
            target=gpu[0] if gpu else "",
            left_out=tuple(f"{self.names[symbol]}: {line}" for line in own.left_out),
            texts=self.texts,
        )


def symbols(text: str) -> list[str]:
    """The kernels of a PTX module, as it names them."""
    return [found[1] for found in _ENTRY.finditer(without_comments(text))]


def mark(text: str, names: Mapping[str, str], wanted: Wanted, wish: Wish, texts: dict[str, str]) -> Marked | None:
    """The module with marks; None where none are wanted, or can be had, which is told.

    names: of kernels for users, by their symbols, where they differ. Raises PtxError as `choose` and `assemble` do.
    """
    shown = {symbol: names.get(symbol, symbol) for symbol in symbols(text)}
    taken = [re.escape(symbol) for symbol, name in shown.items() if wanted.takes(name)]
    if not taken:
        return None
    made: dict[str, bytes] = {}

    def log_of(text: str) -> str:
        made[text], log = assemble(text, wish)
        return log

    chosen = choose(text, wanted.selection, log_of, kernels=f"^(?:{'|'.join(taken)})$")
    for line in chosen.lines:
        symbol, _, rest = line.partition(": ")
        if rest.startswith("it gets") and not rest.startswith(_AS_WANTED):
            wanted.remark(f"{shown.get(symbol, symbol)}: {rest}, for more would spill or crowd out blocks")
        elif TOO_MANY in rest or (rest.startswith("it gets") and IN_MEMORY[State.LOCAL] in rest):
            wanted.remark(f"{shown.get(symbol, symbol)}: {rest}")
    if chosen.text is None:
        return None
    return Marked(shown, made[chosen.text], wanted, texts, text, chosen)
