"""Makes the corpus: PTX of real compilers, which tests read, mark and assemble. Needs no GPU.

    python tests/ptx/make.py --triton DIR --nvcc NVCC --cutlass INCLUDE --numba PYTHON --from-gpu FOLDER

In: folders of Triton installations (`pip install --target DIR --no-deps triton==3.6.0`, and the newest), an nvcc (the
wheels nvidia-cuda-nvcc, nvidia-cuda-crt, nvidia-nvvm, nvidia-cuda-runtime), CUTLASS's headers (of the wheel
nvidia-cutlass: cutlass_library/source/include), a Python that has numba-cuda; NVRTC is that of this Python.
torch.compile and CuPy compile where there is a GPU alone: FOLDER is what with_gpu.py wrote there. Out:
`tests/ptx/*.ptx.gz`, the same bytes for the same compilers. Paths of this machine, and of that, are taken out.
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
CUTLASS = {
    "sm_90a": ["-DCUTLASS_ARCH_MMA_SM90_SUPPORTED"],
    "sm_100a": ["-DCUTLASS_ARCH_MMA_SM100_SUPPORTED", "-DBLACKWELL"],
}
"""What cutlass_gemm.cu is compiled with for each."""
FROM_GPU = {
    "inductor_pointwise_90": "inductor_triton_poi_*silu_backward*",
    "inductor_reduction_90": "inductor_triton_red_*_0",
    "inductor_persistent_reduction_90": "inductor_triton_per_*layer_norm*",
    "inductor_mm_90": "inductor_triton_tem_*mm*",
    "inductor_flex_attention_90": "inductor_triton_tem_*flex_attention*",
    "cupy_raw_90": "cupy_transpose",
    "cupy_elementwise_90": "cupy_squares",
    "cupy_reduction_90": "cupy_norm_pass1",
}
"""What is kept of that which with_gpu.py writes, by its name here and by that which it has there."""


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


def by_nvcc(nvcc: Path, arch: str, source: str, options: list[str]) -> str:
    """PTX of a source, with its lines."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "kernels.ptx")
        virtual = arch.replace("sm", "compute")
        subprocess.run([nvcc, "-ptx", f"-arch={virtual}", *options, "-o", out, source], cwd=SOURCES, check=True)
        return out.read_text(encoding="utf-8")


def without_folders(text: str) -> str:
    """Triton says the folder of its source in bytes, too: there are as many slashes."""
    folder = re.compile(r"(// DW_AT_comp_dir)((?:\n\.b8 [1-9]\d*$)+)", re.MULTILINE)
    return folder.sub(lambda found: found[1] + re.sub(r"\d+$", "47", found[2], flags=re.MULTILINE), text)


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
    parser.add_argument("--cutlass", type=Path)
    parser.add_argument("--numba", type=Path)
    parser.add_argument("--from-gpu", type=Path)
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
        if arguments.nvcc:  # the debug information of -G is in one of them
            lines = "-G" if arch == "sm_80" else "-lineinfo"
            write(f"nvcc_{arch}", by_nvcc(arguments.nvcc, arch, "kernels.cu", [lines]))
    if arguments.cutlass:
        # With asserts, which also hold paths, ptxas makes wgmma serial.
        options = [
            "-std=c++17",
            "--expt-relaxed-constexpr",
            "-lineinfo",
            "-DNDEBUG",
            f"-I{arguments.cutlass.resolve()}",
        ]
        for arch, own in CUTLASS.items():
            write(f"cutlass_{arch}", by_nvcc(arguments.nvcc, arch, "cutlass_gemm.cu", [*options, *own]))
    if arguments.from_gpu:
        for name, pattern in FROM_GPU.items():
            (path,) = arguments.from_gpu.glob(f"{pattern}.ptx")
            write(name, without_folders(path.read_text(encoding="utf-8")))
    if arguments.numba:
        done = subprocess.run([str(arguments.numba), "-c", NUMBA], check=True, capture_output=True, text=True)
        write("numba_sm_90", done.stdout)


if __name__ == "__main__":
    main()
