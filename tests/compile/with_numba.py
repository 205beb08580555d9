"""Has the real Numba compile kernels and launch them while they are recorded, with no GPU: the driver is a stand-in.

Prints JSON: what was loaded and launched by step, names of sites, notes.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda, float32, void  # type: ignore[import-not-found]

from warplens import layout
from warplens.capture import driver
from warplens.capture.numba import NumbaDoor
from warplens.capture.python import PythonCapture, PythonOptions

warnings.simplefilter("ignore")
loaded: list[bytes] = []
launches: list[dict[str, Any]] = []
seen: list[tuple[Any, ...]] = []


class Device:
    """An H100, as far as it is asked."""

    id = 0
    compute_capability = (9, 0)


class Context:
    """Loads nothing."""

    device = Device()

    def create_module_image(self, code: Any, setup: Any = None, teardown: Any = None) -> Any:
        loaded.append(bytes(code.code))
        return Module(self, len(loaded))

    def get_max_potential_block_size(self, func: Any, **_: Any) -> tuple[int, int]:
        launches.append({"what": f"asked of the {kind_of(func.kernel)} one"})
        return 1, 128


class Module:
    initialized = True

    def __init__(self, context: Context, handle: int) -> None:
        self.context, self.handle = context, handle

    def get_function(self, name: str) -> Any:
        kernel = types.SimpleNamespace(module=self.handle, name=name)
        return types.SimpleNamespace(
            module=self, kernel=kernel, handle=100 + self.handle, name=name, device=self.context.device
        )


def kind_of(kernel: Any) -> str:
    return "marked" if layout.DESCRIPTOR_SYMBOL.encode() in loaded[kernel.module - 1] else "clean"


def without_a_gpu() -> None:
    """Puts stand-ins where numba-cuda looks for the driver."""
    from numba.cuda import api, dispatcher
    from numba.cuda.cudadrv import devices

    context = Context()
    devices.get_context = lambda *_: context
    dispatcher.get_context = devices.get_context
    dispatcher.get_current_device = lambda: context.device
    api.get_current_device = dispatcher.get_current_device
    dispatcher.driver._to_core_stream = lambda stream: types.SimpleNamespace(handle=int(stream or 0))

    def launch(stream: Any, config: Any, kernel: Any, *arguments: Any) -> None:
        launches.append({"what": kind_of(kernel), "stream": stream.handle, "grid": config.grid[0]})

    dispatcher.launch = launch
    dispatcher.LaunchConfig = lambda **named: types.SimpleNamespace(**named)
    driver.bindings = lambda: types.SimpleNamespace(CUlibrary=int, CUkernel=int)
    driver.call = lambda name, *args, **_: {"cuLibraryGetModule": args[0], "cuKernelGetFunction": args[0]}[name]
    driver.relaxed = contextlib.nullcontext


class Capture(PythonCapture):
    """Knows a kernel as marked when its door has loaded it: there is no memory for records."""

    def _point(self, door: Any, loaded: Any, stream: int) -> Any:
        seen.append(loaded)
        return loaded

    def _choose(self, *_: Any) -> None:
        pass


def turned(x: Any, y: Any) -> None:
    held = cuda.shared.array(128, float32)
    at = cuda.threadIdx.x
    held[at] = x[cuda.grid(1)]
    cuda.syncthreads()
    y[cuda.grid(1)] = twice(held[127 - at])


@cuda.jit(device=True)
def twice(value: Any) -> Any:
    cuda.syncwarp()
    return value * 2


def turning(x: Any, y: Any) -> None:
    turns = 3
    for _ in range(TURNS):
        cuda.syncthreads()
        y[cuda.grid(1)] += x[cuda.grid(1)] * turns


TURNS = 4


def grid_wide(x: Any) -> None:
    cuda.cg.this_grid().sync()
    x[cuda.grid(1)] = 1


X, Y = np.zeros(128, np.float32), np.zeros(128, np.float32)
SIGNATURE = void(float32[::1], float32[::1])


def record(program: Any, **options: Any) -> list[str]:
    """Notes."""
    capture = Capture(PythonOptions(**options), quiet=True)
    capture.join(NumbaDoor)
    try:
        program()
    finally:
        capture.stop()
    return capture.notes


def done() -> list[Any]:
    """What was launched since, and site names of what was marked."""
    out = [launches[:], {own.name: [site["name"] for site in own.site_set["sites"]] for own in seen}]
    launches.clear()
    seen.clear()
    return out


def with_and_without_lto(found: dict[str, Any]) -> None:
    for name, lto in (("lto", True), ("ptx", False)):
        lazy, early = cuda.jit(turned, lto=lto), cuda.jit(SIGNATURE, lto=lto)(turned)
        lined = cuda.jit(turned, lto=lto, lineinfo=True, fastmath=True, max_registers=32, launch_bounds=128)
        lazy[1, 128](X, Y)

        def program(kernels: Any = (lazy, early, lined)) -> None:
            for number, kernel in enumerate(kernels, 2):
                kernel[number, 128, number](X, Y)
            kernels[0].forall(128)(X, Y)

        found[f"notes_{name}"] = record(program)
        attributes = set(vars(next(iter(lazy.overloads.values()))))
        lazy[5, 128](X, Y)
        found[name] = done()
        again = len(loaded)
        found[f"notes_again_{name}"] = record(lambda lazy=lazy: lazy[6, 128](X, Y))
        found[f"loaded_again_{name}"] = len(loaded) - again
        found[f"again_{name}"] = done()[0]
        found[f"attributes_{name}"] = sorted(set(vars(next(iter(lazy.overloads.values())))) - attributes)


def of_a_cache(found: dict[str, Any], folder: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = (cuda.jit(turned, cache=True) for _ in range(2))
    found["notes_cache"] = record(lambda: (first[1, 128](X, Y), second[2, 128](X, Y)))
    found["hits"] = [sum(own.stats.cache_hits.values()) for own in (first, second)]
    found["cache"] = done()
    files = [path.read_bytes() for path in Path(folder).rglob("*.nbc")]
    found["cached"] = [len(files), any(layout.DESCRIPTOR_SYMBOL.encode() in own for own in files)]
    found["pickled"] = layout.DESCRIPTOR_SYMBOL.encode() in pickle.dumps(next(iter(first.overloads.values())))


def odd_ones(found: dict[str, Any], folder: str) -> None:
    global TURNS
    Path(folder, "other.cu").write_text('extern "C" __device__ int other(float* out) { *out = 1.f; return 0; }')
    other = cuda.declare_device("other", "float32()", link=str(Path(folder, "other.cu")))

    def linked(x: Any, y: Any) -> None:
        y[cuda.grid(1)] = other() + x[0]

    changed = cuda.jit(turning)
    changed[1, 128](X, Y)
    TURNS = 5

    def program() -> None:
        cuda.jit(grid_wide)[1, 128](X)
        cuda.jit(linked)[2, 128](X, Y)
        changed[3, 128](X, Y)

    found["notes_odd"] = record(program)
    found["odd"] = done()
    found["notes_other"] = record(program, kernels="nothing")
    found["other"] = done()


def main() -> None:
    without_a_gpu()
    from numba.cuda import codegen, dispatcher

    dispatcher._Kernel._prepare_args = lambda *_: None
    before = [dict(vars(own)) for own in (dispatcher._Kernel, dispatcher.CUDADispatcher, codegen.CUDACodeLibrary)]
    found: dict[str, Any] = {}
    folder = sys.argv[1]
    with_and_without_lto(found)
    of_a_cache(found, folder)
    odd_ones(found, folder)
    after = [dict(vars(own)) for own in (dispatcher._Kernel, dispatcher.CUDADispatcher, codegen.CUDACodeLibrary)]
    found["put_back"] = before == after
    print(json.dumps(found))


main()
