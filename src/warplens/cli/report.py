"""`report`: a trace as one page for a browser.

In: a file and what to show of it. Out: an HTML file, its path, and what was left out. Formats nothing itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from warplens.cli.output import file_argument, finish, launch_option, open_trace, quoted
from warplens.render.escape import visible

MAX_LISTED: Final = 10_000_000
_RANGE: Final = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")


def _blocks(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    """The indices that `0,7,100-131` names; a usage error for another text."""
    if value is None:
        return None
    found = [_RANGE.fullmatch(part.strip()) for part in value.split(",")]
    pairs = [(int(m[1]), int(m[2] or m[1])) for m in found if m is not None]
    if None in found or any(low > high for low, high in pairs):
        text = f"expected numbers and ranges such as 0,7,100-131, found {visible(value)!r}"
        raise click.BadParameter(text, ctx, param)
    if sum(high - low + 1 for low, high in pairs) > MAX_LISTED:
        raise click.BadParameter(f"expected at most {MAX_LISTED:,} blocks, found more", ctx, param)
    return [block for low, high in pairs for block in range(low, high + 1)]


@click.command()
@file_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="PATH", help="The page (.html).")
@launch_option
@click.option("--blocks", callback=_blocks, metavar="LIST", help="Only these blocks, such as 0,7,100-131.")
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
