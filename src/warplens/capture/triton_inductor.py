"""What torch.compile (Inductor) needs so that its Triton kernels come by the door that others come by.

In: the process's environment and modules. Out: what undoes each change. Inductor's own launcher for Triton kernels
takes machine code past Triton: it is switched off. Worker processes, and the caches of graphs and kernels, stay as they
are: kernels get their marks when this process loads them (docs/adr/0013-triton.md).
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

_SWITCH: Final = "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER"
_CONFIG: Final = "torch._inductor.config"
_HEURISTICS: Final = "torch._inductor.runtime.triton_heuristics"
_PTXAS: Final = "TRITON_PTXAS_PATH"
_FLAG: Final = "use_static_cuda_launcher"

Undo = Callable[[], None]
_joined: set[int] = set()


def prepare() -> list[Undo]:
    """Has Inductor launch its kernels through Triton. Imports nothing of torch's."""
    config = sys.modules.get(_CONFIG)
    if config is not None:
        before = getattr(config, _FLAG, None)
        if before:
            setattr(config, _FLAG, False)
            return [lambda: setattr(config, _FLAG, before)]
        return []
    if _SWITCH in os.environ:
        return []
    os.environ[_SWITCH] = "0"

    def undo() -> None:
        os.environ.pop(_SWITCH, None)
        loaded: Any = sys.modules.get(_CONFIG)  # it has read the variable meanwhile
        if loaded is not None and hasattr(loaded, _FLAG):
            setattr(loaded, _FLAG, True)

    return [undo]


def join(set_aside: Callable[[], AbstractContextManager[None]]) -> list[Undo]:
    """What Inductor's autotuner tries is not recorded. Does nothing before Inductor is there, and but once."""
    heuristics: Any = sys.modules.get(_HEURISTICS)
    tuner = getattr(heuristics, "CachingAutotuner", None)
    if tuner is None or id(tuner) in _joined or not hasattr(tuner, "bench"):
        return []
    bench = tuner.bench

    @functools.wraps(bench)
    def tried(*arguments: Any, **named: Any) -> Any:
        with set_aside():
            return bench(*arguments, **named)

    tuner.bench = tried
    _joined.add(id(tuner))

    def undo() -> None:
        if tuner.bench is tried:
            tuner.bench = bench
        _joined.discard(id(tuner))

    return [undo]


@contextmanager
def ptxas_of_workers() -> Iterator[None]:
    """Triton's ptxas is the one that Inductor's worker processes use: torch's own, which reads newer PTX."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    before = os.environ.get(_PTXAS)
    if before is None and torch:
        os.environ[_PTXAS] = str(Path(torch).parent / "bin" / "ptxas")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_PTXAS, None)


def temporary_folder() -> str:
    """A folder that is gone when the process ends."""
    folder = tempfile.mkdtemp(prefix="warplens-triton-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
