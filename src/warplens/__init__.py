"""warplens looks inside a GPU kernel: warps record timestamps, warplens puts them on one time axis and draws them.

Names are loaded at first use, so that `import warplens` costs nothing in the traced process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warplens.capture.compile import get_include as get_include
    from warplens.capture.options import RecordOptions as RecordOptions
    from warplens.errors import WarplensError as WarplensError
    from warplens.kernel.kernel import Kernel as Kernel
    from warplens.kernel.recording import record as record
    from warplens.render.export import export as export
    from warplens.render.plots import plot as plot
    from warplens.render.report import report as report
    from warplens.render.selection import Selection as Selection
    from warplens.trace import Trace as Trace
    from warplens.trace import open as open
    from warplens.trace.merge import merge as merge

__version__ = "0.1.0"

_HOMES = {
    "Kernel": "warplens.kernel.kernel",
    "RecordOptions": "warplens.capture.options",
    "Selection": "warplens.render.selection",
    "Trace": "warplens.trace",
    "WarplensError": "warplens.errors",
    "export": "warplens.render.export",
    "get_include": "warplens.capture.compile",
    "merge": "warplens.trace.merge",
    "open": "warplens.trace",
    "plot": "warplens.render.plots",
    "record": "warplens.kernel.recording",
    "report": "warplens.render.report",
}
__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'warplens' has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
