"""`audit`: what each mark measures, of a trace or of a cubin.

In: a `.wlens` file, whose audit was made as it was recorded, or a cubin that nvdisasm is asked about now. Out: a table
and the findings, or JSON. Needs no GPU.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from warplens.cli.output import console, finish, json_option, open_trace, print_json, quoted
from warplens.errors import FileError, FormatError, SitesError, UsageError
from warplens.render.escape import visible, visible_tree

if TYPE_CHECKING:
    from warplens.audit.sass import Section

_MAGIC: Final = b"\x7fELF"
_ZIP: Final = b"PK\x03\x04"
_MAX_CUBIN_BYTES: Final = 256 << 20
_LOOK_BYTES: Final = 64 << 10
_FACTS: Final = {
    "instructions": "instructions",
    "loads": "loads",
    "loads_in_flight": "loads in flight at most",
    "bulk_loads": "bulk loads",
    "registers": "registers",
    "shared_bytes": "shared B",
    "local_bytes": "local B (spills)",
    "resident_blocks": "resident blocks an SM",
}


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("-k", "--kernel", metavar="REGEX", help="Of a cubin: the traced kernel, by its mangled name.")
@click.option("--clean", metavar="REGEX", help="Of a cubin: the same kernel without marks, to compare with.")
@click.option(
    "--clean-file",
    type=click.Path(path_type=Path),
    metavar="CUBIN",
    help="Of a cubin: another one that has it; by the traced kernel's name, or by --clean.",
)
@click.option("--sites", metavar="NAME", help="Of a cubin: the kernel's set of sites, where there are several.")
@json_option
def audit(
    file: Path, kernel: str | None, clean: str | None, clean_file: Path | None, sites: str | None, as_json: bool
) -> None:
    """Say what each mark measures: the loads under way where its clock is read, and what was waited for before.

    FILE is a trace (.wlens) or a cubin. A cubin should be built with -lineinfo; nvdisasm must be there.
    """
    head = _head(file)
    if head == _MAGIC:
        try:
            kernels = [_of_cubin(file, kernel, clean, clean_file, sites)]
        except SitesError as error:
            raise FileError(f"{file}: {error}") from error
    elif kernel or clean or clean_file or sites:
        raise UsageError(f"--kernel, --clean, --clean-file and --sites choose within a cubin: {file} is none")
    else:
        if head and head != _ZIP:
            raise FileError(f"{file}: expected a trace (.wlens) or a cubin, found {_what_else(file, head)}")
        kernels = _of_trace(file)
    if as_json:
        print_json(visible_tree({"file": str(file), "kernels": kernels}))
    else:
        for own in kernels:
            _print(own)
    finish(following="" if head == _MAGIC else f"warplens summary {quoted(file)}")


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(len(_MAGIC)) if file.is_file() else b""
    except OSError as error:
        raise FileError(f"cannot open {file}: {error.strerror or error}") from error


def _what_else(file: Path, head: bytes) -> str:
    """What a file is that holds no machine code by itself, and how to come by that."""
    from warplens.instrument.head import target
    from warplens.instrument.read import without_comments

    with file.open("rb") as stream:
        begin = without_comments(stream.read(_LOOK_BYTES).decode("utf-8", "replace"))
    gpu = target(begin)
    if gpu and re.match(r"\s*\.version\s", begin):
        cubin = quoted(file.with_suffix(".cubin"))
        return f"PTX: audit what `ptxas -lineinfo -arch={gpu[0]} {quoted(file)} -o {cubin}` makes of it"
    return f"a file that begins with {head!r}"


def _of_trace(file: Path) -> list[dict[str, Any]]:
    trace = open_trace(file)
    rows = trace.audit.to_dicts()
    names = trace.sites["name"].to_list()
    for row in rows:
        row["name"] = "" if row["site"] is None else names[row["site"]]
    kernels = []
    for number, entry in enumerate(trace.manifest["kernels"]):
        own = entry.get("audit") or {}
        size = len((own.get("columns") or {}).get("site", []))
        part, rows = (rows[:size], rows[size:]) if number + 1 < len(trace.manifest["kernels"]) else (rows, [])
        why = own.get("not_audited") if own else "the file was recorded before there was an audit"
        facts = {
            build: {**((own.get("facts") or {}).get(build) or {}), **(entry[build] or {})}
            for build in ("traced", "clean")
        }
        kernels.append({"kernel": entry["name"], "facts": facts, "not_audited": why, "rows": part})
    return kernels


def _of_cubin(
    file: Path, kernel: str | None, clean: str | None, clean_file: Path | None, sites: str | None
) -> dict[str, Any]:
    from warplens.audit import COLUMNS, read_sass
    from warplens.audit import audit as run
    from warplens.capture.audited import disassemble, ptx_lines, texts_of
    from warplens.capture.modules import read_site_sets

    cubin = _bytes_of(file)
    sets = {own["name"]: own["sites"] for own in read_site_sets(cubin)}
    if not sets:
        raise FileError(f"{file} declares no sites: it holds no kernel with marks")
    if sites is not None and sites not in sets:
        raise UsageError(f"--sites: expected one of {', '.join(sets)}")
    sections = read_sass(disassemble(cubin))
    traced = _choose(sections, kernel, "--kernel")
    chosen = sets[sites or _set_of(traced.name, list(sets))]
    compared, clean_cubin = _clean(sections, traced, clean, clean_file, cubin)
    found = run(traced, chosen, texts_of({}), ptx=ptx_lines(cubin), clean=compared)
    rows = [dict(zip(COLUMNS, values, strict=True)) for values in zip(*found.columns.values(), strict=True)]
    for row in rows:
        row["name"] = "" if row["site"] is None else chosen[row["site"]]["name"]
    facts, remarks = found.facts, list[str]()
    facts["traced"] |= _resources(cubin, traced.name, remarks)
    if compared is not None:
        facts["clean"] |= _resources(clean_cubin, compared.name, [])
    return {"kernel": traced.name, "facts": facts, "remarks": remarks, "not_audited": None, "rows": rows}


def _bytes_of(file: Path) -> bytes:
    from warplens.capture.binary import is_program

    try:
        if file.stat().st_size > _MAX_CUBIN_BYTES:
            raise FileError(f"{file}: expected a cubin of at most {_MAX_CUBIN_BYTES:,} bytes")
        found = file.read_bytes()
    except OSError as error:
        raise FileError(f"cannot open {file}: {error.strerror or error}") from error
    if is_program(found):
        where = f"`cuobjdump -xelf all {quoted(file)}` writes the cubins that it may hold"
        raise FileError(f"{file}: expected a cubin, found a program or library: {where}")
    return found


def _clean(
    sections: list[Section], traced: Section, pattern: str | None, file: Path | None, cubin: bytes
) -> tuple[Section | None, bytes]:
    """The kernel to compare with, None for none, and the cubin that it stands in.

    Raises UsageError for one with marks.
    """
    from warplens.audit import has_marks, read_sass
    from warplens.capture.audited import disassemble

    if pattern is None and file is None:
        return None, cubin
    option = "--clean"
    if file is not None:
        if _head(file) != _MAGIC:
            raise FileError(f"{file}: expected a cubin, the clean build")
        cubin = _bytes_of(file)
        try:
            sections = read_sass(disassemble(cubin))
        except FormatError as error:
            raise FileError(f"{file}: {error}") from error
        if pattern is None:
            option, pattern = "--clean-file", f"^{re.escape(traced.name)}$"
    compared = _choose(sections, pattern, option)
    if compared.code == traced.code or has_marks(compared):
        what = "the traced kernel itself" if compared.code == traced.code else "a kernel with marks"
        mend = "name the build without marks, with --clean-file where it is another file"
        raise UsageError(f"{option}: {compared.name} is {what}: {mend}")
    return compared, cubin


def _resources(cubin: bytes, kernel: str, remarks: list[str]) -> dict[str, Any]:
    """What a build takes; `remarks` gets what is to be known of that."""
    from warplens.capture.modules import resources_of
    from warplens.capture.residency import Launch

    try:
        own = resources_of(cubin, kernel)
    except SitesError as error:
        remarks.append(f"registers and memory are not known: {error}")
        return {}
    out = {"registers": own.registers, "shared_bytes": own.shared_bytes, "local_bytes": own.local_bytes}
    if own.block is None:
        remarks.append(
            "resident blocks: not known, the kernel does not say how large its blocks are (__launch_bounds__, .reqntid)"
        )
        return {**out, "resident_blocks": None}
    threads = math.prod(own.block)
    size = f"blocks of {'at most ' if own.is_most else ''}{threads} threads"
    remarks.append(f"resident blocks: of {size}, without shared memory that a launch asks for")
    return {**out, "resident_blocks": Launch(own.arch, threads, own.shared_bytes).blocks(own.registers)}


def _set_of(kernel: str, names: list[str]) -> str:
    """The set of a kernel: the only one, or the one that `instrument` named after it."""
    if len(names) == 1:
        return names[0]
    if kernel not in names:
        raise UsageError(f"{kernel} may have any of {len(names)} sets of sites: choose by --sites {', '.join(names)}")
    return kernel


def _choose(sections: list[Section], pattern: str | None, option: str) -> Section:
    try:
        fits = [section for section in sections if pattern is None or re.search(pattern, section.name)]
    except re.error as error:
        raise UsageError(f"{option}: {pattern!r} is no regular expression: {error}") from error
    if len(fits) != 1:
        names = "\n".join(f"  {section.name}" for section in (fits or sections)[:20])
        raise UsageError(f"{option}: expected one kernel, {len(fits)} fit; choose by {option} REGEX:\n{names}")
    return fits[0]


def _print(kernel: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    terminal = console()
    terminal.print(Text(visible(kernel["kernel"], limit=400), style="bold"))
    if kernel["not_audited"]:
        terminal.print(Text(f"not audited: {visible(kernel['not_audited'], limit=400)}"))
        return
    for line in _facts(kernel["facts"] or {}):
        terminal.print(Text(line))
    for line in kernel.get("remarks", []):
        terminal.print(Text(line, style="dim"))
    table = Table(
        "at", "line", "mark", "loads under way", "waited for, since the mark before", box=None, pad_edge=False
    )
    table.header_style = "bold"
    for row in kernel["rows"]:
        at = "" if row["address"] is None else f"{row['address']:#06x}"
        loads = "unknown" if row["outstanding_loads"] is None else str(row["outstanding_loads"])
        loads += f" and {visible(row['bulk_loads'], limit=200)}" if row["bulk_loads"] else ""
        mark = " ".join(part for part in (row["verb"] or "?", row["name"]) if part)
        cells = at, str(row["line"] or "?"), visible(mark, limit=60), loads, visible(row["waits_on"], limit=400)
        table.add_row(*(Text(cell) for cell in cells))
    terminal.print(table)
    for text, severity in dict.fromkeys(_finding(row) for row in kernel["rows"] if row["finding"]):
        terminal.print(Text(text, style="yellow" if severity == "warning" else "dim"))


def _finding(row: dict[str, Any]) -> tuple[str, str]:
    """A row's finding as a line, and its severity."""
    place = f"{row['file'] or 'ptx'}:{row['line']}" if row["line"] else row["file"]
    who = " ".join(part for part in (place, row["verb"], row["name"]) if part) or "clock reads"
    return f"{row['severity']}: {visible(who, limit=200)}: {visible(row['finding'], limit=600)}", row["severity"]


def _facts(facts: dict[str, Any]) -> list[str]:
    """One line: what clean and traced build are made of, with an arrow where they differ."""
    traced, clean = facts.get("traced") or {}, facts.get("clean") or {}
    parts = []
    for key, name in _FACTS.items():
        before, after = clean.get(key), traced.get(key)
        if key not in traced or (key == "bulk_loads" and not before and not after):
            continue
        shown = "unknown" if after is None else f"{after:,}" if isinstance(after, int) else visible(after)
        differs = isinstance(before, int) and before != after
        parts.append(f"{name} {before:,} -> {shown}" if differs else f"{name} {shown}")
    return [", ".join(parts) + (" (clean -> traced)" if clean else "")] if traced else []
