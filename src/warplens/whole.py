"""Files and folders that are written whole or not at all.

In: a path. Out: a stream or a folder beside it, which takes its place when all went well and vanishes when not.
Raises `FileError` for a place that cannot be written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from warplens.errors import FileError


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A stream into a temporary file beside `path`, which takes its place at the end."""
    path = place_for_file(path)
    try:
        descriptor, name = tempfile.mkstemp(prefix=".wlens-", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}; choose another place with -o") from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes a private file; this one is as any other
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder beside `path`, which becomes it at the end.

    Where `path` is a folder already, files in it give way to those of the same name, one by one; others stay.
    """
    path = _checked(path)
    try:
        if path.exists() and not path.is_dir():
            raise FileError(f"cannot write {path}: it is no folder; choose another place with -o")
        temporary = Path(tempfile.mkdtemp(prefix=".wlens-", suffix=".tmp", dir=path.parent))
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}; choose another place with -o") from error
    try:
        yield temporary
        if path.is_dir():
            for file in sorted(temporary.iterdir()):
                file.replace(path / file.name)
        else:
            temporary.chmod(0o777 & ~_umask())
            temporary.replace(path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def place_for_file(path: str | os.PathLike[str]) -> Path:
    """`path`, if a file may take this name. Raises FileError where it is that of a folder, a device or a pipe."""
    path = _checked(path)
    try:
        if path.exists() and not path.is_file():
            raise FileError(f"cannot write {path}: it is no plain file; choose another place with -o")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}; choose another place with -o") from error
    return path


def _checked(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if "\0" in str(path):
        raise FileError(f"cannot write {str(path)!r}: no name holds a zero byte")
    return path


def _umask() -> int:
    """Read where that can be done: to set it, even for a moment, would change what other threads make meanwhile."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    mask = os.umask(0)
    os.umask(mask)
    return mask
