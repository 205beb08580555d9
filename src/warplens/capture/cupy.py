"""CuPy's door: kernels of RawKernel and RawModule get their marks as CuPy compiles them.

In: a capture. Out: CuPy, whose compilations and launches of such kernels that capture sees, until it is put back
(docs/adr/0014-cupy.md). CuPy keeps machine code on disk, and no PTX: while recording it compiles anew, and what comes
of it goes to no cache. CuPy is the user's own, and is not imported before `start`.
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from warplens.capture.audited import line_options
from warplens.capture.cupy_builds import Build, first_kernel, unmarkable
from warplens.capture.forked import in_children
from warplens.capture.patched import patched
from warplens.capture.python import PythonCapture
from warplens.capture.python_builds import Kernel
from warplens.capture.python_door import PatchingDoor
from warplens.capture.python_manifest import Loaded
from warplens.capture.tell import one_line

_CHANGED: Final = {
    "cupy._core.raw": ("_get_raw_module",),
    "cupy._core.core": ("compile_with_cache",),
    "cupy.cuda.compiler": ("_compile_with_cache_cuda", "compile_using_nvcc", "_NVRTCProgram"),
}
"""What is changed of CuPy while recording; all of it is looked up by name at each use."""


class CupyDoor(PatchingDoor):
    """Where kernels of RawKernel and RawModule get their marks, and where their launches are seen: a `Door`."""

    package = "CuPy"

    def __init__(self, capture: PythonCapture) -> None:
        super().__init__(capture)
        self.recording = object()
        """What kernels are settled by; another one in a child of fork."""

    def start(self) -> None:
        """Kernels that are compiled from now on are marked. Where CuPy cannot be recorded: one line."""
        try:
            cupy: Any = importlib.import_module("cupy")
            raw, core, compiler = (importlib.import_module(name) for name in _CHANGED)
        except ImportError as error:
            self._tell(f"CuPy cannot be imported ({error}): none of its kernels is recorded")
            return
        if not self.begin(_unfit(cupy)):
            return
        self._undo.append(in_children(self._see_all))
        self._tell_loaded(cupy)
        self._patch(raw, "_get_raw_module", self._get_raw_module)
        self._patch(core, "compile_with_cache", self._compile)
        self._patch(compiler, "_compile_with_cache_cuda", self._past_the_cache)
        self._patch(compiler, "compile_using_nvcc", self._by_nvcc)
        program = _program(compiler._NVRTCProgram, lambda: self._build)
        self._undo.append(patched(compiler, "_NVRTCProgram", program, self._tell))

    def loaded(self, kernel: Kernel) -> Loaded | None:
        """What is needed of a kernel; None for one without marks."""
        if kernel.loaded is None:
            if kernel.selection is None and self._capture.takes(kernel.name):
                self._tell(f"{kernel.name} was loaded without marks by an earlier recording: it is not recorded")
            return None
        if kernel.selection != self._capture.options.selection:
            self._remark(f"{kernel.name} has the marks of an earlier recording, which loaded it")
        return kernel.loaded.of_function(kernel.function)

    def about_to_launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        stream: int,
        shared_bytes: int,
        cooperative: bool,
    ) -> None:
        """A launch of a kernel that was loaded while recording. Raises nothing."""
        door = self.active() if self._capture.left_to_parent() else self
        if door is not None and door.launches(kernel, grid, block, stream, shared_bytes, cooperative=cooperative):
            kernel.settled = door.recording

    def _see_all(self) -> None:
        self.recording = object()

    @property
    def _build(self) -> Build | None:
        """What this thread compiles to be marked."""
        found: Build | None = getattr(self._local, "build", None)
        return found

    def _tell_loaded(self, cupy: Any) -> None:
        """Nothing can be seen of launches of functions that are CuPy's own."""
        found = (own for own in gc.get_objects() if type(own) is cupy.RawKernel and _is_loaded(own))
        names = sorted({str(own.name) for own in found})
        if names := [name for name in names if self._capture.takes(name)]:
            self._tell(_too_late(", ".join(names)))

    def _get_raw_module(self, original: Callable[..., Any], code: Any, path: Any, *more: Any) -> Any:
        """A module that CuPy has, or makes: tells of one that is not compiled now."""
        self._local.compiled = False
        module = original(code, path, *more)
        if not self._capture.marks or self._local.compiled or isinstance(module, _Marked):
            return module
        name = Path(str(path)).name if path is not None else first_kernel(str(code))
        if path is not None:
            self._tell(f"CuPy loads {name} as it stands (RawModule(path=...)): its kernels are not recorded")
        elif self._capture.takes(name):
            self._tell(_too_late(name))
        return module

    def _compile(self, original: Callable[..., Any], source: str, options: Any = (), *more: Any, **named: Any) -> Any:
        """A module that is compiled anew, with marks; as ever where it can have none, which is told."""
        self._local.compiled = True
        if not self._capture.marks:
            return original(source, options, *more, **named)
        name = first_kernel(source)
        if why := unmarkable(options, bool(named.get("enable_cooperative_groups"))):
            if self._capture.takes(name):
                self._tell(f"{name} is not marked: {why}")
            return original(source, options, *more, **named)
        try:
            build = self._local.build = Build(source, self.wanted)
            module = original(source, options, *more, **named)
            return _marked_module(module, build.kernels(int(module.ptr)))
        except Exception as error:
            self._local.build = None
            module = original(source, options, *more, **named)  # a source with errors says so here
            self._tell(f"{name} is not marked: {one_line(error)}")
            return module
        finally:
            self._local.build = None

    def _past_the_cache(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Code with marks is neither looked for in CuPy's folder nor left there."""
        if self._build is None:
            return original(*arguments, **named)
        given = inspect.signature(original).bind(*arguments, **named)
        given.arguments["cache_in_memory"] = True
        return original(*given.args, **given.kwargs)

    def _by_nvcc(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """nvcc makes PTX, and machine code where that cannot be marked."""
        given = inspect.signature(original).bind(*arguments, **named)
        given.apply_defaults()
        own, build = given.arguments, self._build
        if build is None or own["code_type"] != "cubin" or own["separate_compilation"]:
            return original(*arguments, **named)
        options, build.source = tuple(own["options"]), own["source"]
        own |= {"options": (*options, *line_options(options)), "code_type": "ptx", "filename": Path(build.file).name}
        return build.mark(original(*given.args, **given.kwargs), {}, options) or original(*arguments, **named)


def _too_late(names: str) -> str:
    return f"loaded before the recording began, and so not recorded: CuPy's {names}"


def _unfit(cupy: Any) -> str | None:
    """Why CuPy's kernels cannot be recorded here; None when they can. Does not ask for a GPU."""
    version = getattr(cupy, "__version__", "?")
    if cupy.cuda.runtime.is_hip:
        return f"CuPy {version} is for AMD's GPUs: only kernels of NVIDIA GPUs are recorded"
    for module, names in _CHANGED.items():
        for name in names:
            if not hasattr(importlib.import_module(module), name):
                return f"CuPy {version} has no {module}.{name}, as CuPy 14 has: none of its kernels is recorded"
    return None


def _is_loaded(kernel: Any) -> bool:
    """Whether a RawKernel has been launched, or asked for its attributes: it keeps a function for each GPU."""
    function = importlib.import_module("cupy.cuda.function").Function
    lists = (own for own in gc.get_referents(kernel) if isinstance(own, list))
    return any(type(own) is function for held in lists for own in held)


class _Marked:
    """What tells a module that was compiled while recording from CuPy's own."""


@functools.cache
def _module_class() -> Any:
    """CuPy's module, whose functions show their launches."""
    native: Any = importlib.import_module("cupy.cuda.function")

    class Function(native.Function):  # type: ignore[misc]
        def __init__(self, module: Any, name: str) -> None:
            super().__init__(module, name)
            self.warplens_kernel = module.warplens_kernels.get(name) or Kernel(name, None, None)
            self.warplens_kernel.function = int(self.ptr)

        def __call__(
            self,
            grid: Any,
            block: Any,
            args: Any,
            shared_mem: int = 0,
            stream: Any = None,
            enable_cooperative_groups: bool = False,
        ) -> None:
            door = CupyDoor.active()
            if door is not None and self.warplens_kernel.settled is not door.recording:
                used = sys.modules["cupy"].cuda.get_current_stream() if stream is None else stream
                door.about_to_launch(
                    self.warplens_kernel, grid, block, int(used.ptr), shared_mem, enable_cooperative_groups
                )
            super().__call__(grid, block, args, shared_mem, stream, enable_cooperative_groups)

    class Module(native.Module, _Marked):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.warplens_kernels: dict[str, Kernel] = {}

        def get_function(self, name: Any) -> Any:
            return Function(self, name.decode() if isinstance(name, bytes) else name)

    return Module


def _marked_module(plain: Any, kernels: dict[str, Kernel]) -> Any:
    """The module in a form that shows its launches; it takes the place of `plain`, which CuPy has loaded."""
    module = _module_class()()
    module.warplens_kernels = kernels
    for own in kernels.values():
        own.owner = module
    if plain.mapping is not None:
        module._set_mapping(plain.mapping)
    module.ptr, plain.ptr = plain.ptr, 0
    return module


def _program(native: Any, build_of: Callable[[], Build | None]) -> Any:
    """CuPy's program for NVRTC, which gives machine code with marks where this thread compiles such."""

    class Program(native):  # type: ignore[misc]
        def __init__(self, src: Any, name: str = "default_program", *more: Any, **named: Any) -> None:
            self._build = build_of() if src else None  # CuPy compiles an empty one to know the compiler's version
            if self._build is not None:
                self._build.source = src.decode() if isinstance(src, bytes) else src
                name = self._build.file
            super().__init__(src, name, *more, **named)

        def compile(self, options: Any = (), log_stream: Any = None) -> Any:
            if self._build is None:
                return super().compile(options, log_stream)
            clean, mapping = super().compile((*options, *line_options(options)), log_stream)
            ptx = importlib.import_module("cupy_backends.cuda.libs.nvrtc").getPTX(self.ptr)
            return self._build.mark(ptx, mapping, options) or clean, mapping

    return Program
