"""`summary`, `show` and `plot`: a trace for the eye.

In: a file and what to show of it. Out: text or a picture; `summary` also judges by its exit code.
Formats nothing itself: that is `render`.
"""

from __future__ import annotations

from pathlib import Path

import click

from warplens.cli.exits import exit_of_trace
from warplens.cli.output import (
    console,
    file_argument,
    finish,
    json_option,
    launch_option,
    open_trace,
    print_json,
    quoted,
)
from warplens.render.escape import visible


@click.command()
@file_argument
@click.option(
    "--by",
    type=click.Choice(["site", "role", "sm", "block", "launch"]),
    default="site",
    show_default=True,
    help="What a row of the table is.",
)
@launch_option
@json_option
def summary(file: Path, by: str, launch: int | None, as_json: bool) -> int:
    """Print how far the trace in FILE can be trusted, and where its blocks spent their time.

    Launches of one kernel and shape share a table. Ends with exit code 4, after printing all, when events were lost
    or the trace has a problem of severity loss or error (with --launch: of that launch); notes do not count.
    """
    from warplens.render.pick import pick_launch
    from warplens.render.text import summary as render_summary
    from warplens.render.text import summary_facts

    trace = open_trace(file)
    if launch is not None:
        pick_launch(trace, launch)
    code = exit_of_trace(trace, launch)
    if as_json:
        facts = summary_facts(trace, by=by, launch=launch)  # type: ignore[arg-type]
        print_json({"file": visible(file, limit=4096), "exit_code": code} | facts)
    else:
        console().print(render_summary(trace, by=by, launch=launch))  # type: ignore[arg-type]
    if code:
        finish(following=f'warplens query {quoted(file)} "select * from problems"')
    else:
        finish(following=f"warplens show {quoted(file)}")
    return code


@click.command()
@file_argument
@launch_option
@click.option("--block", type=click.IntRange(min=0), metavar="N", help="Block N (default: first of the second wave).")
@click.option("--width", type=click.IntRange(20, 10_000), metavar="N", help="Columns (default: the window).")
def show(file: Path, launch: int | None, block: int | None, width: int | None) -> None:
    """Print the warps of one block as a timeline: a letter a phase, a ruler in cycles, a legend."""
    from warplens.render.timeline import show as render_show

    terminal = console()
    if width is not None:
        terminal.width = width
    terminal.print(render_show(open_trace(file), launch=launch, block=block, width=width))
    finish(following=f"warplens plot {quoted(file)} warps" + _where(launch, block))


@click.command()
@file_argument
@click.argument("kind", type=click.Choice(["blocks", "warps", "distributions", "sm", "diff"]))
@click.argument("after", type=click.Path(path_type=Path), metavar="[AFTER]", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="PATH", help="PNG, SVG or PDF, by its suffix.")
@launch_option
@click.option("--block", type=click.IntRange(min=0), metavar="N", help="warps: block N (default: see `show`).")
@click.option("--site", metavar="NAME", help="sm: this site (default: the one with the largest share).")
def plot(
    file: Path,
    kind: str,
    after: Path | None,
    output: Path | None,
    launch: int | None,
    block: int | None,
    site: str | None,
) -> None:
    """Draw FILE as PNG, SVG or PDF.

    \b
    blocks         all blocks of a launch on one time axis, a lane an SM
    warps          the warps of one block
    distributions  how long the spans of each site last
    sm             how many warps of each SM are in one site, over time
    diff           each site's durations in FILE and in AFTER, side by side

    Without -o the picture is FILE's name with -KIND.png, in the current folder.
    """
    from warplens.render.plots import plot as draw

    target = output or Path(f"{file.stem}-{kind}.png")
    second = None if after is None else open_trace(after)
    draw(open_trace(file), kind, target, launch=launch, block=block, site=site, after=second)
    if after is not None:
        finish([target], f"warplens summary {quoted(after)}")
    else:
        following = {"blocks": "warps", "warps": "distributions", "distributions": "sm", "sm": ""}[kind]
        more = f"plot {quoted(file)} {following}" if following else f"report {quoted(file)}"
        finish([target], f"warplens {more}" + _where(launch, None))


def _where(launch: int | None, block: int | None) -> str:
    parts = {"--launch": launch, "--block": block}
    return "".join(f" {name} {value}" for name, value in parts.items() if value is not None)
