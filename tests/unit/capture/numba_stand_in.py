"""A stand-in for numba-cuda 0.30, as far as it is looked at: its compiler makes PTX of a kernel, machine code is PTX.

Classes, attributes and arguments are those of numba_cuda/numba/cuda/dispatcher.py, codegen.py and cudadrv/driver.py;
tests/compile/test_numba.py has the real ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.capture.gpu_stand_in import Gpu
from tests.unit.instrument.test_recorder import STRAIGHT


class Code:
    """As cuda.core's ObjectCode."""

    def __init__(self, code: bytes) -> None:
        self.code = code

    @classmethod
    def from_cubin(cls, code: bytes, *, name: str = "") -> Code:
        assert name in code.decode()
        return cls(code)


class Context:
    """As Numba's of a GPU. Modules stay loaded."""

    def __init__(self, number: int) -> None:
        self.device = SimpleNamespace(id=number)

    def create_module_image(self, code: Code, setup: Any = None, teardown: Any = None) -> Module:
        del setup, teardown
        if fake.refuses is not None and fake.refuses(code.code.decode()):
            raise RuntimeError("CUDA_ERROR_INVALID_IMAGE")
        fake.loaded.append(code.code.decode())
        return Module(self, len(fake.loaded))


class Module:
    """As Numba's."""

    def __init__(self, context: Context, handle: int) -> None:
        self.context, self.handle = context, handle

    def get_function(self, name: str) -> Function:
        return Function(self, name)


class Function:
    """As Numba's."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.name, self.handle = module, name, 100 + module.handle
        self.device, self.kernel = module.context.device, SimpleNamespace(text=fake.loaded[module.handle - 1])
        self.carveout: int | None = None

    def set_shared_memory_carveout(self, carveout: int) -> None:
        self.carveout = carveout
        fake.carveouts.append((self.handle, carveout))


class CUDACodeLibrary:
    """As Numba's: `_lto` says which way its PTX goes."""

    def __init__(self, name: str, text: str, options: dict[str, Any]) -> None:
        self.name, self._text, self._lto = name, text, options["lto"]
        self._max_registers = options["max_registers"]
        self._linking_files = set(options["link"])
        self._cufunc_cache: dict[int, Function] = {}

    def get_asm_str(self, cc: Any = None) -> str:
        del cc
        assert not self._lto
        return self._text

    def get_lto_ptx(self, cc: Any = None) -> str:
        del cc
        assert self._lto
        return self._text + "\n\0"

    def get_cubin(self, cc: Any = None) -> Code:
        del cc
        return Code(self._text.encode())

    def get_cufunc(self) -> Function:
        context = fake.contexts[fake.current]
        if context.device.id not in self._cufunc_cache:
            module = context.create_module_image(self.get_cubin(), [], [])
            self._cufunc_cache[context.device.id] = module.get_function(self.name)
        return self._cufunc_cache[context.device.id]


class _Kernel:
    """As Numba's: for one signature."""

    def __init__(
        self,
        py_func: Callable[..., Any],
        argtypes: tuple[Any, ...],
        link: Any = None,
        debug: bool = False,
        lineinfo: bool = False,
        max_registers: int | None = None,
        lto: bool = True,
        cooperative: bool = False,
        shared_memory_carveout: int | None = None,
    ) -> None:
        fake.compiled.append((py_func.__name__, lineinfo))
        if lineinfo and fake.breaks_with_lines:
            raise TypeError("no lines today\nmore of it")
        number = len(fake.compiled)
        symbol = f"_ZN{py_func.__name__}v{number}"
        text = STRAIGHT.format(threads=64).replace("straight", symbol)
        if getattr(py_func, "again", None):
            text = text.replace("\tbar.sync 0;", "\tbar.sync 0;\n" * len(fake.compiled))
        if lineinfo:
            text = (
                text.replace("\tbar.sync 0;", "\t.loc 1 2 3\n\tbar.sync 0;") + '\n.file 1 "/where/it/is/program.py"\n'
            )
        self.py_func, self.signature = py_func, SimpleNamespace(args=argtypes)
        self.debug, self.lineinfo, self.cooperative = debug, lineinfo, cooperative
        self.shared_memory_carveout = shared_memory_carveout
        options = {"lto": lto, "max_registers": max_registers, "link": link or ()}
        self._codelibrary = CUDACodeLibrary(symbol, text, options)

    @property
    def argument_types(self) -> tuple[Any, ...]:
        return tuple(self.signature.args)

    def launch(
        self, args: Any, griddim: tuple[int, ...], blockdim: tuple[int, ...], stream: Any = 0, sharedmem: int = 0
    ) -> None:
        del args, sharedmem
        function = self._codelibrary.get_cufunc()
        fake.launches.append((function.kernel.text, griddim, stream))
        if fake.gpu is not None:
            fake.gpu.launch(function.kernel.text, griddim[0], blockdim[0])


