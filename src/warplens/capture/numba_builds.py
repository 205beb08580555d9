"""What becomes of a kernel that Numba has compiled: its PTX in, machine code with marks out.

In: a kernel of numba-cuda's, and the dispatcher that has its source and options. Out: machine code with marks, to be
loaded beside the clean one. Changes nothing of the kernel, and loads nothing.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, Final

from warplens.capture.assemble import Wish
from warplens.capture.python_builds import COOPERATIVE, Marked, Wanted, mark, symbols
from warplens.capture.tell import one_line
from warplens.errors import PtxError

_LINES: Final = re.compile(r"^\s*(?:\.(?:loc|file)\b.*|//.*)?$\n?", re.MULTILINE)
_OWN_NAME: Final = re.compile(r"_ZN[\w$]+|_cudapy_\w+")
"""Names that Numba counts up with each compilation: of functions, their parameters, shared and constant memory."""


def unmarkable(kernel: Any) -> str | None:
    """Why a kernel can have no marks; None where it can."""
    if kernel.cooperative:
        return COOPERATIVE
    if kernel.debug:
        return "it is compiled for debugging (debug=True)"
    if files := kernel._codelibrary._linking_files:
        names = sorted(Path(str(getattr(own, "name", own))).name for own in files)
        return f"it is linked with other code ({', '.join(names)}), whose variables a second module would not have"
    return None


def marked(kernel: Any, name: str, dispatcher: Any, wanted: Wanted) -> Marked | None:
    """The kernel with marks; None where it can have none, which is told.

    name: as users know it. dispatcher: what `@cuda.jit` made of its source; None where that is not known. Raises
    PtxError as `mark` does, and what Numba's compiler raises.
    """
    library = kernel._codelibrary
    text = ptx_of(library)
    if not kernel.lineinfo:
        try:
            text = with_lines(kernel, text, dispatcher)
        except Exception as error:
            wanted.remark(f"{name}: its marks have no lines of the source: {one_line(error)}")
    found = symbols(text)
    if len(found) != 1:
        raise PtxError(f"Numba's PTX of it has {len(found)} kernels: one was expected")
    most = library._max_registers
    return mark(text, {found[0]: name}, wanted, Wish(int(most) if most else None), {})


def ptx_of(library: Any) -> str:
    """What the library's machine code is assembled from: what comes out of the link where Numba links LTO-IR."""
    text: str = library.get_lto_ptx() if library._lto else library.get_asm_str()
    return text.rstrip("\0")


def with_lines(kernel: Any, text: str, dispatcher: Any) -> str:
    """The same PTX with lines of the source, by compiling it once more.

    Raises PtxError where it is not the same, as of a global variable that has changed since.
    """
    if dispatcher is None:
        raise PtxError("it is not launched by what @cuda.jit made of it")
    options = {**dispatcher.targetoptions, "lineinfo": True, "link": []}
    with warnings.catch_warnings():  # the program has heard of them, or asked for no lines
        warnings.simplefilter("ignore")
        again = type(kernel)(dispatcher.py_func, kernel.argument_types, **options)
    lined = ptx_of(again._codelibrary)
    if _code(lined) != _code(text):
        raise PtxError("compiled with lines (lineinfo=True) it is not the same code")
    return lined


def _code(text: str) -> str:
    """PTX without lines and comments, and with names that do not count."""
    names: dict[str, str] = {}
    return _OWN_NAME.sub(lambda found: names.setdefault(found[0], f"name_{len(names)}"), _LINES.sub("", text).strip())
