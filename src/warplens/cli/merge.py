"""`merge`: the traces of several processes as one file.

In: `.wlens` files. Out: one, with tables. What they are is said by `warplens.trace.merge`.
"""

from __future__ import annotations

from pathlib import Path

import click

from warplens.cli.output import finish, open_trace, quoted
from warplens.errors import UsageError


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="F", help="The file to write.")
@click.option("-f", "--force", is_flag=True, help="Write over a file that is there.")
def merge(files: tuple[Path, ...], output: Path, force: bool) -> None:
    """Write the launches of several traces, of the ranks of a job for example, as one trace."""
    from warplens.trace.merge import merge as merge_traces

    if output.exists() and not force:
        raise UsageError(f"{output} is there already: -f writes over it")
    first: dict[Path, Path] = {}
    for path in files:
        if (same := first.setdefault(path.resolve(), path)) is not path:
            raise UsageError(f"{path} is the same file as {same}: its launches would be there twice")
    if output.resolve() in first:  # `merge *.wlens -f -o all.wlens` for the second time
        raise UsageError(
            f"{output} is read and written: launches that an earlier merge put there would be there twice; "
            "name another file with -o, or leave it out of those that are read"
        )
    merge_traces([open_trace(path) for path in files]).save(output)
    finish([output], f"warplens summary {quoted(output)} --by launch")
