"""Files that grow by whole launches, and what is made of one that was cut off.

In: launches one by one; or the manifest as it was begun, and members `launches/NNNNNN.json`. Out: a `.wlens.part`,
which takes its name at the end; or a manifest with those launches whose records are whole. Trusts nothing: what cannot
be read, or is of a kernel that no entry describes, is left out.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from warplens.errors import FileError

LAUNCH: Final = re.compile(r"launches/\d{1,9}\.json")
MAX_LAUNCH_BYTES: Final = 1 << 20
MAX_KERNELS: Final = 1 << 16
MAX_SOURCES_BYTES: Final = 1 << 20


def assemble(manifest: dict[str, Any], names: Collection[str], read: Callable[[str, int], bytes]) -> dict[str, Any]:
    """`manifest` with the launches (and the kernels they name) that stand in members of their own."""
    kernels, launches = list(manifest["kernels"]), list(manifest["launches"])
    for name in sorted(name for name in names if LAUNCH.fullmatch(name)):
        try:
            found = json.loads(read(name, MAX_LAUNCH_BYTES))
            launch, kernel = dict(found["launch"]), dict(found["kernel"])
            index, records = int(launch["kernel"]), launch["records"]
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if not 0 <= index < MAX_KERNELS or (records is not None and records not in names):
            continue
        kernels += [None] * (index + 1 - len(kernels))
        kernels[index] = kernel
        launches.append(launch)
    known = [index for index, kernel in enumerate(kernels) if kernel is not None]
    renumbered = {index: new for new, index in enumerate(known)}
    launches = [{**entry, "kernel": renumbered[entry["kernel"]]} for entry in launches]
    out = {**manifest, "kernels": [kernels[index] for index in known], "launches": launches, "complete": False}
    stopped = manifest.get("stopped")
    if stopped is not None and stopped.get("launch", len(launches) - 1) != len(launches) - 1:
        out["stopped"] = None  # the launch that did not end was cut off while it was saved
    return out


def choose_sources(sources: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Those that fit into a file, by path, and the paths of others."""
    kept, left_out, room = {}, [], MAX_SOURCES_BYTES
    for path, text in sources.items():
        size = len(text.encode("utf-8", "replace"))
        if size <= room:
            kept[path] = text
            room -= size
        else:
            left_out.append(path)
    return kept, left_out


