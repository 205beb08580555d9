"""`--open`: what was made, shown by the user's own programs.

In: a file or an address. Out: a window, or one line that says where it is and that nothing was found to open it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from warplens.render.escape import visible

_LONGEST_S: Final = 2.0
"""xdg-open that cannot open says so within a fraction of this; one that runs on has become the browser itself."""


def show(*targets: Path | str) -> None:
    """Opens files or an address; where the first cannot be opened, one line on stderr names them all."""
    places = [str(target.absolute()) if isinstance(target, Path) else target for target in targets]
    if not all(map(_opened, places)):
        named = ", ".join(visible(place, limit=4096) for place in places)
        click.echo(f"--open: no browser or other program was found here that opens {named}", err=True)


def _opened(place: str) -> bool:
    # click's own does not wait for xdg-open, which is there on machines without any browser, and takes it for a success
    if sys.platform in ("darwin", "win32", "cygwin"):
        return click.launch(place) == 0
    try:
        process = subprocess.Popen(["xdg-open", place], stderr=subprocess.DEVNULL)
    except OSError:
        import webbrowser

        return webbrowser.open(place if "://" in place else Path(place).as_uri())
    try:
        return process.wait(_LONGEST_S) == 0
    except subprocess.TimeoutExpired:
        process.returncode = 0  # it stays when this command has gone; Popen would warn of that
        return True
