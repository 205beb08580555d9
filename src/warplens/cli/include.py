"""`include`: where the headers are, for compilers and build files.

In: nothing. Out: a folder on stdout, for `nvcc -I "$(warplens include)"`, or that of the CMake package.
"""

from __future__ import annotations

import click


@click.command()
@click.option("--cmake", is_flag=True, help="The folder of warplensConfig.cmake, for -Dwarplens_DIR.")
def include(cmake: bool) -> None:
    """Print the folder of the headers, for `-I`; with --cmake that of the CMake package."""
    from pathlib import Path

    from warplens.capture.compile import get_include

    folder = Path(get_include())
    click.echo(str(folder.parent / "cmake" if cmake else folder))
