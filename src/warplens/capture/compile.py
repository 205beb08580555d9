"""CUDA C++ source to machine code, by NVRTC.

In: source text, name expressions, options. Out: `Compiled`. Needs no GPU and no driver.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warplens.errors import CompileError, MissingDependencyError


@dataclass(frozen=True)
class Compiled:
    """Machine code of one module. `names`: name expression -> mangled name. `log`: what the compiler said."""

    cubin: bytes
    names: dict[str, str]
    log: str


def get_include() -> str:
    """The folder to give a compiler with -I, so that `#include <warplens/warplens.cuh>` is found."""
    return str(Path(__file__).parents[1] / "include")


def cuda_include_paths() -> list[Path]:
    """Folders with cuda_bf16.h and its like: CUDA_HOME or CUDA_PATH, wheels of NVIDIA, /usr/local/cuda."""
    candidates = [Path(os.environ[v]) / "include" for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    try:
        nvidia = importlib.import_module("nvidia")
    except ImportError:
        nvidia = None
    for root in getattr(nvidia, "__path__", []):
        candidates += [Path(root) / "cu13" / "include", Path(root) / "cuda_runtime" / "include"]
        candidates += [Path(root) / "cuda_cccl" / "include"]
    candidates.append(Path("/usr/local/cuda/include"))
    found = next((c for c in candidates if (c / "cuda_fp16.h").is_file()), None)
    if found is None:
        return []
    cccl = found / "cccl"
    return [found, cccl] if cccl.is_dir() else [found]


def load_nvrtc() -> Any:
    """The NVRTC bindings, or an error that names the command to install them."""
    try:
        nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise MissingDependencyError(
            f"NVRTC cannot be loaded ({error}). Compiling a kernel needs it: pip install 'warplens[cu13]' "
            "(or 'warplens[cu12]' for a CUDA 12 driver)"
        ) from error
    return nvrtc


def _check(nvrtc: Any, result: Any, what: str) -> Any:
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC: {what} failed: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if values else None


def _log(nvrtc: Any, program: Any) -> str:
    size = _check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program), "reading the log")
    buffer = b" " * size
    _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, buffer), "reading the log")
    text: str = buffer.rstrip(b"\0 ").decode(errors="replace")
    return text


def compile_cubin(
    source: str,
    name_expressions: Sequence[str],
    *,
    arch: str,
    options: Sequence[str] = (),
    filename: str = "kernel.cu",
) -> Compiled:
    """Compile CUDA C++ to a cubin.

    `name_expressions`: kernels to instantiate and keep, as C++ names them (`"rmsnorm_fwd<true>"`). `arch`: `sm_90a`.
    `options`: as NVRTC takes them; warplens' headers and the CUDA headers are found without. `filename` is the name
    in messages and in the sites' file.

    Raises CompileError with the compiler's log, MissingDependencyError when NVRTC is not installed.
    """
    nvrtc = load_nvrtc()
    program = _check(
        nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), filename.encode(), 0, [], []), "creating the program"
    )
    try:
        for name in name_expressions:
            _check(nvrtc, nvrtc.nvrtcAddNameExpression(program, name.encode()), f"adding the name {name!r}")
        folders = [get_include(), *cuda_include_paths()]
        flags = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", *options]
        flags += [f"--include-path={folder}" for folder in folders]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        log = _log(nvrtc, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{filename} does not compile for {arch}:\n{log}")
        names = {
            name: _check(nvrtc, nvrtc.nvrtcGetLoweredName(program, name.encode()), f"looking up {name!r}").decode()
            for name in name_expressions
        }
        size = _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program), "reading the machine code")
        cubin = b" " * size
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin), "reading the machine code")
        return Compiled(cubin=cubin, names=names, log=log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
