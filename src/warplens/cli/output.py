"""What commands print, and how they end.

In: renderables, JSON-able values, paths, names from files. Out: text on stdout; "wrote" lines on stdout and the
"next" line on stderr, so that a pipe gets the answer alone. Escapes names; decides nothing about the content.
"""

from __future__ import annotations

import json
import os
import shlex
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

file_argument = click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
launch_option = click.option("--launch", type=click.IntRange(min=0), metavar="N", help="Only launch N.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def console() -> Console:
    """A rich console on stdout that interprets no markup and obeys NO_COLOR, COLUMNS and pipes."""
    from rich.console import Console

    plain = Console(markup=False, highlight=False, emoji=False)
    if not plain.is_terminal and "COLUMNS" not in os.environ:
        plain.width = PIPE_WIDTH
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
    click.echo(json.dumps(_finite(value), indent=2, default=str, ensure_ascii=not _is_utf8(), allow_nan=False))


def finish(wrote: Sequence[Path] = (), following: str = "") -> None:
    """The closing lines: a path a line on stdout, and the next command to try on stderr."""
    for path in wrote:
        click.echo(f"wrote {visible(path, limit=4096)}")
    sys.stdout.flush()
    if following:
        click.echo(f"next: {following}", err=True)


def quoted(path: Path) -> str:
    """`path` as a shell takes it, safe to print."""
    return visible(shlex.quote(str(path)), limit=4096)


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
