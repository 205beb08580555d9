"""A stand-in for Triton, as far as it is looked at: kernels whose machine code is their PTX."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.unit.instrument.test_read import SMALL

WAITS = SMALL.replace("\tret;", "\tbar.sync 0;\n\tst.global.u32 [%r1], 1;\n\tret;")


class Metadata(NamedTuple):
    """Of a kernel."""

    name: str = "k"
    num_warps: int = 4
    shared: int = 0
    profile_scratch_size: int = 0
    arch: str = "sm90"
    target: Any = SimpleNamespace(backend="cuda", arch=90)


class CompiledKernel:
    """As Triton's: loads at its first launch."""

    def __init__(self, text: str = WAITS, **facts: Any) -> None:
        self.metadata = Metadata(**facts)
        self.name = self.metadata.name
        self.asm: dict[str, Any] = {"ptx": text, "cubin": text.encode()}
        self.metadata_group: dict[str, str] = {}
        self.kernel: Any = self.asm["cubin"]
        self.src = SimpleNamespace()
        self.module: Any = None
        self.function = 1
        self.loaded: Any = None

    def _init_handles(self) -> None:
        if self.module is None:
            self.module, self.loaded = 2, self.kernel

    def launch_metadata(self, grid: Any, stream: Any, *arguments: Any) -> Any:
        return grid, stream, arguments


class Autotuner:
    """As Triton's, of one configuration."""

    def _bench(self, kernel: CompiledKernel) -> str:
        kernel._init_handles()
        return str(sys.modules["triton"].__dict__["knobs"].compilation.instrumentation_mode)


@dataclass
class Fake:
    """A module that stands for triton."""

    version: str = "3.6.0"
    interpret: bool = False
    mode: str = ""
    hook: Any = None
    cache: str = "/tmp"
    module: ModuleType = field(default_factory=lambda: ModuleType("triton"))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Fake:
        runtime = SimpleNamespace(add_stages_inspection_hook=self.hook, interpret=self.interpret)
        compilation = SimpleNamespace(instrumentation_mode=self.mode)
        knobs = SimpleNamespace(runtime=runtime, compilation=compilation, cache=SimpleNamespace(dir=self.cache))
        self.module.__dict__.update(__version__=self.version, knobs=knobs)
        made: dict[str, dict[str, Any]] = {
            "triton.compiler": {},
            "triton.compiler.compiler": {"CompiledKernel": CompiledKernel, "make_backend": lambda _: Backend()},
            "triton.backends": {},
            "triton.backends.compiler": {"Language": SimpleNamespace(TRITON=0)},
            "triton.runtime": {},
            "triton.runtime.autotuner": {"Autotuner": Autotuner},
            "triton.runtime.jit": {"JITFunction": type("JITFunction", (), {"_do_compile": lambda _: None})},
            "triton.language": {},
            "triton.language.core": {"inline_asm_elementwise": self._asm, "int32": "int32"},
            "triton.profiler": {},
            "triton.profiler.flags": {"flags": SimpleNamespace(instrumentation_on=False)},
            "triton.profiler.language": {"record": self._proton},
        }
        monkeypatch.setitem(sys.modules, "triton", self.module)
        for name, contents in made.items():
            module = ModuleType(name)
            module.__dict__.update(contents)
            monkeypatch.setitem(sys.modules, name, module)
        self.emitted: list[str] = []
        return self

    def _asm(self, asm: str, *_: Any, **__: Any) -> None:
        self.emitted.append(asm)

    def _proton(self, is_start: bool, scope_name: str, semantic: Any) -> None:
        del semantic
        self.emitted.append(f"proton {is_start} {scope_name}")

    @property
    def knobs(self) -> Any:
        return self.module.__dict__["knobs"]


class Backend:
    """Of NVIDIA's: machine code is PTX."""

    assemble: Callable[[str], bytes] = staticmethod(str.encode)

    def parse_options(self, facts: dict[str, Any]) -> Any:
        return facts

    def add_stages(self, stages: dict[str, Any], options: Any, language: Any) -> None:
        del options, language
        stages["cubin"] = lambda text, _: self.assemble(text)
