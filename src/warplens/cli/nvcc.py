"""`nvcc`: NVIDIA's compiler, with marks in what it compiles.

In: nvcc's arguments. Out: what nvcc makes, and nvcc's exit code.
"""

from __future__ import annotations

import click


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def nvcc(arguments: tuple[str, ...]) -> int:
    """Compile with nvcc, with marks in the kernels: `warplens record` then sees what the program launches.

    Takes nvcc's own options, and --warplens-level=coarse|waits|all, --warplens-kernels=REGEX, --warplens-sites=REGEX,
    --warplens-budget=N|P% with --warplens-counts=TRACE, --warplens-nvcc=PATH, --warplens-verbose; WARPLENS_NVCC holds
    such options for a build that is not to be changed.
    `warplens-nvcc` is the same as one word, for PYTORCH_NVCC and CMAKE_CUDA_COMPILER.
    """
    from warplens.capture.nvcc import run
    from warplens.cli.budget import read_counts

    if arguments in (("--help",), ("-h",)):
        click.echo(nvcc.get_help(click.get_current_context()) + "\n")
    return run(list(arguments), read_counts)


def program() -> None:
    """The program `warplens-nvcc`."""
    from warplens.capture.nvcc import main
    from warplens.cli.budget import read_counts

    main(read_counts)
