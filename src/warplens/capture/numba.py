"""Numba's door: kernels of `@numba.cuda.jit` get their marks at their first launch while recording.

In: a capture. Out: numba-cuda, whose launches that capture sees, until it is put back (docs/adr/0014-cupy.md). The
kernel with marks is loaded beside the clean one and takes its place at launches alone: what the program asks of a
kernel, what Numba keeps of it and what goes to its cache is the clean one. Numba is the user's own, and is not imported
before `start`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from warplens.capture import driver
from warplens.capture.numba_builds import marked, unmarkable
from warplens.capture.python import PythonCapture
from warplens.capture.python_builds import Kernel
from warplens.capture.python_door import PatchingDoor
from warplens.capture.python_manifest import Loaded
from warplens.capture.tell import one_line

_CHANGED: Final = {
    "numba.cuda.dispatcher": ("CUDADispatcher.call", "_Kernel.launch"),
    "numba.cuda.codegen": ("CUDACodeLibrary.get_cufunc",),
}
"""What is changed of numba-cuda while recording."""
_USED: Final = {"numba.cuda.codegen": ("CUDACodeLibrary.get_lto_ptx", "CUDACodeLibrary.get_asm_str")}
_LAUNCH: Final = ["self", "args", "griddim", "blockdim", "stream", "sharedmem"]


@dataclass
class _Beside:
    """What was loaded beside a clean kernel. `function`: as Numba has functions; `device`: the GPU's number."""

    kernel: Kernel
    function: Any
    device: int


_kept: weakref.WeakKeyDictionary[Any, dict[tuple[str, int], _Beside]] = weakref.WeakKeyDictionary()
"""By kernels, then by the marks and the GPU: for a later recording, since Numba unloads no module either."""


@dataclass(eq=False)
class _Launched(Kernel):
    """A kernel that is launched while recording. `native`: Numba's own; `dispatcher`: what `@cuda.jit` made of it."""

    native: Any = None
    dispatcher: Any = None
    beside: Any = None


class NumbaDoor(PatchingDoor):
    """Where kernels of `@numba.cuda.jit` get their marks, and where their launches are seen: a `Door`."""

    package = "Numba"

    def __init__(self, capture: PythonCapture) -> None:
        super().__init__(capture)
        self._launched: dict[int, _Launched] = {}

    def start(self) -> None:
        """Kernels that are launched from now on are marked. Where Numba cannot be recorded: one line."""
        try:
            why = _unfit(importlib.import_module("numba.cuda"))
        except ImportError as error:
            why = f"numba.cuda cannot be imported ({error}): none of its kernels is recorded"
        if not self.begin(why):
            return
        dispatcher, codegen = (importlib.import_module(name) for name in _CHANGED)
        self._patch(dispatcher.CUDADispatcher, "call", self._call)
        self._patch(dispatcher._Kernel, "launch", self._launch)
        self._patch(codegen.CUDACodeLibrary, "get_cufunc", self._get_cufunc)

    def loaded(self, kernel: Kernel) -> Loaded | None:
        """What is needed of a kernel; None for one without marks. Loads it beside the clean one."""
        assert isinstance(kernel, _Launched)
        if not self._capture.takes(kernel.name):
            return None
        try:
            if why := unmarkable(kernel.native):
                self._tell(f"{kernel.name} is not marked: {why}")
                return None
            kernel.beside = self._beside(kernel)
        except Exception as error:  # recording must not harm the program
            self._tell(f"{kernel.name} is not marked: {one_line(error)}")
        own = kernel.beside
        return own.kernel.loaded.of_function(own.kernel.function) if own is not None else None

    def _call(self, original: Callable[..., Any], dispatcher: Any, *arguments: Any, **named: Any) -> Any:
        """A launch by what `@cuda.jit` made, which has the kernel's source and options."""
        before, self._local.dispatcher = getattr(self._local, "dispatcher", None), dispatcher
        try:
            return original(dispatcher, *arguments, **named)
        finally:
            self._local.dispatcher = before

    def _launch(
        self,
        original: Callable[..., Any],
        kernel: Any,
        args: Any,
        griddim: Any,
        blockdim: Any,
        stream: Any = 0,
        sharedmem: int = 0,
    ) -> Any:
        """A launch of a kernel: of the one with marks, where it has one."""
        beside = self._about_to_launch(kernel, griddim, blockdim, stream, sharedmem)
        before, self._local.held = getattr(self._local, "held", None), beside
        try:
            return original(kernel, args, griddim, blockdim, stream, sharedmem)
        finally:
            self._local.held = before

    def _about_to_launch(self, native: Any, grid: Any, block: Any, stream: Any, shared_bytes: int) -> Any:
        """The kernel's library, and what takes the place of its own function; None for none. Raises nothing."""
        try:
            own = self._launched.get(id(native))
            if own is None:
                own = self._launched.setdefault(id(native), _launched(native, getattr(self._local, "dispatcher", None)))
            handle = int(getattr(stream, "handle", stream) or 0)
        except Exception as error:  # recording must not harm the program
            self._tell(f"a launch is not recorded: {one_line(error)}")
            return None
        self.launches(own, grid, block, handle, shared_bytes)
        return (native._codelibrary, own.beside) if self._capture.records(own) else None

    def _get_cufunc(self, original: Callable[..., Any], library: Any) -> Any:
        """The function that Numba launches, and asks for a kernel's attributes."""
        clean = original(library)
        held = getattr(self._local, "held", None)
        if held is None or held[0] is not library or held[1].device != int(clean.device.id):
            return clean
        return held[1].function

    def _beside(self, kernel: _Launched) -> _Beside | None:
        native, selection = kernel.native, self._capture.options.selection
        clean = native._codelibrary.get_cufunc()
        known = _kept.setdefault(native, {})
        key = repr(selection), int(clean.device.id)
        if key not in known:
            made = marked(native, kernel.name, kernel.dispatcher, self.wanted)
            if made is None:
                return None
            known[key] = _load(made.cubin, next(iter(made.names)), native, clean, made.kernels)
        return known[key]


