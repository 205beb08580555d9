"""The CUDA driver, with errors of ours.

In: calls of cuda.bindings.driver. Out: their values, or DeviceError. Loads the bindings at the first call and uses
the context that the process already has (torch's, CuPy's), else the primary context of device 0.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warplens.capture.presence import NO_DRIVER, has_driver
from warplens.errors import INSTALL, DeviceError, MissingDependencyError


@cache
def bindings() -> Any:
    """cuda.bindings.driver, initialised."""
    try:
        driver: Any = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        if not has_driver():
            raise DeviceError(f"{NO_DRIVER}\n`warplens doctor` says what recording needs") from None
        raise MissingDependencyError(
            f"cuda-bindings cannot be loaded ({error}), and recording needs it\n{INSTALL}"
        ) from error
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        raise DeviceError(
            f"{NO_DRIVER}\n`warplens doctor` says what recording needs ({error})"
        ) from None  # whose text this is
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"the CUDA driver does not start: {status.name}; `warplens doctor` says what was looked for")
    return driver


def call(name: str, *args: Any, doing: str | Callable[[], str] = "") -> Any:
    """Call a driver function by name; its value, a tuple of values, or None.

    Of a stream that is an int the bindings make an object, and of None, the default stream's, nothing: it is given at
    launches for that.

    Raises DeviceError with the function, the driver's error and what was being done; a function that says so is asked
    then alone.
    """
    driver = bindings()
    if _given_up is not None and not is_usable():
        raise DeviceError(
            f"CUDA cannot be used any more in this process{_told(doing, ' ({})')}: {_given_up[0]}; start a new one"
        )
    status, *values = getattr(driver, name)(*args)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(f"{name} failed{_told(doing, ' while {}')}: {_status_text(status)}")
    return values[0] if len(values) == 1 else (tuple(values) or None)


def _told(doing: str | Callable[[], str], form: str) -> str:
    text = doing if isinstance(doing, str) else doing()
    return form.format(text) if text else ""


def _status_text(status: Any) -> str:
    text = bindings().cuGetErrorString(status)[1]
    return f"{status.name} ({text.decode() if text else 'no text'})"


def is_done(stream: int) -> bool:
    """Whether all that is in `stream` has ended. Never waits.

    Raises DeviceError with the driver's error alone when a kernel has crashed: from then on every call fails.
    """
    driver = bindings()
    (status,) = driver.cuStreamQuery(stream)
    if status == driver.CUresult.CUDA_ERROR_NOT_READY:
        return False
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DeviceError(_status_text(status))
    return True


def is_over(event: Any) -> bool:
    """Whether all in front of `event` has ended, if by a crash. Never waits."""
    driver = bindings()
    (status,) = driver.cuEventQuery(event)
    return bool(status != driver.CUresult.CUDA_ERROR_NOT_READY)


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Lets this thread make calls that are no launches while some stream is captured, and leaves the capture alone."""
    before = call("cuThreadExchangeStreamCaptureMode", bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", before)


_given_up: tuple[str, Callable[[], bool]] | None = None


def give_up(why: str, has_recovered: Callable[[], bool]) -> None:
    """From now on let `call` fail with `why` and free nothing: most calls would wait for a kernel that never ends.

    `has_recovered` is asked at each call, and must not wait: a kernel that was only slow gives CUDA back when it ends.
    """
    global _given_up
    _given_up = why, has_recovered


def is_usable() -> bool:
    """False after `give_up`, until the GPU has recovered."""
    global _given_up
    if _given_up is not None and _given_up[1]():
        _given_up = None
    return _given_up is None


def release(name: str, handle: Any) -> None:
    """Free by the driver's function `name`; nothing where that could wait forever.

    Objects that outlive the program do not come here: at the interpreter's end the names of modules are None, so that
    they keep `sys.is_finalizing` to ask.
    """
    if is_usable():
        getattr(bindings(), name)(handle)


def ensure_context() -> int:
    """Make a context current if none is; the device's ordinal."""
    if int(call("cuCtxGetCurrent")) == 0:
        if call("cuDeviceGetCount") == 0:
            raise DeviceError("the CUDA driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?)")
        call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0)))
    return int(call("cuCtxGetDevice"))


def attribute(device: int, name: str) -> int:
    """A device attribute by its name without prefix, e.g. MULTIPROCESSOR_COUNT."""
    enum = getattr(bindings().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call("cuDeviceGetAttribute", enum, device))


def copy_to_device(address: int, data: NDArray[Any], stream: int = 0) -> None:
    """Copy an array to device memory, ordered after what is in `stream`; returns when it has arrived."""
    data = np.ascontiguousarray(data)
    call("cuMemcpyHtoDAsync", address, data.ctypes.data, data.nbytes, stream, doing="copying to the GPU")
    call("cuStreamSynchronize", stream, doing="copying to the GPU")


def copy_from_device(address: int, shape: tuple[int, ...], dtype: Any, stream: int = 0) -> NDArray[Any]:
    """Copy device memory into a new array, after what is in `stream`.

    It is waited for before the copy: a thread that waits within one keeps the driver to itself, and nobody could read
    what a kernel that hangs has recorded (seen on an H200).
    """
    data: NDArray[Any] = np.empty(shape, dtype)
    call("cuStreamSynchronize", stream, doing="waiting for the GPU")
    if data.nbytes:
        call("cuMemcpyDtoHAsync", data.ctypes.data, address, data.nbytes, stream, doing="copying from the GPU")
    call("cuStreamSynchronize", stream, doing="waiting for the GPU")
    return data


class DeviceMemory:
    """Device memory that is freed with the object. `address`: int; `size_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.address = int(call("cuMemAlloc", max(size_bytes, 1), doing=f"allocating {size_bytes:,} bytes"))

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        address, self.address = getattr(self, "address", 0), 0
        if address and not ending():
            release("cuMemFree", address)


class HostMemory:
    """Host memory that kernels write to, and that the host reads without a call: also after the GPU has stopped.

    `address`: int, of the device's view; `host`: int, of the host's; `words`: what is there, uint32.
    """

    def __init__(self, size_bytes: int) -> None:
        flags = bindings().CU_MEMHOSTALLOC_PORTABLE | bindings().CU_MEMHOSTALLOC_DEVICEMAP
        self.host = int(call("cuMemHostAlloc", size_bytes, flags, doing=f"allocating {size_bytes:,} bytes of the host"))
        self.address = int(call("cuMemHostGetDevicePointer", self.host, 0))
        buffer = (ctypes.c_uint32 * (size_bytes // 4)).from_address(self.host)
        self.words: NDArray[np.uint32] = np.ctypeslib.as_array(buffer)
        self.words[:] = 0

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        host, self.host = getattr(self, "host", 0), 0
        if host and not ending():
            release("cuMemFreeHost", host)
