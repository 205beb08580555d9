"""The click group behind `warplens`.

In: arguments. Out: the exit code of the command, or of the error that ended it, with one message on stderr.
Commands are imported when they are called; their one-line helps stand here so that `--help` imports none of them.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from warplens.cli.exits import FINE, USAGE, exit_of

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "demo": ("warplens.cli.demo", "See inside an RMSNorm kernel: record it here, or open the bundled recording."),
    "record": ("warplens.cli.record", "Run a program as it stands and record the marked kernels that it launches."),
    "summary": ("warplens.cli.look", "Print how far a trace can be trusted, and where its blocks spent their time."),
    "show": ("warplens.cli.look", "Print the warps of one block as a timeline."),
    "report": ("warplens.cli.report", "Write one page that shows a trace in any browser, offline."),
    "plot": (
        "warplens.cli.look",
        "Draw blocks, warps, durations, one phase over SMs, or two traces, as PNG, SVG or PDF.",
    ),
    "export": ("warplens.cli.export", "Write a trace for Perfetto, as Parquet tables, or its spans as CSV."),
    "merge": ("warplens.cli.merge", "Write the launches of several traces as one trace."),
    "info": ("warplens.cli.ask", "Print what a file is: device, versions, kernels, launches, members."),
    "query": ("warplens.cli.ask", "Run SQL over the tables launches, blocks, spans, sites, problems and audit."),
    "instrument": ("warplens.cli.instrument", "Put marks into the kernels of a PTX module: where they begin and wait."),
    "nvcc": ("warplens.cli.nvcc", "Compile with nvcc, with marks in the kernels, so that record sees the program."),
    "audit": ("warplens.cli.audit", "Say what each mark measures, from the machine code of a trace or a cubin."),
    "include": ("warplens.cli.include", "Print where the headers are, for nvcc and CMake."),
    "doctor": ("warplens.cli.doctor", "Say what recording needs, what is there, and how to get the rest."),
}
"""Name -> module that holds the click command of that name, and its one-line help."""

_ELSEWHERE: Final = {
    "diff": "`warplens plot BEFORE diff AFTER`",
    "compare": "`warplens plot BEFORE diff AFTER`",
    "open": "`warplens report FILE --open`",
    "view": "`warplens report FILE --open`",
}
"""What other tools have as a command and warplens as part of one."""


class _ReaderGoneError(Exception):
    """Whoever read our output has closed it."""


class App(click.Group):
    """A group that imports a command when it is needed and ends every error with one message and its exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, imported now; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begins with; an unknown name gets the nearest known ones in the message."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = [_ELSEWHERE[args[0]]] if args[0] in _ELSEWHERE else difflib.get_close_matches(args[0], COMMANDS)
            hint = f": did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"no command {args[0]!r}{hint}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:  # which is a shell that completes a line
            _refuse_twice(click.Context(command, ctx, name, **command.context_settings), rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Writes the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def make_context(self, *args: Any, **keywords: Any) -> click.Context:
        """As click does, but a broken pipe (`--help | true`) does not become its exit code 1."""
        try:
            return super().make_context(*args, **keywords)
        except BrokenPipeError as error:
            raise _ReaderGoneError from error

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but a broken pipe does not become its exit code 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGoneError from error

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Runs a command and leaves with SystemExit; other exceptions only with WARPLENS_TRACEBACK set."""
        del standalone_mode
        _prepare_streams()
        try:
            code = super().main(args, prog_name or "warplens", standalone_mode=False, **extra)
            sys.stdout.flush()
        except (_ReaderGoneError, BrokenPipeError):  # `warplens query ... | head`: the reader has what it wanted
            code = FINE
        except SystemExit as ending:  # rich makes an exit of a broken pipe
            code = FINE if isinstance(ending.__context__, BrokenPipeError) else ending.code
        except (Exception, KeyboardInterrupt) as error:
            if os.environ.get("WARPLENS_TRACEBACK"):
                raise
            code, message = exit_of(error)
            _complain(message)
        _close_streams()
        sys.exit(code or FINE)


def _refuse_twice(ctx: click.Context, args: list[str]) -> None:
    """UsageError where an option that takes one value is given more: click takes the last and says nothing, so that
    `-k reduce -k softmax` would leave one of the two kernels out."""
    for param, times in Counter(ctx.command.make_parser(ctx).parse_args(list(args))[2]).items():
        if times > 1 and isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count):
            both = ": 'A|B' finds what A or B finds" if param.metavar == "REGEX" else ""
            names = " / ".join(param.opts)
            raise click.UsageError(f"{names} is there {times} times and takes one value{both}", ctx)


def _prepare_streams() -> None:
    """A closed stream (`>&-`) becomes one to nowhere; one that lacks a character gets a `?`, not an error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  (open to the end)
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _close_streams() -> None:
    """Python flushes both streams again at exit, and a failure there changes the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _complain(message: str) -> None:
    from warplens.render.escape import visible_lines

    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):  # nowhere to complain to: the exit code still says it
        click.secho("error: ", fg="red", bold=True, err=True, nl=False, color=_color_wanted())
        click.echo(visible_lines(message), err=True)


def _color_wanted() -> bool | None:
    """False where NO_COLOR is set or the terminal is dumb; None lets click look at the stream."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from warplens import __version__

        click.echo(f"warplens {__version__}")
        ctx.exit(FINE)


@click.group(
    cls=App,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 fine; 2 usage; 3 file unusable; 4 with losses or problems (summary, demo, record); "
    "5 GPU or compiler missing, or nothing recorded. "
    'Completion: eval "$(_WARPLENS_COMPLETE=bash_source warplens)" (or zsh, fish).',
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Look inside CUDA kernels: where do the warps of a kernel spend their time?"""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)
