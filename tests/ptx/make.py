"""Makes the corpus: PTX of real compilers, which tests read, mark and assemble. Needs no GPU.

    python tests/ptx/make.py --triton DIR --nvcc NVCC --numba PYTHON

In: folders of Triton installations (`pip install --target DIR --no-deps triton==3.6.0`, and the newest), an nvcc (the
wheels nvidia-cuda-nvcc, nvidia-cuda-crt, nvidia-nvvm, nvidia-cuda-runtime), a Python that has numba-cuda; NVRTC is that
of this Python. Out: `tests/ptx/*.ptx.gz`, the same bytes for the same compilers. Paths of this machine are taken out.
CuPy compiles with NVRTC, and torch.compile with Triton: what they give differs in names alone.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = Path(tempfile.gettempdir(), "corpus")
"""Sources are compiled from here: debug information holds the folder, also in bytes that nobody sees."""
ARCHS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a"}


def write(name: str, text: str) -> None:
    """One file of the corpus. Sections of debug information stay, without the paths in them."""
    text = re.sub(r'(\.file\s+\d+\s+")(?:[^"]*/)?([^"/]+")', r"\1src/\2", text)
    data = gzip.compress(text.encode(), 9, mtime=0)
    (HERE / f"{name}.ptx.gz").write_bytes(data)
    sys.stdout.write(f"{name}: {len(text):,} bytes, {len(data):,} compressed\n")


def by_triton(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and PTX of every kernel that this Triton compiles; run in a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'src'}", "TRITON_CACHE_DIR": cache}
        program = [sys.executable, str(SOURCES / "with_triton.py"), cache]
        subprocess.run(program, env=environment, cwd=SOURCES, check=True, stderr=subprocess.DEVNULL)
        for path in sorted(Path(cache).glob("*.ptx")):
            yield path.stem, path.read_text(encoding="utf-8")


def by_nvrtc(arch: str) -> str:
    """PTX of kernels.cu."""
    from cuda.bindings import nvrtc

    source = (SOURCES / "kernels.cu").read_bytes()
    status, program = nvrtc.nvrtcCreateProgram(source, b"kernels.cu", 0, [], [])
    options = [f"--gpu-architecture={arch.replace('sm', 'compute')}".encode(), b"-lineinfo"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.decode())
    data = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
    nvrtc.nvrtcGetPTX(program, data)
    text: str = data.rstrip(b"\0").decode()
    return text


def by_nvcc(nvcc: Path, arch: str) -> str:
    """PTX of kernels.cu, with the debug information of -G for one of them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "kernels.ptx")
        virtual = arch.replace("sm", "compute")
        command = [str(nvcc), "-ptx", f"-arch={virtual}", *(["-G"] if arch == "sm_80" else []), "-o", str(out)]
        subprocess.run([*command, "kernels.cu"], cwd=SOURCES, check=True)
        return out.read_text(encoding="utf-8")


NUMBA = """
import sys
from numba import cuda, float32
def body(x, y):
    part = cuda.shared.array(256, float32)
    i = cuda.grid(1)
    part[cuda.threadIdx.x] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    if i < y.size:
        y[i] = part[255 - cuda.threadIdx.x]
sys.stdout.write(cuda.compile_ptx(body, (float32[:], float32[:]), cc=(9, 0), lineinfo=True)[0])
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--triton", type=Path, action="append", default=[])
    parser.add_argument("--nvcc", type=Path)
    parser.add_argument("--numba", type=Path)
    arguments = parser.parse_args()
    SOURCES.mkdir(exist_ok=True)
    examples = [ROOT / "examples" / "triton" / name for name in ("marked_matmul.py", "specialized_matmul.py")]
    for path in [*HERE.glob("*.[pc][yu]"), *examples]:
        shutil.copy(path, SOURCES)
    os.chdir(SOURCES)
    for folder in arguments.triton:
        version = next(folder.glob("triton-*.dist-info")).name.split("-")[1].rsplit(".", 1)[0]
        for name, text in by_triton(folder):
            write(f"triton_{version}_{name}", text)
    for arch in ARCHS.values():
        write(f"nvrtc_{arch}", by_nvrtc(arch))
        if arguments.nvcc:
            write(f"nvcc_{arch}", by_nvcc(arguments.nvcc, arch))
    if arguments.numba:
        done = subprocess.run([str(arguments.numba), "-c", NUMBA], check=True, capture_output=True, text=True)
        write("numba_sm_90", done.stdout)


if __name__ == "__main__":
    main()