class PartWriter:
    """A file in `folder`, named by `stem`, that holds whole launches at any time.

    The C++ one is in include/warplens/detail/host_file.hpp. Raises FileError for a place that cannot be written.
    """

    def __init__(self, folder: Path, stem: str) -> None:
        taken = 0
        while (folder / f"{_numbered(stem, taken)}.wlens").exists() or self._part(folder, stem, taken).exists():
            taken += 1
        self._path = self._part(folder, stem, taken)
        self._pid = os.getpid()
        self._adding = threading.Lock()
        self._launches: list[dict[str, Any]] = []
        self._tail = False  # behind the last member lies a launch that has not ended
        self._cut = False  # ... or lay: what is left of it goes at the end
        try:
            self._file = _Own(self._path)
        except OSError as error:
            raise FileError(f"cannot write {self._path}: {error.strerror or error}") from error
        self._zip: zipfile.ZipFile | None = zipfile.ZipFile(self._file.stream, "w", zipfile.ZIP_STORED)
        self._zip.fp = None  # but while something is written: when collected it would write a directory
        _writers.add(self)

    @staticmethod
    def _part(folder: Path, stem: str, taken: int) -> Path:
        return folder / f"{_numbered(stem, taken)}.wlens.part"

    @property
    def is_empty(self) -> bool:
        """Whether there is no whole launch yet: the first one comes with the manifest."""
        return not self._launches

    def add(
        self, manifest: dict[str, Any], launch: dict[str, Any], kernel: dict[str, Any], chunks: npt.NDArray[np.uint32]
    ) -> None:
        """One launch, with its records of shape (n, 32). Any thread may add one. `manifest`: of the first one."""
        with self._adding:
            self._tail = False
            number = len(self._launches)
            entry = {**launch, "records": f"records/{number:06d}.u32"}
            if number == 0:
                self._write("manifest.json", json.dumps(manifest).encode())
            self._write(entry["records"], np.ascontiguousarray(chunks, "<u4").tobytes())
            self._write(f"launches/{number:06d}.json", json.dumps({"launch": entry, "kernel": kernel}).encode())
            self._launches.append(entry)

    def add_stopped(
        self, manifest: dict[str, Any], launch: dict[str, Any], kernel: dict[str, Any], chunks: npt.NDArray[np.uint32]
    ) -> None:
        """A launch that has not ended, with what it wrote so far, until the next member takes its place.

        `manifest`: with `stopped`, and the texts of `sources` by path.
        """
        with self._adding:
            archive = self._zip
            if archive is None:
                raise FileError(f"cannot write {self._path}: it was given up")
            end, known = archive.start_dir, len(archive.filelist)
            names = dict(archive.NameToInfo)
            number = len(self._launches)
            entry = {**launch, "records": f"records/{number:06d}.u32"}
            sources, left_out = choose_sources(manifest.get("sources") or {})
            facts = {**manifest, "complete": False, "sources": []}
            facts["stopped"] = {**manifest["stopped"], "launch": number}
            if left_out:
                facts["sources_left_out"] = left_out
            for path, text in sources.items():
                facts["sources"].append({"path": path, "member": f"source/{len(facts['sources'])}.txt"})
                self._write(facts["sources"][-1]["member"], text.encode("utf-8", "replace"))
            archive.NameToInfo.pop("manifest.json", None)  # the newest counts
            self._write("manifest.json", json.dumps(facts).encode())
            self._write(entry["records"], np.ascontiguousarray(chunks, "<u4").tobytes())
            self._write(f"launches/{number:06d}.json", json.dumps({"launch": entry, "kernel": kernel}).encode())
            archive.start_dir = end
            del archive.filelist[known:]
            archive.NameToInfo = names
            self._tail = self._cut = True

    def finish(self, manifest: dict[str, Any]) -> Path | None:
        """Give the file its manifest, whose `sources` are texts by path, and its name; None where nothing was added.

        Where the disk was full before, or is now (FileError), the part stays, with the launches that are whole; so it
        does where a launch has not ended (`add_stopped`). Where
        the folder is gone, the file is in one of its own below the system's folder for temporary files.
        """
        with self._adding:
            archive, self._zip = self._zip, None
        if os.getpid() != self._pid:
            return None
        if self._tail:
            self._file.close()
            return self.left
        if not self._launches:
            if archive is not None:
                self._file.give_up(0)
            self._path.unlink(missing_ok=True)
            return None
        if archive is None:
            return self.left
        end = archive.start_dir
        try:
            archive.fp = self._file.now()
            if self._cut:
                self._file.cut(end)
            kept = [own for own in archive.filelist if own.filename.startswith("records/")]
            archive.filelist[:] = kept
            archive.NameToInfo = {own.filename: own for own in kept}
            sources, left_out = choose_sources(manifest.get("sources") or {})
            facts = {**manifest, "launches": self._launches, "sources": []}
            if left_out:
                facts["sources_left_out"] = left_out
            for path, text in sources.items():
                member = f"source/{len(facts['sources'])}.txt"
                archive.writestr(member, text)
                facts["sources"].append({"path": path, "member": member})
            archive.writestr("manifest.json", json.dumps(facts))
            archive.close()
            whole = self._named()
            self._file.close()
            return whole
        except OSError as error:
            archive.fp = None
            self._file.give_up(end)
            raise FileError(f"cannot write {self._path}: {error.strerror or error}") from error

    def _named(self) -> Path:
        """The part by its own name, or its contents in another folder where the part is not there any more."""
        whole = self._path.with_suffix("")
        try:
            return self._path.rename(whole)
        except FileNotFoundError:
            kept = Path(tempfile.mkdtemp(prefix="warplens-kept-")) / whole.name
        contents = self._file.stream
        contents.seek(0)
        with kept.open("xb") as copy:
            shutil.copyfileobj(contents, copy)
        return kept

    @property
    def left(self) -> Path | None:
        """The part, which opens as a file does; None where it is none any more, or holds no launch."""
        return (
            self._path if (self._launches or self._tail) and os.getpid() == self._pid and self._path.exists() else None
        )

    def let_go(self) -> None:
        """In a child of fork: the file is its parent's, and so is the place in it, which both share."""
        archive, self._zip = self._zip, None
        self._adding = threading.Lock()  # a thread that held the other one is not here
        if archive is not None:
            archive.fp = None
            self._file.close()

    def _write(self, name: str, data: bytes) -> None:
        if self._zip is None:
            raise FileError(f"cannot write {self._path}: it was given up")
        archive, end = self._zip, self._zip.start_dir
        try:
            archive.fp = stream = self._file.now()
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
            stream.flush()
        except OSError as error:
            self._zip = None
            self._file.give_up(end)
            raise FileError(f"cannot write {self._path}: {error.strerror or error}") from error
        finally:
            archive.fp = None


class _Own:
    """An open file that is written to by its own descriptor alone.

    A program may close all descriptors, as daemons do, and open files of its own, which get the same numbers: those are
    neither written to nor closed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open(os.O_CREAT | os.O_EXCL)
        self._identity = self._found()

    def now(self) -> IO[bytes]:
        """The stream, opened anew where it was closed. OSError where the file is not there any more."""
        if self._found() != self._identity:
            self._open(0)
            if self._found() != self._identity:
                os.close(self._descriptor)
                raise FileNotFoundError(errno.ENOENT, "another file has its name")
        return self.stream

    def give_up(self, size_bytes: int) -> None:
        """Cut off what is not whole, and close it."""
        with contextlib.suppress(OSError):
            self.now()
            os.truncate(self._descriptor, size_bytes)
        self.close()

    def cut(self, size_bytes: int) -> None:
        """Ends the file, which is open, at `size_bytes`."""
        self.stream.flush()
        os.truncate(self._descriptor, size_bytes)

    def close(self) -> None:
        """Writes nothing that is waiting to be written: in a child of fork that is its parent's."""
        self.stream.raw.close()
        if self._found() == self._identity:
            os.close(self._descriptor)

    def _open(self, flags: int) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | getattr(os, "O_BINARY", 0) | flags, 0o666)
        self.stream = io.BufferedRandom(io.FileIO(self._descriptor, "r+", closefd=False))

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.fstat(self._descriptor)
        except OSError:
            return None
        return found.st_dev, found.st_ino


_writers: Final[weakref.WeakSet[PartWriter]] = weakref.WeakSet()


def _let_go() -> None:
    for writer in list(_writers):
        writer.let_go()


os.register_at_fork(after_in_child=_let_go)


def _numbered(stem: str, number: int) -> str:
    return f"{stem}-{number}" if number else stem
