"""What `warplens demo` shows: an RMSNorm kernel, recorded here or on an H200.

In: whether the GPU is wanted. Out: a Trace and a sentence that says where it comes from. The package brings the
kernel (rmsnorm.cu) and a recording of it (rmsnorm_h200.wlens); prints and draws nothing.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import warplens
from warplens.errors import FileError, WarplensError

if TYPE_CHECKING:
    from warplens.trace import Trace

RECORDING: Final = "rmsnorm_h200.wlens"
KERNEL: Final = "rmsnorm.cu"


def demo_trace(device: Literal["auto", "cpu"]) -> tuple[Trace, str]:
    """The trace to show, and where it comes from.

    "auto" records on this machine's GPU; where that cannot be done it opens the bundled recording and says why.
    "cpu" opens the bundled recording. Raises FileError when the package lacks it.
    """
    if device == "cpu":
        return bundled_trace(), "the bundled recording of an NVIDIA H200 (--device cpu)"
    try:
        require_gpu()
        return record_live(), "recorded on this machine's GPU just now"
    except WarplensError as error:
        reason = str(error).splitlines()[0]
        return bundled_trace(), f"the bundled recording of an NVIDIA H200; nothing was recorded here: {reason}"


def bundled_trace() -> Trace:
    """The recording that the package brings: RMSNorm, 528 x 5120, bf16, cold L2, two waves on an H200."""
    resource = files(__package__) / RECORDING
    if not resource.is_file():
        raise FileError(f"the package holds no {RECORDING}: install it from a wheel or a complete checkout")
    with as_file(resource) as path:
        trace = warplens.open(path)
        trace.spans  # noqa: B018  decode while the file is there
    return trace


def kernel_path() -> Path:
    """Where the source of the demo's kernel lies (an unpacked installation)."""
    return Path(str(files(__package__) / KERNEL))


def require_gpu() -> None:
    """Returns when this machine can record; else raises DeviceError or MissingDependencyError with the reason."""
    from warplens.capture import compile as compiler
    from warplens.capture import driver

    driver.ensure_context()
    compiler.load_nvrtc()


def record_live() -> Trace:
    """Records the demo's kernel on GPU 0. Raises RecordingError when that fails."""
    from warplens.demo.live import record

    return record()
