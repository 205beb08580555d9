"""Marks in PTX: text in, text and sites out.

In: a PTX module, a `Selection` of marks. Out: the module with marks, and its sites. Pure: compiles nothing, reads no
file, imports no Polars, for it works in the traced process. What is asked for (`Selection`, `Budget`) is checked before
a program runs, and wants neither numpy nor what reads PTX: each name is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from warplens.instrument.module import Instrumented, Kernel, Mode, State, instrument, site_text
    from warplens.instrument.selection import Selection
    from warplens.instrument.thin import Budget

__all__ = ["Budget", "Instrumented", "Kernel", "Mode", "Selection", "State", "instrument", "site_text"]

_LIGHT: Final = {"Budget": "thin", "Selection": "selection"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LIGHT.get(name, 'module')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
