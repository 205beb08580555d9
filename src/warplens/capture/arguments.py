"""Python values to kernel parameters.

In: torch and CuPy arrays, DLPack, objects with __cuda_array_interface__, numpy arrays and scalars, Python numbers,
and the sizes of the kernel's parameters. Out: a table of pointers as cuLaunchKernel takes it. numpy arrays are
copied to the GPU, and back by `copy_back`.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import isnan
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from warplens.capture import driver
from warplens.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer


_ALIGNMENT: Final = 16
"""Of each parameter's value: no type of CUDA's wants more."""
_INTEGERS: Final = {1: "b", 2: "h", 4: "i", 8: "q"}
"""How `struct` writes a number of Python into so many bytes; one that is too large with a sign is tried without."""
_CODES: Final[dict[type, str]] = {
    **{np.dtype(f"i{size}").type: code for size, code in _INTEGERS.items()},
    **{np.dtype(f"u{size}").type: code.upper() for size, code in _INTEGERS.items()},
    np.bool_: "?",
    np.float32: "f",
    np.float64: "d",
}
"""How it writes numpy's scalars."""


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


class _Table:
    """Of parameters that `codes` write, as `struct` has them: memory for pointers to the values and the values behind,
    and what fills it. The same for all launches of a kernel with arguments of the same types."""

    def __init__(self, codes: Sequence[str], converts: Sequence[tuple[int, Callable[[Any], Any]]] = ()) -> None:
        self.converts = converts
        """Which values `struct` gets as something else, and what makes that of them; of what it cannot, None."""
        self.spans: list[tuple[int, int]] = []
        """Where each value begins and ends."""
        room = 8 * max(len(codes), 1)
        form = f"={len(codes)}Q"
        for code in codes:
            begin = room + -room % _ALIGNMENT
            form += f"{begin - room}x{code}"
            room = begin + struct.calcsize(f"={code}")
            self.spans.append((begin, room))
        self.begins = tuple(begin for begin, _ in self.spans)
        self.memory, self.fill = ctypes.c_char * room, struct.Struct(form).pack_into


@cache
def _table_of_bytes(sizes_bytes: tuple[int, ...]) -> _Table:
    return _Table([f"{size}s" for size in sizes_bytes])


@lru_cache(maxsize=256)
def _usual_table(sizes_bytes: tuple[int, ...] | None, *kinds: type) -> _Table | None:
    """For arguments of these types, if `struct` can write all of them."""
    codes, converts = [], []
    for index, kind in enumerate(kinds):
        size = None if sizes_bytes is None else sizes_bytes[index]
        if kind is int or kind is bool:
            code = _INTEGERS.get(4 if size is None else size, "")
        elif kind is float:
            code = "d" if size == 8 else "f"
        elif hasattr(kind, "data_ptr") or hasattr(kind, "__cuda_array_interface__"):
            code = "Q"
            converts.append((index, pointer_of))
        else:
            code = _CODES.get(kind, "")
            if kind is np.float32:
                converts.append((index, _unless_nan))
        if not code or size not in (None, struct.calcsize(f"={code}")):
            return None
        codes.append(code)
    return _Table(codes, converts)


def _unless_nan(value: Any) -> Any:
    """`struct` changes bits of some."""
    return None if isnan(value) else value


class Arguments:
    """Parameters of one launch. Keeps what they point to alive. Is made at every launch, and is to take little time.

    `sizes_bytes`: size of each parameter of the kernel, from the driver; None when it cannot tell.
    Raises UsageError when the number or the size of an argument does not fit.
    """

    def __init__(self, values: Sequence[Any], sizes_bytes: tuple[int, ...] | None) -> None:
        if sizes_bytes is not None and len(values) != len(sizes_bytes):
            raise UsageError(f"the kernel takes {len(sizes_bytes)} arguments, {len(values)} were given")
        self._values = values
        self._copies: list[tuple[NDArray[Any], driver.DeviceMemory]] = []
        table = _usual_table(sizes_bytes, *map(type, values))
        if table is None or not self._fill_at_once(table, values):
            sizes = [None] * len(values) if sizes_bytes is None else sizes_bytes
            packed = [self._pack(value, sizes[i], i) for i, value in enumerate(values)]
            self._fill(_table_of_bytes(tuple(map(len, packed))), packed)

    def _fill_at_once(self, table: _Table, values: Sequence[Any]) -> bool:
        """Whether that could be: not where a number wants its sign's bit, or has no room."""
        if table.converts:
            values = list(values)
            for index, convert in table.converts:
                values[index] = convert(values[index])
        try:
            self._fill(table, values)
        except (struct.error, OverflowError):
            return False
        return True

    def _fill(self, table: _Table, values: Sequence[Any]) -> None:
        self._table, self._memory = table, table.memory()
        self.table = at = ctypes.addressof(self._memory)
        table.fill(self._memory, 0, *[at + begin for begin in table.begins], *values)

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
        raw = self._memory.raw
        starts = [at for begin, end in self._table.spans for at in range(begin, end - 7, 8)]
        return [int.from_bytes(raw[at : at + 8], "little") for at in starts]

    def copy_back(self) -> None:
        """Bring numpy arguments back from the GPU, where they may be written to."""
        for array, memory in self._copies:
            if array.flags.writeable:
                array[...] = driver.copy_from_device(memory.address, array.shape, array.dtype)
