"""`info` and `query`: what a file is, and SQL over its tables.

In: a file, for `query` a statement. Out: text, JSON or CSV. `info` reads the manifest and the list of members alone
and decodes nothing. Strings from the file are escaped in every form of output.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from warplens.cli.output import (
    console,
    file_argument,
    finish,
    json_option,
    json_text,
    open_trace,
    print_json,
    quoted,
)
from warplens.errors import UsageError
from warplens.render.escape import visible, visible_tree

if TYPE_CHECKING:
    import polars as pl

_LAUNCHES_SHOWN: Final = 20
TABLES: Final = ("launches", "blocks", "spans", "sites", "problems", "audit")


@click.command()
@file_argument
@json_option
def info(file: Path, as_json: bool) -> None:
    """Print what FILE is: when and on what it was made, its kernels, launches, members and their sizes."""
    manifest = open_trace(file).manifest
    members = _members(file)
    if as_json:
        facts = {"file": str(file), "bytes": file.stat().st_size, "members": members, "manifest": manifest}
        print_json(visible_tree(facts))
    else:
        _print_info(file, manifest, members)
    finish(following=f"warplens summary {quoted(file)}")


def _members(file: Path) -> list[dict[str, Any]]:
    """Names and sizes of the file's members; none for the torso of a recording, which has no directory of them."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError):
        return []
    return [{"name": m.filename, "bytes": m.file_size, "stored_bytes": m.compress_size} for m in entries]


