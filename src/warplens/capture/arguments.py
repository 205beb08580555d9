"""Python values to kernel parameters.

In: torch and CuPy arrays, DLPack, objects with __cuda_array_interface__, numpy arrays and scalars, Python numbers,
and the sizes of the kernel's parameters. Out: a table of pointers as cuLaunchKernel takes it. numpy arrays are
copied to the GPU, and back by `copy_back`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from warplens.capture import driver
from warplens.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer


_ALIGNMENT: Final = 16
"""Of each parameter's value: no type of CUDA's wants more."""


def pointer_of(value: Any) -> int | None:
    """Device address of an array-like, or None when it is not one.

    Raises UsageError for arrays that are not on a GPU or not contiguous.
    """
    if hasattr(value, "data_ptr"):  # torch
        if not value.is_cuda:
            raise UsageError(f"a torch tensor on {value.device} was given: expected one on a CUDA device (.cuda())")
        if not value.is_contiguous():
            raise UsageError("a torch tensor that is not contiguous was given: pass .contiguous()")
        return int(value.data_ptr())
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        strides = interface.get("strides")
        if strides is not None and not _is_contiguous(interface["shape"], strides, interface["typestr"]):
            raise UsageError("an array with gaps was given through __cuda_array_interface__: make it contiguous")
        return int(interface["data"][0])
    if hasattr(value, "__dlpack_device__") and not isinstance(value, np.ndarray):
        return _dlpack_pointer(value)
    return None


def _is_contiguous(shape: Sequence[int], strides: Sequence[int], typestr: str) -> bool:
    expected = np.dtype(typestr).itemsize
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _dlpack_pointer(value: Any) -> int:
    kind, _ = value.__dlpack_device__()
    if int(kind) not in (2, 13):  # kDLCUDA, kDLCUDAManaged
        raise UsageError(f"a DLPack array of device type {int(kind)} was given: expected CUDA (2)")

    class Tensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_uint32),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
        ]

    capsule = value.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = Tensor.from_address(get(capsule, b"dltensor"))
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    if tensor.strides and not _is_contiguous(shape, [tensor.strides[i] for i in range(tensor.ndim)], "u1"):
        raise UsageError("a DLPack array with gaps was given: make it contiguous")
    return int(tensor.data or 0) + int(tensor.byte_offset)


@cache
def _table_of(sizes_bytes: tuple[int, ...]) -> tuple[type[ctypes.Array[ctypes.c_char]], struct.Struct, tuple[int, ...]]:
    """Of parameters of these sizes: the memory for pointers to values and the values behind, what fills it, and where
    each value lies. The same for all launches of a kernel."""
    offsets = []
    room = 8 * max(len(sizes_bytes), 1)
    form = f"={len(sizes_bytes)}Q"
    for size in sizes_bytes:
        gap = -room % _ALIGNMENT
        offsets.append(room + gap)
        form += f"{gap}x{size}s"
        room += gap + size
    return ctypes.c_char * room, struct.Struct(form), tuple(offsets)


class Arguments:
    """Parameters of one launch. Keeps what they point to alive. Is made at every launch, and is to take little time.

    `sizes_bytes`: size of each parameter of the kernel, from the driver; None when it cannot tell.
    Raises UsageError when the number or the size of an argument does not fit.
    """

    def __init__(self, values: Sequence[Any], sizes_bytes: Sequence[int] | None) -> None:
        if sizes_bytes is not None and len(values) != len(sizes_bytes):
            raise UsageError(f"the kernel takes {len(sizes_bytes)} arguments, {len(values)} were given")
        self._values = values
        self._copies: list[tuple[NDArray[Any], driver.DeviceMemory]] = []
        if sizes_bytes is None:
            self._packed = [self._pack(value, None, i) for i, value in enumerate(values)]
        else:
            self._packed = [
                self._pack(value, size, i) for i, (value, size) in enumerate(zip(values, sizes_bytes, strict=True))
            ]
        memory, form, offsets = _table_of(tuple(map(len, self._packed)))
        self._memory = memory()
        self.table = at = ctypes.addressof(self._memory)
        form.pack_into(self._memory, 0, *[at + offset for offset in offsets], *self._packed)

    def _pack(self, value: Any, size: int | None, index: int) -> bytes:
        if isinstance(value, np.generic):
            packed = value.tobytes()
        elif type(value) is int:
            packed = self._pack_integer(value, size, index)
        else:
            packed = self._pack_other(value, size, index)
        if size is not None and len(packed) != size:
            raise UsageError(
                f"argument {index} ({type(value).__name__}) has {len(packed)} bytes, the kernel's parameter {size}: "
                "give a numpy scalar of the parameter's type"
            )
        return packed

    def _pack_other(self, value: Any, size: int | None, index: int) -> bytes:
        pointer = pointer_of(value)
        if pointer is None and isinstance(value, np.ndarray) and value.ndim > 0:
            if not value.flags.c_contiguous:
                raise UsageError(f"argument {index}: a numpy array that is not C-contiguous: np.ascontiguousarray(a)")
            memory = driver.DeviceMemory(value.nbytes)
            driver.copy_to_device(memory.address, value)
            self._copies.append((value, memory))
            pointer = memory.address
        if pointer is not None:
            return pointer.to_bytes(8, "little")
        if isinstance(value, np.ndarray | ctypes._SimpleCData | ctypes.Structure):
            return bytes(memoryview(cast("Buffer", value)))
        if isinstance(value, int):  # bool, an enum
            return self._pack_integer(int(value), size, index)
        if isinstance(value, float):
            return np.array(value, np.float64 if size == 8 else np.float32).tobytes()
        if value is None:
            return bytes(8)
        raise UsageError(
            f"argument {index} is a {type(value).__name__}: expected a GPU array, a numpy array or scalar, "
            "a number, a ctypes value or None"
        )

    @staticmethod
    def _pack_integer(value: int, size: int | None, index: int) -> bytes:
        width = size if size in (1, 2, 4, 8) else 4
        if not -(1 << (8 * width - 1)) <= value < 1 << (8 * width):
            raise UsageError(f"argument {index} is {value}: the kernel's parameter has only {width} bytes")
        return (value & ((1 << (8 * width)) - 1)).to_bytes(width, "little")

    def words(self) -> list[int]:
        """Each 8 bytes of each parameter that an address could stand in."""
        return [int.from_bytes(d[at : at + 8], "little") for d in self._packed for at in range(0, len(d) - 7, 8)]

    def copy_back(self) -> None:
        """Bring numpy arguments back from the GPU, where they may be written to."""
        for array, memory in self._copies:
            if array.flags.writeable:
                array[...] = driver.copy_from_device(memory.address, array.shape, array.dtype)
