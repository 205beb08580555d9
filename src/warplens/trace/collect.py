"""The files that the processes of a recorded program left in a folder, given their names.

In: the folder, and how files are to be called. Out: `.wlens` files in their places. Whole files are moved; of those
that were cut off (a crash, a kill) the complete launches are kept, on a full disk as `.wlens.part`. Must not import
Polars.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warplens.errors import FileError, FormatError
from warplens.trace.file import FileContents, read_file, write_file
from warplens.whole import place_for_file, whole_file

_PART: Final = re.compile(r"(\d+)(-\d+)?\.wlens(\.part)?")


@dataclass
class Collected:
    """What came of a run: files by path with their manifests, and what could not be kept."""

    files: dict[Path, dict[str, Any]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def name_of(template: str, process: dict[str, Any], *, ranked: bool) -> str:
    """A file's name: `%p` becomes the process, `%h` the host, `%r` the rank, `%n` the program, `%%` a percent sign."""
    program = re.sub(r"[^\w.+-]", "_", Path(str(process.get("program") or "program")).stem).strip(".") or "program"
    pid, rank = (str(_number(process, key)) for key in ("pid", "rank"))
    known = {"p": pid, "h": platform.node(), "r": rank, "n": program, "%": "%"}
    if template == DEFAULT_TEMPLATE and ranked:
        template = RANKED_TEMPLATE
    return re.sub(r"%([phrn%])", lambda found: known[found[1]], template)


def _number(process: dict[str, Any], key: str) -> int:
    """0 for what is none: names of files are made of it."""
    value = process.get(key)
    return value if type(value) is int and value >= 0 else 0


DEFAULT_TEMPLATE: Final = "warplens-%n-%p.wlens"
RANKED_TEMPLATE: Final = "warplens-%n-%p-rank%r.wlens"


def collect(folder: Path, template: str, *, ranked: bool = False, force: bool = False) -> Collected:
    """Give the files in `folder` their names by `template`; `ranked`: whether the processes have ranks.
    A name that another file of this run has, or any file where `force` is not set, gives way to one beside it.
    A file that cannot be read, or for which there is no place, is among the failures and stays in `folder`.
    """
    out = Collected()
    for path in sorted(folder.iterdir()):
        if not _PART.fullmatch(path.name) or path.stat().st_size == 0:  # nothing was recorded in that process
            continue
        try:
            _keep(path, template, ranked, force, out)
        except (FileError, OSError) as error:
            out.failures.append(str(error))
    return out


def _keep(path: Path, template: str, ranked: bool, force: bool, out: Collected) -> None:
    contents = read_file(path)
    if not contents.manifest["launches"]:
        path.unlink()  # nothing in it can be shown
        raise FormatError(f"{path.name}: no launch in it is complete")
    process = contents.manifest.get("process")
    process = process if isinstance(process, dict) else {}
    whole = path
    if path.suffix == ".part":
        whole = _whole(path, contents)
    name = name_of(template, process, ranked=ranked)
    first = Path(f"{name}.part" if whole.suffix == ".part" else name)
    if "%" in str(Path(template).parent):  # the folder's name is known only now
        first.parent.mkdir(parents=True, exist_ok=True)
    for target in _names(first, process):
        if target not in out.files and _place(whole, target, force):
            out.files[target] = contents.manifest
            return


def _whole(part: Path, contents: FileContents) -> Path:
    """The file written anew, with a directory; as it is, which `warplens.open` reads too, where there is no room."""
    whole = part.with_name(f"whole-{part.stem}")
    try:
        write_file(whole, contents.manifest, records=contents.records, sources=contents.sources)
    except FileError:
        return part
    part.unlink()
    return whole


def _place(path: Path, target: Path, force: bool) -> bool:
    """Move `path` to `target`; False where another file has that name and may not be written over."""
    try:
        if force:
            os.replace(path, place_for_file(target))  # noqa: PTH105
            return True
        os.link(path, target)
    except FileExistsError:
        return False
    except OSError:  # another file system, or one without links
        try:
            _copy(path, target, force)
        except FileExistsError:
            return False
    path.unlink()
    return True


def _copy(path: Path, target: Path, force: bool) -> None:
    with path.open("rb") as source, whole_file(target) if force else target.open("xb") as copy:
        try:
            shutil.copyfileobj(source, copy)
        except OSError:
            if not force:
                target.unlink()
            raise


def _names(first: Path, process: dict[str, Any]) -> Iterator[Path]:
    """`first`, then names beside it."""
    yield first
    for number in itertools.count(1):
        more = f"-{_number(process, 'pid')}" + (f"-{number}" if number > 1 else "")
        yield first.with_name(first.stem + more + first.suffix)