def _print_info(file: Path, manifest: dict[str, Any], members: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from warplens.render.pick import byte_size

    facts = Table.grid(padding=(0, 2, 0, 0))
    for label, text in _facts(file, manifest):
        facts.add_row(Text(label, style="bold"), Text(visible(text, limit=2000)))
    launches = Table("launch", "kernel", "grid", "block", "lost", box=None, pad_edge=False, header_style="bold")
    entries = manifest.get("launches") or []
    names = [k.get("name") for k in manifest.get("kernels") or []]
    for index, entry in enumerate(entries[:_LAUNCHES_SHOWN]):
        number = entry.get("kernel")
        name = names[number] if isinstance(number, int) and 0 <= number < len(names) else "?"
        shapes = ("x".join(str(n) for n in entry.get(axis) or ["?"]) for axis in ("grid", "block"))
        cells = (str(index), name, *shapes, f"{entry.get('lost_events') or 0:,}")
        launches.add_row(*(Text(visible(c, limit=60)) for c in cells))
    content = Table("member", "size", "in the file", box=None, pad_edge=False, header_style="bold")
    for member in members:
        sizes = (byte_size(member[k]) for k in ("bytes", "stored_bytes"))
        content.add_row(Text(visible(member["name"], limit=60)), *(Text(s, justify="right") for s in sizes))
    terminal = console()
    terminal.print(facts)
    for table in (launches, content):
        if table.row_count:
            terminal.print(Text(), table, sep="\n")
        if table is launches and len(entries) > _LAUNCHES_SHOWN:
            terminal.print(Text(f"{len(entries) - _LAUNCHES_SHOWN} more launches in --json", style="dim"))


def _facts(file: Path, manifest: dict[str, Any]) -> list[tuple[str, str]]:
    from warplens.render.facts import entries, number
    from warplens.render.pick import byte_size

    written = ".".join(str(v) for v in manifest.get("version") or ["?"])
    state = "complete" if manifest.get("complete", True) else "INCOMPLETE: the recording did not finish"
    stopped = manifest.get("stopped")
    if stopped:
        state = f"INCOMPLETE: the kernel was stopped after {stopped['after_s']:.3g} s: {stopped['why']}"
    facts = [("file", f"{file}, {byte_size(file.stat().st_size)}, {state}")]
    by = f"warplens {manifest['warplens']}" if manifest.get("warplens") else "a program with warplens/host.hpp"
    facts.append(("format", f"{written}, written by {by} at {manifest.get('created')}"))
    device = manifest.get("device")
    if device:
        capability = ".".join(str(v) for v in entries(device.get("compute_capability")) or ["?"])
        version = number(device.get("cuda_driver_version"))
        cuda = "?" if version is None else f"{int(version) // 1000}.{int(version) % 1000 // 10}"
        text = f"{device.get('name')}, compute capability {capability}, {device.get('sm_count')} SMs"
        facts.append(("device", f"{text}, driver {device.get('driver')} (CUDA {cuda})"))
    else:
        facts.append(("device", "not known"))
    for key in ("note", "host"):
        if manifest.get(key):
            facts.append((key, str(manifest[key])))
    if manifest.get("command"):
        facts.append(("command", " ".join(str(word) for word in manifest["command"])))
    room = f"{byte_size(manifest.get('capacity_bytes') or 0)} of buffers, keep {manifest.get('keep') or 'oldest'}"
    facts.append(("policy", f"{manifest.get('policy')}, {room}"))
    for sites in manifest.get("site_sets") or []:
        names = ", ".join(str(s.get("name")) for s in sites.get("sites") or [])
        facts.append(("sites", f"{sites.get('name')}: {names}"))
    for source in manifest.get("sources") or []:
        facts.append(("source", str(source.get("path"))))
    return facts


@click.command()
@file_argument
@click.argument("sql")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, all rows.")
@json_option
@click.option("--rows", type=click.IntRange(min=1), default=40, show_default=True, help="Rows of the text table.")
def query(file: Path, sql: str, as_csv: bool, as_json: bool, rows: int) -> None:
    """Run the statement SQL over the tables launches, blocks, spans, sites, problems and audit of FILE.

    Example: warplens query run.wlens
    "select name, avg(duration_cycles) from spans join sites using (site) group by name"
    """
    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other")
    frame = _select(file, sql)
    if as_json:
        print_json(visible_tree(frame.to_dicts()))
    elif as_csv:
        from warplens.render.export import as_cells

        click.echo(as_cells(_flat(frame)).write_csv(), nl=False)
    else:
        _print_frame(frame, min(rows, frame.height))
    finish(following=f"warplens summary {quoted(file)}")


def _select(file: Path, sql: str) -> pl.DataFrame:
    import polars as pl

    trace = open_trace(file)
    try:
        frame = trace.sql(sql)
    except (OSError, UnicodeError) as error:  # a file that the statement names; a statement that is not UTF-8
        raise UsageError(f"the query was refused: {error}") from error
    except UsageError as error:
        columns = "\n".join(f"  {name}: {', '.join(getattr(trace, name).columns)}" for name in TABLES)
        raise UsageError(f"{error}\n{columns}") from error
    escaped = [_escaped(c) if c.dtype == pl.String else c for c in frame.iter_columns()]
    names: list[str] = []
    for name in frame.columns:  # names that differ may look alike
        shown = visible(name)
        names.append(shown if shown not in names else f"{shown} ({len(names)})")
    return pl.DataFrame([c.alias(name) for c, name in zip(escaped, names, strict=True)])


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with what CSV cannot hold (lists, structs, bytes) as JSON text."""
    import polars as pl

    held = [c.dtype.is_nested() or c.dtype in (pl.Binary, pl.Object) for c in frame.iter_columns()]
    texts = [
        pl.Series(c.name, [None if v is None else json_text(visible_tree(v)) for v in c.to_list()], pl.String)
        if odd
        else c
        for c, odd in zip(frame.iter_columns(), held, strict=True)
    ]
    return pl.DataFrame(texts)


def _escaped(column: pl.Series) -> pl.Series:
    known = {value: visible(value, limit=10_000) for value in column.unique() if value is not None}
    return column.replace(list(known), list(known.values()))


def _print_frame(frame: pl.DataFrame, rows: int) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, dtype in frame.schema.items():
        numeric = dtype.is_numeric()
        justify: Any = "right" if numeric else "left"
        table.add_column(Text(visible(name, limit=60)), justify=justify, no_wrap=numeric, overflow="fold")
    for row in frame.head(rows).iter_rows():
        table.add_row(*(Text("" if value is None else visible(value)) for value in row))
    terminal = console()
    # Numbers are never cut: a window that is too narrow for them breaks the lines.
    least = sum(
        max(len(visible(c.name)), *(len(str(v)) for v in c.head(rows).to_list()), 4) + 2 if c.dtype.is_numeric() else 14
        for c in frame.iter_columns()
    )
    terminal.width = max(terminal.width, least)
    terminal.print(table)
    more = f" ({frame.height - rows:,} more: --rows N, --csv or --json)" if frame.height > rows else ""
    terminal.print(Text(f"{frame.height:,} rows{more}", style="dim"))