def _launched(native: Any, dispatcher: Any) -> _Launched:
    library = native._codelibrary
    source = getattr(native, "py_func", None) or getattr(dispatcher, "py_func", None)
    return _Launched(
        getattr(source, "__name__", None) or str(library.name), None, None, native=native, dispatcher=dispatcher
    )


def _load(cubin: bytes, symbol: str, native: Any, clean: Any, kernels: Callable[[int], dict[str, Kernel]]) -> _Beside:
    """Loads machine code as Numba does. clean: its own function, which is loaded."""
    code = type(native._codelibrary.get_cubin()).from_cubin(cubin, name=symbol)
    bindings = driver.bindings()
    with driver.relaxed():  # a stream may be captured
        module = clean.module.context.create_module_image(code, None, None)
        function = module.get_function(symbol)
        if native.shared_memory_carveout is not None:
            function.set_shared_memory_carveout(native.shared_memory_carveout)
        handle = driver.call("cuLibraryGetModule", bindings.CUlibrary(int(module.handle)))
        kernel = kernels(int(handle))[symbol]
        kernel.function = int(driver.call("cuKernelGetFunction", bindings.CUkernel(int(function.handle))))
    return _Beside(kernel, function, int(clean.device.id))


def _unfit(cuda: Any) -> str | None:
    """Why Numba's kernels cannot be recorded here; None when they can. Does not ask for a GPU."""
    if getattr(getattr(cuda, "config", None), "ENABLE_CUDASIM", False):
        return "Numba simulates its kernels on the CPU (NUMBA_ENABLE_CUDASIM): none of them is recorded"
    if getattr(cuda, "implementation", "Built-in") != "NVIDIA":
        version = getattr(sys.modules.get("numba"), "__version__", "?")
        return f"numba.cuda is Numba {version}'s own: kernels of numba-cuda are recorded (pip install numba-cuda)"
    which = f"numba-cuda {getattr(sys.modules.get('numba_cuda'), '__version__', '?')}"
    for names in (_CHANGED, _USED):
        for module, wanted in names.items():
            for name in wanted:
                if not _has(module, name):
                    return f"{which} has no {module}.{name}, as numba-cuda 0.30 has: none of its kernels is recorded"
    launch = importlib.import_module("numba.cuda.dispatcher")._Kernel.launch
    if list(inspect.signature(launch).parameters) != _LAUNCH:
        return f"{which} launches with other arguments than numba-cuda 0.30: none of its kernels is recorded"
    return None


def _has(module: str, name: str) -> bool:
    own, _, attribute = name.partition(".")
    return hasattr(getattr(importlib.import_module(module), own, None), attribute)
