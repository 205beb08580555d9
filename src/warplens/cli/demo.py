"""`demo`: the whole way from a kernel to pictures in one command.

In: a folder. Out: a recording and two pictures in it, the summary on stdout. The trace comes from `warplens.demo`.
"""

from __future__ import annotations

from pathlib import Path

import click

from warplens.cli.browser import show
from warplens.cli.exits import exit_of_trace
from warplens.cli.output import console, finish, quoted
from warplens.errors import FileError
from warplens.render.escape import visible


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Folder for the files (default: the current one); made if it is missing.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu"]),
    default="auto",
    show_default=True,
    help="auto: record on a GPU where there is one; cpu: open the bundled recording.",
)
@click.option("--open", "open_pictures", is_flag=True, help="Open the pictures.")
def demo(output: Path, device: str, open_pictures: bool) -> int:
    """See inside an RMSNorm kernel: its summary, and two pictures of it.

    Records on this machine's GPU where that can be done; else opens a recording that was made on an H200.
    Ends with exit code 4 when the recording has losses or problems, as `summary` does.
    """
    from warplens.demo import demo_trace
    from warplens.render.plots import plot
    from warplens.render.text import summary

    trace, origin = demo_trace("cpu" if device == "cpu" else "auto")
    click.echo(f"RMSNorm forward, one row a block: {visible(origin, limit=400)}\n")
    console().print(summary(trace))
    try:
        output.mkdir(parents=True, exist_ok=True)
        recording = output / "warplens-demo.wlens"
        trace.save(recording)
    except OSError as error:
        raise FileError(f"cannot write to {output}: {error.strerror or error}") from error
    pictures = [plot(trace, kind, output / f"warplens-demo-{kind}.png") for kind in ("blocks", "warps")]
    click.echo()
    finish([recording, *pictures], f"warplens show {quoted(recording)}")
    if open_pictures:
        show(*pictures)
    return exit_of_trace(trace)
