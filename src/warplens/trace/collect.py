"""The files that the processes of a recorded program left in a folder, given their names.

In: the folder, and how files are to be called. Out: `.wlens` files in their places. Whole files are moved; of those
that were cut off (a crash, a kill) the complete launches are kept. Must not import Polars.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warplens.errors import FileError, FormatError
from warplens.trace.file import read_file, write_file

_PART: Final = re.compile(r"(\d+)(-\d+)?\.wlens(\.part)?")


@dataclass
class Collected:
    """What came of a run: files by path with their manifests, and what could not be kept."""

    files: dict[Path, dict[str, Any]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def name_of(template: str, process: dict[str, Any], *, ranked: bool) -> str:
    """A file's name: `%p` becomes the process, `%h` the host, `%r` the rank, `%n` the program, `%%` a percent sign."""
    program = re.sub(r"[^\w.+-]", "_", Path(str(process.get("program") or "program")).stem) or "program"
    rank = process.get("rank") or 0
    known = {"p": str(process.get("pid", 0)), "h": platform.node(), "r": str(rank), "n": program, "%": "%"}
    if template == DEFAULT_TEMPLATE and ranked:
        template = RANKED_TEMPLATE
    return re.sub(r"%([phrn%])", lambda found: known[found[1]], template)


DEFAULT_TEMPLATE: Final = "warplens-%n-%p.wlens"
RANKED_TEMPLATE: Final = "warplens-%n-%p-rank%r.wlens"


def collect(folder: Path, template: str, *, ranked: bool = False) -> Collected:
    """Give the files in `folder` their names by `template`; `ranked`: whether the processes have ranks.

    A file that cannot be read, or for which there is no place, is among the failures and stays in `folder`.
    """
    out = Collected()
    for path in sorted(folder.iterdir()):
        if not _PART.fullmatch(path.name) or path.stat().st_size == 0:  # nothing was recorded in that process
            continue
        try:
            _keep(path, template, ranked, out)
        except (FileError, OSError) as error:
            out.failures.append(str(error))
    return out


def _keep(path: Path, template: str, ranked: bool, out: Collected) -> None:
    contents = read_file(path)
    if not contents.manifest["launches"]:
        path.unlink()  # nothing in it can be shown
        raise FormatError(f"{path.name}: no launch in it is complete")
    process = contents.manifest.get("process")
    process = process if isinstance(process, dict) else {}
    target = _free(Path(name_of(template, process, ranked=ranked)), process, out)
    if path.suffix == ".part":
        write_file(target, contents.manifest, records=contents.records, sources=contents.sources)
        path.unlink()
    else:
        try:
            os.replace(path, target)  # noqa: PTH105
        except OSError:  # another file system
            shutil.copyfile(path, target)
            path.unlink()
    out.files[target] = contents.manifest


def _free(target: Path, process: dict[str, Any], out: Collected) -> Path:
    """`target`, or a name beside it where another process of this run has that."""
    number = 0
    first = target
    while target in out.files:
        number += 1
        more = f"-{process.get('pid', 0)}" + (f"-{number}" if number > 1 else "")
        target = first.with_name(first.stem + more + first.suffix)
    return target
