"""What commands print, and how they end.

In: renderables, JSON-able values, paths, names from files. Out: text on stdout; "wrote" lines on stdout (of `record`,
whose stdout is the program's, on stderr) and the "next" line on stderr, so that a pipe gets the answer alone. Escapes
names; decides nothing about the content.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from warplens.errors import FileError
from warplens.render.escape import visible

if TYPE_CHECKING:
    from rich.console import Console

    from warplens.trace import Trace

PIPE_WIDTH: Final = 120
"""Columns when stdout is no terminal and COLUMNS is not set."""

LEAST_WIDTH: Final = 40
"""In a narrower window the terminal breaks the lines: better than numbers that are cut."""

file_argument = click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
launch_option = click.option("--launch", type=click.IntRange(min=0), metavar="N", help="Only launch N.")
MAX_LISTED: Final = 10_000_000
_RANGE: Final = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def number_list(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    """The numbers that `0,7,100-131` names, as the callback of an option; a usage error for another text."""
    if value is None:
        return None
    found = [_RANGE.fullmatch(part.strip()) for part in value.split(",")]
    pairs = [(int(m[1]), int(m[2] or m[1])) for m in found if m is not None]
    if None in found or any(low > high for low, high in pairs):
        text = f"expected numbers and ranges such as 0,7,100-131, found {visible(value)!r}"
        raise click.BadParameter(text, ctx, param)
    if sum(high - low + 1 for low, high in pairs) > MAX_LISTED:
        raise click.BadParameter(f"expected at most {MAX_LISTED:,} numbers, found more", ctx, param)
    return [number for low, high in pairs for number in range(low, high + 1)]


def console() -> Console:
    """A rich console on stdout that interprets no markup and obeys NO_COLOR, COLUMNS and pipes."""
    from rich.console import Console

    plain = Console(markup=False, highlight=False, emoji=False)
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        plain.width = max(int(columns), LEAST_WIDTH)
    elif not plain.is_terminal:
        plain.width = PIPE_WIDTH
    else:  # a COLUMNS that is no width (rich takes 0 for one, and then prints nothing), or a window not told
        plain.width = max(shutil.get_terminal_size().columns, LEAST_WIDTH)
    return plain


def open_trace(path: Path) -> Trace:
    """The trace in `path`; FileError for what cannot be opened, whatever the reason."""
    from warplens.trace import open as open_file

    try:
        return open_file(path)
    except OSError as error:
        raise FileError(f"cannot open {path}: {error.strerror or error}") from error


def print_json(value: Any) -> None:
    """One JSON document; NaN and infinities become null, unknown types their text."""
    click.echo(json_text(value, indent=2))


def json_text(value: Any, indent: int | None = None) -> str:
    """The text of `print_json`."""
    return json.dumps(_finite(value), indent=indent, default=str, ensure_ascii=not _is_utf8(), allow_nan=False)


def finish(wrote: Sequence[Path] = (), following: str = "", *, err: bool = False) -> None:
    """The closing lines: a path a line on stdout (`err`: on stderr), and the next command to try on stderr."""
    for path in wrote:
        click.echo(f"wrote {visible(path, limit=4096)}", err=err)
    sys.stdout.flush()
    if following:
        with contextlib.suppress(OSError):  # a full or closed stderr does not spoil the answer
            click.echo(f"next: {following}", err=True)


def quoted(path: Path) -> str:
    """`path` as a shell and we take it, safe to print: what cannot be shown as $'...' of bash, zsh and ksh."""
    text = str(path)
    text = f"./{text}" if text.startswith("-") else text
    if visible(text, limit=len(text) + 1) == text:
        return shlex.quote(text)
    shown = "".join(
        c if c.isascii() and c.isprintable() and c not in "'\\" else "".join(f"\\x{b:02x}" for b in os.fsencode(c))
        for c in text
    )
    return f"$'{shown}'"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def _is_utf8() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
