"""A program with launches and a CUDA driver, both without a GPU: what host.hpp does, seen from outside.

In: the sources beside this file and a C++ compiler. Out: the built program, and runs of it below `warplens record`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import warplens
from tests.synthesis import U32, fake_launch, sm_clocks
from warplens.capture.compile import get_include

HERE = Path(__file__).parent
NVTX = next((root for root in sorted(Path("/usr/local").glob("cuda*/include")) if (root / "nvtx3").is_dir()), None)
"""Where NVTX's headers are; None: the program is built without."""
BLOCKS, WARPS, PHASES = 6, 2, 4
EVENTS = BLOCKS * WARPS * PHASES


@dataclass(frozen=True)
class Built:
    """The program, its driver, and the chunks that each of its launches writes."""

    folder: Path

    @property
    def program(self) -> str:
        return str(self.folder / "program")

    @property
    def chunks(self) -> U32:
        return np.fromfile(self.folder / "chunks.bin", np.uint32).reshape(-1, 32)


def build(folder: Path) -> Built:
    """Compile both with every warning as an error."""
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-DWARPLENS_DETAIL_LONGEST_END_S=3"]
    driver = str(folder / "libcuda.so.1")
    subprocess.run(["g++", *flags, "-shared", "-fPIC", "-o", driver, str(HERE / "fake_driver.cpp")], check=True)
    (folder / "libnvidia-ml.so.1").symlink_to("libcuda.so.1")
    link = [f"-L{folder}", "-l:libcuda.so.1", f"-Wl,-rpath,{folder}"]
    include = [f"-I{get_include()}", *([] if NVTX is None else ["-isystem", str(NVTX)])]
    command = ["g++", *flags, "-pthread", *include, "-o", str(folder / "program"), str(HERE / "program.cpp"), *link]
    subprocess.run(command, check=True)
    chunks, _ = fake_launch(blocks=BLOCKS, warps=WARPS, phases=PHASES, clocks=sm_clocks(2))
    chunks.tofile(folder / "chunks.bin")
    return Built(folder)


def build_libraries(built: Built, *flags: str) -> list[str]:
    """The program as two shared objects, and what loads both; the command without the mode."""
    link = [f"-L{built.folder}", "-l:libcuda.so.1", f"-Wl,-rpath,{built.folder}"]
    options = ["-std=c++17", "-O0", "-fPIC", "-shared", "-DLIBRARY", "-pthread", f"-I{get_include()}", *flags]
    out = [str(built.folder / f"{name}{''.join(flags)}.so") for name in ("first", "second")]
    subprocess.run(["g++", *options, "-o", out[0], str(HERE / "program.cpp"), *link], check=True)
    shutil.copy2(out[0], out[1])  # the loader tells them apart by their files
    loader = str(built.folder / f"loader{''.join(flags)}")
    subprocess.run(["g++", "-std=c++17", "-o", loader, str(HERE / "loader.cpp"), "-ldl"], check=True)
    return [loader, *out]


def record(
    built: Built, place: Path, *arguments: str, options: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """The program with `arguments` below `warplens record`, in the folder `place`, which gets `run.wlens`."""
    command = [sys.executable, "-m", "warplens", "record", "-o", "run.wlens", *options, "--", built.program, *arguments]
    return run(built, place, command, **environment)


def run(built: Built, place: Path, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Any command in `place`, with what the program wants to know."""
    variables = {**os.environ, "CHUNKS": str(built.folder / "chunks.bin"), **environment}
    return subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, timeout=60)


def launches_of(path: Path) -> int:
    """How many launches a file has, once it has been seen that each has all its events."""
    trace = warplens.open(path)
    assert trace.spans.height == EVENTS * trace.launches.height
    return trace.launches.height
