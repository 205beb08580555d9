"""A stand-in for CuPy, as far as it is looked at: its compiler makes PTX by a kernel's name, and machine code is PTX.

What CuPy's compiled code looks up by name at each use is looked up here in the modules, too.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.capture.gpu_stand_in import Gpu
from tests.unit.instrument.test_recorder import LOOP, STRAIGHT

_KERNELS = {"straight": STRAIGHT, "loop": LOOP}
STREAM = 7


class CompileError(Exception):
    """As CuPy's CompileException."""


def ptx_of(source: str, file: str) -> str:
    """What NVRTC makes of kernels with these names; line 2 of the source has the first barrier."""
    out, head = [], ""
    for name in re.findall(r"\b((?:straight|loop)\w*)\(", source):
        text = _KERNELS[name.partition("_")[0]].format(threads=64).replace(name.partition("_")[0], name)
        head, _, body = text.partition(".visible")
        out.append(".visible" + body.replace("\tbar.sync 0;", "\t.loc 1 2 3\n\tbar.sync 0;"))
    return head + "".join(out) + f'\n.file 1 "/where/it/ran/{file}"\n'


class Module:
    """As cupy.cuda.function's."""

    def __init__(self) -> None:
        self.ptr, self.mapping, self.fake = 0, None, fake

    def load(self, cubin: bytes) -> None:
        fake.loaded.append(cubin.decode())
        self.ptr = len(fake.loaded)

    def __del__(self) -> None:
        self.fake.unloaded += self.ptr != 0

    def get_function(self, name: Any) -> Function:
        return Function(self, name)

    def _set_mapping(self, mapping: Any) -> None:
        self.mapping = mapping


class Function:
    """As cupy.cuda.function's: a launch runs on the machine."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.ptr, self.name = module, 100 + module.ptr, name

    def __call__(
        self,
        grid: Any,
        block: Any,
        args: Any,
        shared_mem: int = 0,
        stream: Any = None,
        enable_cooperative_groups: bool = False,
    ) -> None:
        del args, shared_mem, stream, enable_cooperative_groups
        text = fake.loaded[self.module.ptr - 1]
        if fake.gpu is not None:
            fake.gpu.launch(text, grid[0], block[0], self.name)


class Program:
    """As cupy.cuda.compiler's _NVRTCProgram."""

    def __init__(
        self,
        src: str,
        name: str = "default_program",
        headers: Any = (),
        include_names: Any = (),
        name_expressions: Any = None,
        method: str = "ptx",
    ) -> None:
        del headers, include_names
        self.src, self.name, self.name_expressions, self.method, self.ptr = src, name, name_expressions, method, self

    def compile(self, options: Any = (), log_stream: Any = None) -> Any:
        del log_stream
        fake.compiled.append((self.name, tuple(options)))
        if "error" in self.src:
            raise CompileError(f"{self.name}(1): error")
        mapping = {own: re.sub(r"\W+", "_", own).strip("_") for own in self.name_expressions or ()} or None
        return ptx_of(self.src, self.name).encode(), mapping


class RawKernel:
    """As CuPy's, on one GPU."""

    def __init__(self, code: Any, name: str, options: Any = (), backend: str = "nvrtc", **named: Any) -> None:
        self.code, self.name, self.options, self.backend, self.named = code, name, options, backend, named
        self.file_path, self.name_expressions = None, None
        self._kernel_cache: list[Any] = []

    @property
    def kernel(self) -> Any:
        if not self._kernel_cache:
            cooperative = self.named.get("enable_cooperative_groups", False)
            module = sys.modules["cupy._core.raw"].__dict__["_get_raw_module"](
                self.code, self.file_path, self.options, self.backend, False, cooperative, False, self.name_expressions
            )
            self._kernel_cache = [module.get_function(self.name)]
        return self._kernel_cache[0]

    def __call__(self, grid: Any, block: Any, args: Any, **named: Any) -> None:
        self.kernel(
            grid, block, args, enable_cooperative_groups=self.named.get("enable_cooperative_groups", False), **named
        )


class RawModule:
    """As CuPy's, on one GPU."""

    def __init__(self, *, code: Any = None, path: Any = None, options: Any = (), name_expressions: Any = None) -> None:
        self.code, self.path, self.options, self.name_expressions = code, path, options, name_expressions

    @property
    def module(self) -> Any:
        return sys.modules["cupy._core.raw"].__dict__["_get_raw_module"](
            self.code, self.path, self.options, "nvrtc", False, False, False, self.name_expressions
        )

    def get_function(self, name: str) -> RawKernel:
        mapping = self.module.mapping or {}
        kernel = RawKernel(self.code, mapping.get(name, name), self.options)
        kernel.file_path, kernel.name_expressions = self.path, self.name_expressions
        assert kernel.kernel
        return kernel


