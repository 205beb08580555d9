"""`report`: a trace as one page for a browser.

In: a file and what to show of it. Out: an HTML file, its path, and what was left out. Formats nothing itself.
"""

from __future__ import annotations

from pathlib import Path

import click

from warplens.cli.browser import show
from warplens.cli.output import file_argument, finish, launch_option, number_list, open_trace, quoted


@click.command()
@file_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="PATH", help="The page (.html).")
@launch_option
@click.option("--sms", callback=number_list, metavar="N,N-M", help="Only blocks on these SMs.")
@click.option("--blocks", callback=number_list, metavar="N,N-M", help="Only these blocks.")
@click.option("--from", "from_ns", type=int, metavar="NS", help="Only what ends after NS since the trace's origin.")
@click.option("--to", "to_ns", type=int, metavar="NS", help="Only what begins before NS since the trace's origin.")
@click.option(
    "--min-duration", "min_ns", type=click.IntRange(min=0), metavar="NS", default=0, help="Only spans of NS or longer."
)
@click.option(
    "--max-spans", type=click.IntRange(min=1), metavar="N", help="Beyond N spans show a sample (default 12 million)."
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
def report(
    file: Path,
    output: Path | None,
    launch: int | None,
    sms: list[int] | None,
    blocks: list[int] | None,
    from_ns: int | None,
    to_ns: int | None,
    min_ns: int,
    max_spans: int | None,
    open_page: bool,
) -> None:
    """Write one page that shows FILE in any browser: a timeline, how far it can be trusted, where the time went.

    The page is one file that needs no network. Without -o it is FILE's name with -report.html, in the current folder.
    A page carries 12 million spans; of a larger trace it shows one block in so many and says so, or what the other
    options choose. Spans in part inside of --from and --to are shown whole.
    """
    from warplens.render.page_data import MAX_SPANS
    from warplens.render.report import report as write
    from warplens.render.selection import Selection

    target = output or Path(f"{file.stem}-report.html")
    selection = Selection(launch=launch, sms=sms, blocks=blocks, from_ns=from_ns, to_ns=to_ns, min_duration_ns=min_ns)
    written = write(open_trace(file), target, selection=selection, max_spans=max_spans or MAX_SPANS)
    if written.sampled:
        click.echo(written.sampled, err=True)
    finish([written.path], f"warplens summary {quoted(file)}")
    if open_page:
        show(written.path)
