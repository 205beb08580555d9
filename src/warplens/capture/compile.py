"""CUDA C++ source to machine code, by NVRTC.

In: source text, name expressions, options. Out: `Compiled`. Needs no GPU and no driver.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from warplens.errors import INSTALL, CompileError, MissingDependencyError

_STANDARD: Final = re.compile(r"--?std(=|$)")
"""Options that choose the C++ standard: NVRTC warns when it is chosen twice."""


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
    roots = [Path(root) for root in getattr(nvidia, "__path__", [])]
    candidates += [root / part / "include" for root in roots for part in ("cu13", "cuda_runtime")]
    candidates.append(Path("/usr/local/cuda/include"))
    found = next((c for c in candidates if (c / "cuda_fp16.h").is_file()), None)
    if found is None:
        return []
    cccl = [found / "cccl", *(root / "cuda_cccl" / "include" for root in roots)]  # CUDA 13, CUDA 12
    return [found, *[folder for folder in cccl if folder.is_dir()][:1]]


def load_nvrtc() -> Any:
    """The NVRTC bindings, or an error that names the command to install them."""
    try:
        nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise MissingDependencyError(
            f"NVRTC cannot be loaded ({error}), and compiling a kernel needs it\n{INSTALL}"
        ) from error
    return nvrtc


@cache
def tells_constants() -> bool:
    """Whether NVRTC tells device code which values it knows (13.0 does not): the headers' `WARPLENS_DETAIL_KNOWN`."""
    try:
        compile_cubin('extern "C" __global__ void f(int* x) { *x = __builtin_constant_p(*x); }', [], arch="sm_80")
    except CompileError:
        return False
    return True


def _check(nvrtc: Any, result: Any, what: str) -> Any:
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC: {what} failed: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if values else None


def _buffer(size: int) -> bytes:
    """Bytes for NVRTC to write `size` of: one more, since Python keeps one object for all equal bytes of length 1."""
    return bytes(size + 1)


def _log(nvrtc: Any, program: Any) -> str:
    size = _check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program), "reading the log")
    buffer = _buffer(size)
    _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, buffer), "reading the log")
    text: str = buffer.rstrip(b"\0 ").decode(errors="replace")
    return text


def _c_text(text: str, what: str) -> bytes:
    """`text` as NVRTC takes it: it would silently read to the first zero byte only."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise CompileError(f"{what} is no text that UTF-8 can hold: {error}") from error
    if b"\0" in data:
        raise CompileError(f"{what} holds a zero byte (character {text.index(chr(0))}): NVRTC would stop reading there")
    return data


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
    text, file = _c_text(source, "the source"), _c_text(filename, "the file's name")
    expressions = {name: _c_text(name, "the kernel's name") for name in name_expressions}
    standard = () if any(_STANDARD.match(option) for option in options) else ("--std=c++17",)
    flags = [f"--gpu-architecture={arch}", *standard, "-default-device", *options]
    flags += [f"--include-path={folder}" for folder in (get_include(), *cuda_include_paths())]
    options_text = [_c_text(flag, f"the option {flag!r}") for flag in flags]
    nvrtc = load_nvrtc()
    program = _check(nvrtc, nvrtc.nvrtcCreateProgram(text, file, 0, [], []), "creating the program")
    try:
        for name, expression in expressions.items():
            _check(nvrtc, nvrtc.nvrtcAddNameExpression(program, expression), f"adding the name {name!r}")
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), options_text)
        log = _log(nvrtc, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{filename} does not compile for {arch}:\n{log}")
        names = {
            name: _check(nvrtc, nvrtc.nvrtcGetLoweredName(program, expression), f"looking up {name!r}").decode()
            for name, expression in expressions.items()
        }
        size = _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program), "reading the machine code")
        cubin = _buffer(size)
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin), "reading the machine code")
        return Compiled(cubin=cubin[:size], names=names, log=log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
