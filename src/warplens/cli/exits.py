"""Exit codes of the command line: the one place that turns what happened into a number.

In: an exception, or a trace that was read without one. Out: the exit code and, for an exception, its one message.
Errors of warplens carry their code (errors.py); a test compares both with the table in the documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from warplens.errors import FileError, UsageError, WarplensError

if TYPE_CHECKING:
    from warplens.trace import Trace

FINE: Final = 0
USAGE: Final = UsageError.exit_code  # 2
LOSSES: Final = 4
"""The trace was read and shown, and has lost events or a problem of severity loss or error."""
MISSING: Final = 5
"""GPU, driver or compiler missing."""
INTERNAL: Final = 70
"""A fault of warplens itself (EX_SOFTWARE of sysexits.h)."""
INTERRUPTED: Final = 130
"""Ctrl-C, as shells count it."""


def exit_of(error: BaseException) -> tuple[int, str]:
    """Exit code of an exception, and the message to print."""
    if isinstance(error, WarplensError):
        return error.exit_code, str(error)
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = f"\ntry: {context.command_path} --help" if context is not None else ""
        return USAGE, " ".join(error.format_message().split()) + hint  # click breaks and indents a list of choices
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return INTERRUPTED, "interrupted"
    if isinstance(error, OSError):  # the disk or the stream, not us: /dev/full, a name too long
        place = f"{error.filename}: " if error.filename else ""
        return FileError.exit_code, f"cannot read or write: {place}{error.strerror or error}"
    if isinstance(error, ImportError):
        return MISSING, f"a package is missing or broken: {error}\ntry: warplens doctor"
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return INTERNAL, f"{text}\nthis is a fault of warplens; WARPLENS_TRACEBACK=1 shows where"


def exit_of_trace(trace: Trace, launch: int | None = None) -> int:
    """LOSSES when the trace (or `launch` of it) lost events or has a problem worse than a note, else FINE."""
    launches, problems = trace.launches, trace.problems
    if launch is not None:
        launches = launches.filter(launches["launch"] == launch)
        problems = problems.filter((problems["launch"] == launch) | problems["launch"].is_null())
    lost = int(launches["lost_events"].sum()) + int(launches["lost_chunks"].sum())
    return LOSSES if lost or problems["severity"].is_in(["loss", "error"]).any() else FINE
