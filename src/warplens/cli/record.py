"""`record`: any program, as its users run it, with the kernels in it recorded.

In: a command and what to record of it. Out: a file a process that recorded something, a line or two about each, and the
command's own exit code. Recording is done by the program's processes themselves (capture/request.py says what they are
told); this one starts it, waits and gives the files their names.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from warplens.capture.options import KEEPS, POLICIES
from warplens.capture.presence import NO_DRIVER, has_driver
from warplens.cli.budget import BUDGET_HELP, COUNTS_HELP, check_pair, read_counts
from warplens.cli.exits import FINE, LOSSES, MISSING
from warplens.cli.output import finish, number_list, quoted
from warplens.errors import FileError, UsageError
from warplens.instrument.selection import LEVELS
from warplens.render.escape import visible

if TYPE_CHECKING:
    from warplens.capture.child import Ending
    from warplens.capture.request import Request

_UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_LISTED: Final = 30
_WHOLE: Final = click.IntRange(min=0)
_COUNT: Final = click.IntRange(min=1)
_SECONDS: Final = click.FloatRange(min=0, min_open=True)


def pattern(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A regular expression, before anything runs."""
    del ctx, param
    try:
        re.compile(value or "")
    except re.error as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from None
    return value


def size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Bytes of `256MiB`, as the callback of an option."""
    text = value.strip().upper()
    digits = text.rstrip("BKMGI ")
    unit = text[len(digits) :].strip()
    if not digits.isdecimal() or unit not in _UNITS:
        raise click.BadParameter(f"expected a size such as 256MiB, found {visible(value)!r}", ctx, param)
    return int(digits) * _UNITS[unit]


def grid_list(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[tuple[int, ...], ...] | None:
    """Sizes of `528,64x8`, as the callback of an option."""
    if value is None:
        return None
    grids = [part.strip().split("x") for part in value.split(",")]
    if not all(len(sizes) <= 3 and all(size.isdecimal() and int(size) for size in sizes) for sizes in grids):
        raise click.BadParameter(f"expected grids such as 528,64x8, found {visible(value)!r}", ctx, param)
    return tuple(tuple(map(int, sizes)) for sizes in grids)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-o", "--output", metavar="F", help="Name of the file; %p process, %h host, %r rank, %n program.")
@click.option("-f", "--force", is_flag=True, help="Write over a file that is there.")
@click.option("-k", "--kernels", metavar="REGEX", callback=pattern, help="Only kernels in whose name this is found.")
@click.option(
    "-s", "--launch-skip", type=_WHOLE, default=0, metavar="N", help="Leave out the first N launches of those."
)
@click.option(
    "-c", "--launch-count", type=_COUNT, default=100, show_default=True, metavar="N", help="Record N launches then."
)
@click.option(
    "--rounds",
    type=_WHOLE,
    default=10,
    show_default=True,
    metavar="N",
    help="Launches of each kernel and shape that are timed without marks.",
)
@click.option(
    "--capacity",
    "capacity_bytes",
    callback=size,
    default="256MiB",
    show_default=True,
    metavar="SIZE",
    help="Memory for records on each GPU.",
)
@click.option("--every-block", type=_COUNT, default=1, metavar="N", help="Record every N-th block only.")
@click.option("--blocks", callback=number_list, metavar="N,N-M", help="Record these blocks only.")
@click.option("--warps", callback=number_list, metavar="N,N-M", help="Record these warps of a block only.")
@click.option("--grids", callback=grid_list, metavar="X[xY[xZ]],...", help="Only launches with one of these grids.")
@click.option(
    "--nvtx-include",
    callback=pattern,
    metavar="REGEX",
    help="Only launches within an NVTX range in whose name this is found.",
)
@click.option("--policy", type=click.Choice(POLICIES), default="auto", help="Record only with this storage policy.")
@click.option("--keep", type=click.Choice(KEEPS), default="oldest", help="Records that stay where not all fit.")
@click.option("--cold-l2", is_flag=True, help="Empty the L2 cache before each launch that is recorded or timed.")
@click.option("--replay", is_flag=True, help="Time clean and traced by launches that are added, on saved memory.")
@click.option("--paused", is_flag=True, help="Begin when the program calls warplens::start_recording().")
@click.option(
    "--signal", type=click.Choice(("USR1", "USR2")), help="Begin when `record` gets this signal; end at the next."
)
@click.option("--timeout", "timeout_s", type=_SECONDS, metavar="S", help="Stop the program after S seconds.")
@click.option("--source/--no-source", default=True, help="Put the source of marked kernels into the trace.")
@click.option("--note", metavar="TEXT", help="Text that the trace keeps and shows.")
@click.option("--host", is_flag=True, help="Say in the trace on which host it was made.")
@click.option("--command", is_flag=True, help="Say in the trace with which command it was made.")
@click.option(
    "--auto", type=click.Choice(LEVELS), default="waits", help="Marks of Triton's, CuPy's and Numba's kernels."
)
@click.option(
    "--sites", callback=pattern, metavar="REGEX", help="Only marks of such kernels in whose name this is found."
)
@click.option("--budget", metavar="N|P%", help=BUDGET_HELP)
@click.option("--counts", metavar="TRACE", help=COUNTS_HELP)
@click.option("-m", "--module", is_flag=True, help="CMD is a Python module.")
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED)
def record(output: str | None, force: bool, module: bool, cmd: tuple[str, ...], **options: Any) -> int:
    """Run CMD as it stands and record the marked kernels that it launches.

    Ends with CMD's own exit code; where CMD ended well, with 4 when records were lost and with 5 when nothing was
    recorded; with 124 at --timeout.
    """
    from warplens.capture.child import command_line, run
    from warplens.capture.notes import read_notes, recorded_files
    from warplens.capture.request import Request, below_record, rank_of, to_text
    from warplens.cli.watching import watch
    from warplens.whole import place_for_file

    check_pair(options["budget"], options["counts"])
    request = Request.of(options)
    counts = None if request.counts is None else json.dumps(read_counts(request.counts))
    command = command_line(list(cmd[1:] if cmd[:1] == ("--",) else cmd), module=module)
    if below_record(os.environ):
        click.echo(
            "warplens: another `record` has started this one: it records the program, with its own options", err=True
        )
        return _ended(command, run(command, None, request.timeout_s)).code
    target = Path(output or ".")
    if output and "%" not in output and target.is_dir():
        raise UsageError(f"{target} is a folder: -o names a file, such as {target / 'run.wlens'}")
    if output and "%" not in output and target.exists() and not force:
        raise UsageError(f"{target} is there already: -f writes over it, %p in -o gives each process its own")
    if output and "%" not in output:
        place_for_file(target)
    folder = _run_folder(_known(target.parent))
    try:
        if counts is not None:  # the program's processes may not read traces
            request = replace(request, counts=str(folder / "counts"))
            (folder / "counts").write_text(counts, encoding="utf-8")
        host = platform.node() if request.host else None
        text = to_text(request, str(folder), host=host, command=command if request.command else None)
        watched = watch(folder, request.signal, on_terminal=sys.stderr.isatty())
        ending = _ended(command, run(command, text, request.timeout_s, watched, _more(request, folder)))
        notes, files = read_notes(folder), recorded_files(folder)
        if not folder.is_dir():
            click.echo(
                f"{visible(folder, limit=4096)} vanished while the program ran, and recordings with it", err=True
            )
        own = [str(path) for note in notes for path in note.get("own_files") or []]
        for path in own:
            click.echo(f"recorded by the program itself: {visible(path, limit=4096)}", err=True)
        if not files:
            _tell_what_ran(notes, request, nothing=not own, cut=bool(ending.why))
            return ending.code or (FINE if own else MISSING)
        ranked = files > 1 or rank_of(dict(os.environ)) is not None
        return _keep(folder, output, ranked, force, notes, ending.code)
    finally:
        if recorded_files(folder) > 0:  # what has no name yet is the only copy
            click.echo(f"kept in {visible(folder, limit=4096)}", err=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _keep(folder: Path, output: str | None, ranked: bool, force: bool, notes: list[dict[str, Any]], code: int) -> int:
    """Give the files their names and say what is in them; the exit code. What gets no name stays in the folder."""
    from warplens.capture.notes import recorded_files
    from warplens.trace.collect import DEFAULT_TEMPLATE, collect

    found = collect(folder, output or DEFAULT_TEMPLATE, ranked=ranked, force=force)
    lost = _tell(found.files, found.failures)
    _tell_left_out(notes)
    if not found.files:
        return code or (LOSSES if recorded_files(folder) else MISSING)
    finish(list(found.files), f"warplens summary {quoted(next(iter(found.files)))}", err=True)
    return LOSSES if code == 0 and lost else code


def _more(request: Request, folder: Path) -> dict[str, str]:
    """Variables that the program gets beside the one that asks for records."""
    if not request.nvtx_include:
        return {}
    from warplens.capture.nvtx import build

    return build(folder)


def _ended(command: list[str], ending: Ending) -> Ending:
    """Says why a program ended where that was no exit of its own."""
    if ending.why:
        click.echo(f"{visible(command[0])}: {ending.why}", err=True)
    return ending


def _known(parent: Path) -> Path:
    """`parent`, or the folder above the first one whose name has a placeholder: that one is made when it is known."""
    parts = parent.parts
    return Path(*parts[: next((at for at, part in enumerate(parts) if "%" in part), len(parts))])


def _run_folder(parent: Path) -> Path:
    """A folder of this run beside its files, so that they need only be renamed. FileError before anything runs."""
    try:
        return Path(tempfile.mkdtemp(prefix=".warplens-", dir=parent)).absolute()
    except OSError as error:
        raise FileError(f"cannot write to {parent}: {error.strerror or error}; choose another place with -o") from error


def _tell(files: dict[Path, dict[str, Any]], failures: list[str]) -> bool:
    """What was recorded, on stderr; whether anything of it was lost."""
    lost = bool(failures)
    for failure in failures:
        click.echo(f"not kept: {visible(failure, limit=400)}", err=True)
    for path, manifest in files.items():
        launches = manifest["launches"]
        events = sum(entry["lost_events"] for entry in launches)
        cut = "" if manifest["complete"] else "; the process was cut off: its complete launches"
        if manifest["stopped"] is not None:
            cut = "; the last one had not ended"
        names = sorted({manifest["kernels"][entry["kernel"]]["name"] for entry in launches})
        shown = ", ".join(visible(name, limit=80) for name in names[:3]) + (", ..." if len(names) > 3 else "")
        count = f"{len(launches):,} launch{'es' if len(launches) != 1 else ''}"
        click.echo(f"{visible(path)}: {count} of {shown}{cut}", err=True)
        if manifest["stopped"] is not None:
            _tell_where(path, manifest)
        if events:
            click.echo(f"  {events:,} events lost: --capacity gives more room", err=True)
        lost |= events > 0 or not manifest["complete"]
    return lost


def _tell_where(path: Path, manifest: dict[str, Any]) -> None:
    """Why the last launch was stopped, and where its warps were."""
    from warplens.decode.stopped import where_lines
    from warplens.trace.file import read_file

    stopped, launches = manifest["stopped"], manifest["launches"]
    name = visible(manifest["kernels"][launches[-1]["kernel"]]["name"], limit=100)
    click.echo(f"{name} was stopped after {stopped['after_s']:.3g} s: {visible(stopped['why'], limit=400)}", err=True)
    for line in where_lines(manifest, read_file(path).records):
        click.echo(visible(line, limit=400), err=True)


def _tell_left_out(notes: list[dict[str, Any]]) -> None:
    for note in notes:
        for text in note.get("left_out") or []:
            text = str(text).replace(" is not recorded: ", ": ", 1)  # it stands in front
            click.echo(f"not recorded: {visible(text, limit=300)}", err=True)
    remarks = [text for note in notes for text in note.get("remarks") or []]
    for text in remarks[:_LISTED]:
        click.echo(f"note: {visible(text, limit=300)}", err=True)
    if len(remarks) > _LISTED:
        click.echo(f"note: {len(remarks) - _LISTED:,} more lines, in the traces' manifests", err=True)


def _tell_what_ran(notes: list[dict[str, Any]], request: Request, *, nothing: bool = True, cut: bool = False) -> None:
    """Where nothing was recorded: the kernels that ran, as far as they were seen, and what could not be.

    `nothing`: nor by the program itself. `cut`: its end was none of its own.
    """
    click.echo("nothing was recorded" if nothing else "nothing else was recorded", err=True)
    _tell_left_out(notes)
    seen = [kernel for note in notes for kernel in note.get("kernels") or [] if isinstance(kernel, dict)]
    counts: dict[tuple[str, str], int] = {}
    more: set[tuple[str, str]] = set()
    for kernel in seen:
        why = _why_not(kernel, request)
        key = str(kernel.get("name")), why
        counts[key] = counts.get(key, 0) + int(kernel.get("launches") or 0)
        if kernel.get("or_more"):
            more.add(key)
    if counts:
        click.echo(
            "kernels that ran in files with warplens/host.hpp, of Triton, CuPy, Numba, and of warplens.Kernel:",
            err=True,
        )
    for key, launches in sorted(counts.items(), key=lambda item: -item[1])[:_LISTED]:
        (name, why), times = key, f"{launches:,}{' or more' if key in more else ''}"
        click.echo(f"  {times:>9}  {visible(name, limit=100)}{'  (' + why + ')' if why else ''}", err=True)
    left_out = [str(text) for note in notes for text in note.get("left_out") or []]
    told = any(NO_DRIVER in text for text in left_out)
    loaded = sorted({str(name) for note in notes for name in note.get("python") or []})
    if loaded and not told and has_driver():  # else none of their kernels could run
        text = "whose own kernels are not seen, but those of Triton, numba.cuda.jit, CuPy's RawKernel and RawModule"
        click.echo(f"Python processes used {', '.join(map(visible, loaded))}, {text}", err=True)
    if cut and not notes:
        click.echo("what it launched is not known: its processes were stopped before they could say", err=True)
        return
    if nothing and (told or not (counts or left_out)):
        if told or not has_driver():
            why = "" if told else f"{NO_DRIVER}: no kernel can run\n"
            click.echo(f"{why}try: warplens doctor, which says what recording needs", err=True)
            return
        text = "no launch was seen: warplens sees those of .cu files that include warplens/host.hpp or that"
        click.echo(
            f"{text} `warplens nvcc` compiled, of Triton, CuPy, Numba and warplens.Kernel\n"
            "try: warplens doctor --binary FILE, which says of a program or shared library whether they are seen",
            err=True,
        )


def _why_not(kernel: dict[str, Any], request: Request) -> str:
    """Why nothing of a kernel was recorded, in a few words; empty where that is not known, or told otherwise."""
    if kernel.get("without_marks"):
        return "has no marks that ran"
    if not kernel.get("matches"):
        known = kernel.get("name") != "(name not known)"  # as host.hpp has it where there is no driver to ask
        return "does not match -k" if request.kernels and known else ""
    if kernel.get("other_range"):
        return "outside of the ranges of --nvtx-include"
    if kernel.get("other_grid"):
        return "other grids than --grids"
    if request.paused:
        return "--paused: not while the program had recording on"
    if request.signal is not None:
        return "--signal: not while recording was on"
    return "all within --launch-skip" if request.launch_skip >= int(kernel.get("launches") or 0) else ""
