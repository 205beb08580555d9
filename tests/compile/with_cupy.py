"""Has the real CuPy compile modules while they are recorded, with no GPU: its loading and its GPU are stand-ins.

Prints JSON: what was loaded by step, whether CuPy's cache was asked or given anything, notes.
"""

from __future__ import annotations

import json
import types
from typing import Any

import cupy  # type: ignore[import-not-found]
import cupy._core.raw as raw  # type: ignore[import-not-found]
from cupy.cuda import compiler, function  # type: ignore[import-not-found]

from warplens import layout
from warplens.capture.cupy import CupyDoor
from warplens.capture.python import PythonCapture, PythonOptions

SOURCE = r"""
extern "C" __global__ void __launch_bounds__(256) softmax(float* x, const float* y, int n) {
  __shared__ float s[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = i < n ? y[i] : 0.f;
  __syncthreads();
  x[i] = s[255 - threadIdx.x] * 2.f + 1.f;
}
template <typename T>
__global__ void scale(T* x) { x[threadIdx.x] *= T(2); __syncthreads(); x[threadIdx.x + 1] *= T(3); }
"""
NAMES = ("scale<float>", "scale<double>")
loaded: list[bytes] = []
of_cache: list[str] = []


class Module(function.Module):  # type: ignore[misc]
    """Loads nothing."""

    def load(self, cubin: bytes) -> None:
        loaded.append(cubin)


class Cache:
    """CuPy's folder."""

    def load(self, name: str) -> None:
        of_cache.append("asked for " + name.partition(".")[2])

    def save(self, name: str, payload: bytes, source: str) -> None:
        of_cache.append("given marks" if layout.DESCRIPTOR_SYMBOL.encode() in payload else "given clean code")


def module_of(source: str, names: Any = None, options: tuple[str, ...] = ()) -> Any:
    """As RawModule asks for it."""
    return raw._get_raw_module(source, None, options, "nvrtc", False, False, False, names, None)


def main() -> None:
    raw._get_raw_module = raw._get_raw_module.__wrapped__  # what keeps modules in memory asks for the GPU
    compiler.function = types.SimpleNamespace(Module=Module, LinkState=function.LinkState)
    compiler._get_arch = lambda: "90"
    compiler._get_arch_for_options_for_nvrtc = lambda arch=None: ("-arch=sm_90", "cubin")
    compiler._kernel_cache_backend = Cache()
    before = {name: own for name, own in vars(compiler).items() if callable(own)}
    capture = PythonCapture(PythonOptions(), quiet=True)
    capture.join(CupyDoor)
    module = module_of(SOURCE, NAMES, ("-std=c++17",))
    kernels = {
        own.name: [site["name"] for site in own.loaded.site_set["sites"]] for own in module.warplens_kernels.values()
    }
    texts = {name: text for own in module.warplens_kernels.values() for name, text in own.loaded.texts.items()}
    try:
        module_of('extern "C" __global__ void wrong() { x }')
        error = ""
    except compiler.CompileException as raised:
        error = str(raised)
    while_recording = list(of_cache)
    capture.stop()
    put_back = all(getattr(compiler, name) is own for name, own in before.items())
    plain = module_of(SOURCE)
    found = {
        "mapping": module.mapping,
        "kernels": kernels,
        "is_source": texts == {"cupy/softmax.cu": SOURCE},
        "marked": [layout.DESCRIPTOR_SYMBOL.encode() in own for own in loaded],
        "cache": while_recording,
        "cache_behind": of_cache[len(while_recording) :],
        "error": error,
        "notes": capture.notes,
        "put_back": put_back,
        "is_theirs": isinstance(module, function.Module) and type(plain) is Module,
        "version": cupy.__version__,
    }
    print(json.dumps(found))


main()
