"""`report`: a trace as one page for a browser.

In: a file and what to show of it. Out: an HTML file, its path, and what was left out. Formats nothing itself.
"""

from __future__ import annotations

from pathlib import Path

import click

from warplens.cli.output import file_argument, finish, launch_option, number_list, open_trace, quoted


@click.command()
@file_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="PATH", help="The page (.html).")
@launch_option
@click.option("--blocks", callback=number_list, metavar="LIST", help="Only these blocks, such as 0,7,100-131.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
def report(file: Path, output: Path | None, launch: int | None, blocks: list[int] | None, open_page: bool) -> None:
    """Write one page that shows FILE in any browser: a timeline, how far it can be trusted, where the time went.

    The page is one file that needs no network. Without -o it is FILE's name with -report.html, in the current folder.
    A page carries 12 million spans; of a larger trace it shows one block in so many and says so, or what --launch and
    --blocks choose.
    """
    from warplens.render.report import report as write

    written = write(open_trace(file), output or Path(f"{file.stem}-report.html"), launch=launch, blocks=blocks)
    if written.sampled:
        click.echo(written.sampled, err=True)
    finish([written.path], f"warplens summary {quoted(file)}")
    if open_page:
        click.launch(str(written.path))
