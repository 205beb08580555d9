"""`export`: a trace for Perfetto and other tools.

In: a file, a format, and which part of the trace. Out: a file or a folder; its path on stdout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from warplens.cli.browser import show
from warplens.cli.output import file_argument, finish, launch_option, number_list, open_trace, quoted
from warplens.errors import UsageError

_FORMATS: Final = ("perfetto", "parquet", "csv")
_ENDINGS: Final = {"perfetto": ".pftrace.gz", "parquet": "-parquet", "csv": "-spans.csv"}


@click.command()
@file_argument
@click.option("-t", "--format", "form", type=click.Choice(_FORMATS), required=True, help="What to write.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="PATH", help="Where; a folder for parquet.")
@launch_option
@click.option("--sms", callback=number_list, metavar="N,N-M", help="Only blocks on these SMs.")
@click.option("--blocks", callback=number_list, metavar="N,N-M", help="Only these blocks.")
@click.option("--from", "from_ns", type=int, metavar="NS", help="Only what ends after NS since the trace's origin.")
@click.option("--to", "to_ns", type=int, metavar="NS", help="Only what begins before NS since the trace's origin.")
@click.option(
    "--min-duration", "min_ns", type=click.IntRange(min=0), metavar="NS", default=0, help="Only spans of NS or longer."
)
@click.option("--no-arguments", is_flag=True, help="perfetto: names and times alone, a third of the size.")
@click.option("--no-gzip", is_flag=True, help="perfetto: not packed.")
@click.option("--open", "open_ui", is_flag=True, help="perfetto: show it in the browser, from this machine.")
def export(
    file: Path,
    form: str,
    output: Path | None,
    launch: int | None,
    sms: list[int] | None,
    blocks: list[int] | None,
    from_ns: int | None,
    to_ns: int | None,
    min_ns: int,
    no_arguments: bool,
    no_gzip: bool,
    open_ui: bool,
) -> None:
    """Write FILE for other tools: a trace for Perfetto, Parquet tables, or a CSV of the spans.

    Without -o the result is FILE's name with .pftrace.gz, -parquet (a folder) or -spans.csv, in the current folder.
    Spans and blocks in part inside of --from and --to are written whole. With --open the file is served to
    https://ui.perfetto.dev from 127.0.0.1:9001 until that page has fetched it; it is sent nowhere else.
    """
    from warplens.render.export import export as write
    from warplens.render.selection import Selection

    if form != "perfetto" and (no_arguments or no_gzip or open_ui):
        raise UsageError("--no-arguments, --no-gzip and --open are for -t perfetto")
    ending = ".pftrace" if no_gzip else _ENDINGS[form]
    target = output or Path(f"{file.stem}{ending}")
    selection = Selection(launch=launch, sms=sms, blocks=blocks, from_ns=from_ns, to_ns=to_ns, min_duration_ns=min_ns)
    write(open_trace(file), target, format=form, selection=selection, arguments=not no_arguments, gzip=not no_gzip)
    if open_ui:
        finish([target])
        _serve(target)
    elif form == "perfetto":
        finish([target], f"open https://ui.perfetto.dev and drop {quoted(target)} on it")
    else:
        finish([target], f"warplens export {quoted(file)} -t perfetto")


def _serve(path: Path) -> None:
    """Open Perfetto's page, and wait until it has fetched the file or the user has had enough."""
    from warplens.cli.serve import TraceServer

    with TraceServer(path) as server:
        click.echo(f"serving {server.here}\nopening {server.url}", err=True)
        click.echo("the browser may ask whether the page may reach this device: allow it", err=True)
        click.echo("waiting until the page has fetched the file; Ctrl-C ends this", err=True)
        show(server.url)
        try:
            server.serve_once()
        except KeyboardInterrupt:
            click.echo("stopped; the file was not fetched", err=True)
        else:
            click.echo("fetched; the page has all it needs", err=True)
