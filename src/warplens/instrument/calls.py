"""What a kernel calls: functions get no marks, and here is said which they are, from where they are called, and how
often they wait.

In: a `Flow`. Out: lines. A function that is declared alone, or called through a pointer, may do anything.
"""

from __future__ import annotations

from typing import Final

from warplens.instrument.flow import Flow
from warplens.instrument.instruction import Instruction
from warplens.instrument.read import file_name
from warplens.instrument.waits import Waits

_MOST_LINES: Final = 16
_MOST_PLACES: Final = 6
_POINTER: Final = "through a pointer"


def unmarked_calls(flow: Flow) -> list[str]:
    """A line for each function that the kernel calls itself: "_Z3addv (k.cu:7, 9): what it does is not marked, ..."."""
    places: dict[str, dict[str, None]] = {}
    for own in flow.code:
        if own.name == "call":
            places.setdefault(_called(own), {})[_place(flow, own)] = None
    known: dict[str, tuple[int, list[str]]] = {}
    lines = [_line(flow, name, list(where), known) for name, where in [*places.items()][:_MOST_LINES]]
    more = len(places) - _MOST_LINES
    return lines if more <= 0 else [*lines, f"{more} more functions are called: none is marked"]


def _line(flow: Flow, name: str, where: list[str], known: dict[str, tuple[int, list[str]]]) -> str:
    shown = ", ".join(where[:_MOST_PLACES]) + (f" and {len(where) - _MOST_PLACES} more" if where[_MOST_PLACES:] else "")
    if name == _POINTER:
        return f"call {_POINTER} ({shown}): what is called there is not marked"
    if all(own.name != name for own in flow.module.functions):
        return f"call of {name} ({shown}): it stands in another module and is not marked"
    waits, unknown = _waits(flow, name, known)
    holds = [f"{waits} wait{'s' if waits > 1 else ''} among it"] if waits else []
    holds += ["nor what it calls in other modules"] if unknown else []
    return ", ".join([f"call of {name} ({shown}): what it does is not marked", *holds])


def _waits(flow: Flow, name: str, known: dict[str, tuple[int, list[str]]]) -> tuple[int, bool]:
    """Waits in a function of the module and in those that it calls; whether it calls what is not in it. `known`: of
    functions that were looked at, how often each waits and what it calls."""
    functions = {own.name: own for own in flow.module.functions}
    seen: set[str] = set()
    pending = [name]
    waits, unknown = 0, False
    while pending:
        called = pending.pop()
        if called in seen:
            continue
        seen.add(called)
        if called not in functions:
            unknown = True
            continue
        if called not in known:
            own = Flow(flow.module, functions[called])
            calls = [_called(call) for call in own.code if call.name == "call"]
            known[called] = (len(Waits(own).waits) if own.code else 0, calls)
        waits += known[called][0]
        pending += known[called][1]
    return waits, unknown


def _called(own: Instruction) -> str:
    return _POINTER if not own.called or own.called.startswith("%") else own.called


def _place(flow: Flow, own: Instruction) -> str:
    number, line, _ = own.place
    file = file_name(flow.module.files.get(number, "")) if line else ""
    if file:
        return f"{file}:{line}"
    return f"ptx:{flow.module.line(flow.module.statements[own.statement].start)}"
