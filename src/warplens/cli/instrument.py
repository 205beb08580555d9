"""`instrument`: marks in the kernels of a PTX module.

In: a file of PTX. Out: a file of PTX, and a list of what is marked in it. Needs no GPU and no compiler.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from warplens.cli.budget import BUDGET_HELP, COUNTS_HELP, budget_of
from warplens.cli.output import console, finish, json_option, print_json, quoted
from warplens.errors import FileError, UsageError
from warplens.render.escape import visible, visible_tree

if TYPE_CHECKING:
    from warplens.instrument import Budget, Instrumented

_MAX_BYTES: Final = 256 << 20
_LEVELS: Final = ("coarse", "waits", "all")
_KINDS: Final = ("phase", "wait", "arrive", "mark")
_ALSO: Final = ("loads", "stores", "atomics", "loops", "lines")


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="PATH", help="Where.")
@click.option("-f", "--force", is_flag=True, help="Write over a file that is there.")
@click.option(
    "--level",
    type=click.Choice(_LEVELS),
    default="waits",
    help="coarse: waits outside of loops; waits: all of them; all: arrivals, issues and fences too.",
)
@click.option("-k", "--kernels", "kernel", metavar="REGEX", help="Only kernels whose name holds it.")
@click.option("--sites", metavar="REGEX", help="Only sites whose name holds it.")
@click.option("--kind", "kinds", type=click.Choice(_KINDS), multiple=True, help="Only sites of this kind; repeatable.")
@click.option("--also", type=click.Choice(_ALSO), multiple=True, help="Mark these too; repeatable.")
@click.option("--budget", metavar="N|P%", help=BUDGET_HELP)
@click.option("--counts", type=click.Path(path_type=Path), metavar="TRACE", help=COUNTS_HELP)
@json_option
def instrument(
    file: Path,
    output: Path,
    force: bool,
    level: str,
    kernel: str | None,
    sites: str | None,
    kinds: tuple[str, ...],
    also: tuple[str, ...],
    budget: str | None,
    counts: Path | None,
    as_json: bool,
) -> None:
    """Put marks into the kernels of FILE, a PTX module: where they begin, wait and end.

    What else stands in FILE stays as it is. The marks record nothing until the module's symbol warplens_device names
    memory for records.
    """
    from warplens.instrument import Selection
    from warplens.instrument import instrument as run
    from warplens.instrument.head import target
    from warplens.instrument.read import without_comments
    from warplens.whole import whole_file

    try:
        re.compile(kernel or "")
    except re.error as error:
        raise UsageError(f"--kernels: {kernel!r} is no regular expression: {error}") from error
    if output.exists() and file.exists() and output.samefile(file):
        raise UsageError(f"{output} is what is read: name another file with -o")
    if output.exists() and not force:
        raise UsageError(f"{output} is there already: -f writes over it")
    limit = budget_of(budget, counts)
    found = run(_read(file), Selection(level, sites, kinds or None, also, limit), kernels=kernel)
    with whole_file(output) as stream:
        stream.write(found.text.encode("utf-8", "surrogateescape"))
    if as_json:
        print_json(visible_tree({"file": str(output), "kernels": _facts(found, limit)}))
    else:
        _print(found, limit)
        if sites and not any(re.search(sites, site["name"]) for own in _facts(found, limit) for site in own["sites"]):
            click.echo(f"note: no site has a name that holds {sites!r}: begin and end alone are marked", err=True)
    gpu = target(without_comments(found.text))
    cubin = quoted(output.with_suffix(".cubin"))
    following = f"ptxas -lineinfo -arch={gpu[0] if gpu else ''} {quoted(output)} -o {cubin}"
    finish([] if as_json else [output], following)


def _read(file: Path) -> str:
    from warplens.instrument.read import without_comments

    try:
        if file.stat().st_size > _MAX_BYTES:
            raise FileError(f"{file}: expected PTX of at most {_MAX_BYTES:,} bytes")
        found = file.read_bytes()
    except OSError as error:
        raise FileError(f"cannot open {file}: {error.strerror or error}") from error
    if found.startswith(b"\x1f\x8b"):
        raise FileError(f"{file}: expected a PTX module, found one that gzip has packed: gunzip it first")
    text = found.decode("utf-8", "surrogateescape")
    if not re.search(r"^\s*\.version\s", without_comments(text), re.MULTILINE):
        raise FileError(f"{file}: expected a PTX module, found no .version in it: `nvcc -ptx` or Triton makes one")
    return text


def _facts(found: Instrumented, budget: Budget | None) -> list[dict[str, Any]]:
    out = []
    for own in found.kernels:
        sites = [] if own.site_set is None else own.site_set["sites"]
        if budget is not None:
            counts = budget.of_kernel(own.name)
            sites = [{**site, "events": counts.get(site["name"])} for site in sites]
        out.append({"kernel": own.name, "sites": sites, "left_out": own.left_out})
    return out


def _print(found: Instrumented, budget: Budget | None) -> None:
    from rich.table import Table
    from rich.text import Text

    terminal = console()
    for kernel in _facts(found, budget):
        terminal.print(Text(visible(kernel["kernel"], limit=400), style="bold"))
        table = Table("site", "kind", "name", "resource", box=None, pad_edge=False)
        if budget is not None:
            table.add_column("events a launch, first run", justify="right")
        table.header_style = "bold"
        for site in kernel["sites"]:
            cells = [
                str(site["id"]),
                site["kind"],
                visible(site["name"], limit=80),
                visible(site["resource"], limit=60),
            ]
            if budget is not None:
                cells.append("not counted" if site["events"] is None else f"{site['events']:,.0f}")
            table.add_row(*(Text(cell) for cell in cells))
        terminal.print(table)
        for line in kernel["left_out"]:
            terminal.print(Text(f"note: {visible(line, limit=400)}", style="dim"))