class Fake:
    """The package, with its folder of machine code (`cache`), what was compiled (name, options) and what was loaded."""

    def __init__(self, version: str = "14.2.0", *, hip: bool = False) -> None:
        self.version, self.hip = version, hip
        self.cache: dict[str, bytes] = {}
        self.compiled: list[tuple[str, tuple[str, ...]]] = []
        self.loaded: list[str] = []
        self.unloaded = 0
        self.gpu: Gpu | None = None
        self.modules: dict[str, ModuleType] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Fake:
        global fake
        fake = self
        self._memo: dict[Any, Any] = {}
        stream = SimpleNamespace(ptr=STREAM)
        cuda = {"runtime": SimpleNamespace(is_hip=self.hip), "get_current_stream": lambda: stream}
        contents: dict[str, dict[str, Any]] = {
            "cupy": {"__version__": self.version, "RawKernel": RawKernel, "RawModule": RawModule},
            "cupy._core": {},
            "cupy._core.raw": {"_get_raw_module": self._get_raw_module},
            "cupy._core.core": {"compile_with_cache": self._compile_with_cache},
            "cupy.cuda": cuda,
            "cupy.cuda.function": {"Module": Module, "Function": Function},
            "cupy.cuda.compiler": {
                "_NVRTCProgram": Program,
                "_compile_with_cache_cuda": self._compile_with_cache_cuda,
                "compile_using_nvcc": self._compile_using_nvcc,
            },
            "cupy_backends": {},
            "cupy_backends.cuda": {},
            "cupy_backends.cuda.libs": {},
            "cupy_backends.cuda.libs.nvrtc": {"getPTX": lambda program: ptx_of(program.src, program.name).encode()},
        }
        for name, own in contents.items():
            module = self.modules[name] = ModuleType(name)
            module.__dict__.update(own)
            monkeypatch.setitem(sys.modules, name, module)
            above, _, last = name.rpartition(".")
            if above:
                setattr(self.modules[above], last, module)
        return self

    def state(self) -> dict[str, dict[str, Any]]:
        """All that could be changed."""
        return {name: dict(vars(module)) for name, module in self.modules.items()}

    def _get_raw_module(self, code: Any, path: Any, *key: Any) -> Any:
        if (code, path, *key) not in self._memo:
            if path is not None:
                module = Module()
                module.load(b"of a file")
            else:
                options, backend, _, cooperative, jitify, expressions = key
                module = sys.modules["cupy._core.core"].__dict__["compile_with_cache"](
                    code,
                    options,
                    backend=backend,
                    enable_cooperative_groups=cooperative,
                    name_expressions=expressions,
                    jitify=jitify,
                )
            self._memo[code, path, *key] = module
        return self._memo[code, path, *key]

    def _compile_with_cache(self, source: str, options: Any = (), **named: Any) -> Any:
        return self.modules["cupy.cuda.compiler"].__dict__["_compile_with_cache_cuda"](source, options, "90", **named)

    def _compile_with_cache_cuda(
        self,
        source: str,
        options: Any,
        arch: Any,
        extra_source: Any = None,
        backend: str = "nvrtc",
        enable_cooperative_groups: bool = False,
        name_expressions: Any = None,
        log_stream: Any = None,
        cache_in_memory: bool = False,
        jitify: bool = False,
    ) -> Module:
        del extra_source, enable_cooperative_groups, jitify
        compiler = self.modules["cupy.cuda.compiler"].__dict__
        compiler["_NVRTCProgram"]("").compile(())  # it asks for the compiler's version
        module, cubin, mapping = Module(), None, None
        if not cache_in_memory and not name_expressions:
            cubin = self.cache.get(source)
        if cubin is None and backend == "nvrtc":
            program = compiler["_NVRTCProgram"](
                source, "" if cache_in_memory else "/tmp/kern.cu", (), (), name_expressions, "cubin"
            )
            cubin, mapping = program.compile((*options, f"-arch=sm_{arch}"), log_stream)
        elif cubin is None:
            cubin = compiler["compile_using_nvcc"](source, options, arch, "kern.cu", code_type="cubin")
        if not cache_in_memory:
            self.cache[source] = cubin
        module._set_mapping(mapping)
        module.load(cubin)
        return module

    def _compile_using_nvcc(
        self,
        source: str,
        options: Any = (),
        arch: Any = None,
        filename: str = "kern.cu",
        code_type: str = "cubin",
        separate_compilation: bool = False,
        log_stream: Any = None,
    ) -> bytes:
        del arch, separate_compilation, log_stream
        self.compiled.append((f"{filename} {code_type}", tuple(options)))
        return ptx_of(source, filename).encode()


fake = Fake()