class CUDADispatcher:
    """As Numba's."""

    def __init__(self, py_func: Callable[..., Any], targetoptions: dict[str, Any]) -> None:
        self.py_func, self.targetoptions = py_func, targetoptions
        self.overloads: dict[Any, _Kernel] = {}

    def compile(self, argtypes: tuple[Any, ...]) -> _Kernel:
        if argtypes not in self.overloads:
            self.overloads[argtypes] = _Kernel(self.py_func, argtypes, **self.targetoptions)
        return self.overloads[argtypes]

    def call(self, args: tuple[Any, ...], launch_config: Any) -> None:
        kernel = self.compile(tuple(type(own) for own in args))
        config = launch_config
        kernel.launch(args, config.griddim, config.blockdim, config.stream, config.sharedmem)

    def __getitem__(self, config: tuple[Any, ...]) -> Callable[..., None]:
        grid, block, *more = config
        stream, shared = (*more, 0, 0)[:2]
        own = SimpleNamespace(
            griddim=(grid, 1, 1), blockdim=(block, 1, 1), stream=SimpleNamespace(handle=stream), sharedmem=shared
        )
        return lambda *args: self.call(args, own)


def jit(name: str, **options: Any) -> CUDADispatcher:
    """As @cuda.jit of a function of this name."""

    def py_func() -> None:
        """Has nothing in it: the kernel is always the same."""

    py_func.__name__ = name
    return CUDADispatcher(py_func, options)


class Fake:
    """The package: what was compiled (name, with lines), loaded, launched; `refuses` modules; the current GPU."""

    def __init__(self, version: str = "0.30.4", *, simulates: bool = False, implementation: str = "NVIDIA") -> None:
        self.version, self.simulates, self.implementation = version, simulates, implementation
        self.compiled: list[tuple[str, bool]] = []
        self.loaded: list[str] = []
        self.launches: list[tuple[str, tuple[int, ...], Any]] = []
        self.carveouts: list[tuple[int, int]] = []
        self.refuses: Callable[[str], bool] | None = None
        self.breaks_with_lines = False
        self.contexts, self.current = [Context(0), Context(1)], 0
        self.gpu: Gpu | None = None
        self.modules: dict[str, ModuleType] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Fake:
        global fake
        fake = self
        contents: dict[str, dict[str, Any]] = {
            "numba_cuda": {"__version__": self.version},
            "numba": {"__version__": "0.68.0"},
            "numba.cuda": {
                "config": SimpleNamespace(ENABLE_CUDASIM=int(self.simulates)),
                "implementation": self.implementation,
            },
            "numba.cuda.dispatcher": {"_Kernel": _Kernel, "CUDADispatcher": CUDADispatcher},
            "numba.cuda.codegen": {"CUDACodeLibrary": CUDACodeLibrary},
        }
        for name, own in contents.items():
            module = self.modules[name] = ModuleType(name)
            module.__dict__.update(own)
            monkeypatch.setitem(sys.modules, name, module)
        return self

    def state(self) -> list[dict[str, Any]]:
        """All that could be changed."""
        return [dict(vars(own)) for own in (_Kernel, CUDADispatcher, CUDACodeLibrary, *self.modules.values())]


fake = Fake()
