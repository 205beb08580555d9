"""A loaded module and its functions.

In: machine code. Out: launches, symbols, resources. Kept apart from what warplens records with them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from warplens.capture import driver
from warplens.errors import DeviceError

Dim3 = tuple[int, int, int]


_MOST_CONFIGURATIONS: Final = 64
"""Of a kernel: one that is launched with ever other grids is not to fill the memory."""


class Function:
    """A kernel of a loaded module. What is the same at each of its launches is asked of the driver, and made, once."""

    def __init__(self, handle: Any, name: str) -> None:
        self.handle = handle
        self.name = name
        self._configurations: dict[tuple[Any, ...], Any] = {}
        self._sizes: tuple[int, ...] | None = None
        self._most_shared: int | None = None

    def _attribute(self, name: str) -> int:
        enum = getattr(driver.bindings().CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(driver.call("cuFuncGetAttribute", enum, self.handle))

    def needs_cluster(self) -> bool:
        """Whether the kernel says itself that it is launched in clusters (`__cluster_dims__`)."""
        return self._attribute("REQUIRED_CLUSTER_WIDTH") > 0

    def allow_shared_bytes(self, size_bytes: int) -> None:
        """Allow launches with this much dynamic shared memory."""
        if self._most_shared is None:
            self._most_shared = 48 * 1024 - self._attribute("SHARED_SIZE_BYTES")
        if size_bytes > self._most_shared:
            enum = driver.bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            what = f"asking for {size_bytes:,} bytes of shared memory for {self.name}"
            driver.call("cuFuncSetAttribute", self.handle, enum, size_bytes, doing=what)
            self._most_shared = size_bytes

    def resources(self, threads: int, shared_bytes: int) -> dict[str, int]:
        """Registers, static and dynamic shared memory, local memory, and blocks that are resident on one SM."""
        blocks = driver.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", self.handle, threads, shared_bytes)
        return {
            "registers": self._attribute("NUM_REGS"),
            "shared_bytes": self._attribute("SHARED_SIZE_BYTES") + shared_bytes,
            "local_bytes": self._attribute("LOCAL_SIZE_BYTES"),
            "resident_blocks": int(blocks),
        }

    def parameter_sizes(self) -> tuple[int, ...] | None:
        """Bytes of each parameter; None when the driver is too old to tell, or cannot tell now, as to a thread without
        a context: the next launch asks again."""
        if self._sizes is None:
            self._sizes = self._ask_sizes()
        return self._sizes

    def _ask_sizes(self) -> tuple[int, ...] | None:
        native = driver.bindings()
        if not hasattr(native, "cuFuncGetParamInfo"):
            return None
        sizes: list[int] = []
        while True:
            status, *values = native.cuFuncGetParamInfo(self.handle, len(sizes))
            if status == native.CUresult.CUDA_ERROR_INVALID_VALUE:
                return tuple(sizes)
            if status != native.CUresult.CUDA_SUCCESS:
                return None
            sizes.append(int(values[1]))

    def launch(
        self,
        grid: Dim3,
        block: Dim3,
        parameters: int,
        shared_bytes: int,
        stream: int,
        cluster: Dim3 | None = None,
        cooperative: bool = False,
    ) -> None:
        """Launch; `parameters` is the address of the table of pointers to the arguments."""

        def doing() -> str:
            return f"launching {self.name} with grid {grid}, block {block} and {shared_bytes:,} bytes of shared memory"

        if cluster is None and not cooperative:
            given = *grid, *block, shared_bytes, stream or None, parameters, 0
            driver.call("cuLaunchKernel", self.handle, *given, doing=doing)
            return
        key = grid, block, shared_bytes, stream, cluster, cooperative
        config = self._configurations.get(key)
        if config is None:
            if len(self._configurations) >= _MOST_CONFIGURATIONS:
                self._configurations.clear()
            config = self._configurations[key] = _configuration(*key)
        driver.call("cuLaunchKernelEx", config, self.handle, parameters, 0, doing=doing)


def _configuration(
    grid: Dim3, block: Dim3, shared_bytes: int, stream: int, cluster: Dim3 | None, cooperative: bool
) -> Any:
    """What the driver takes: it reads it at each launch, and does not keep it."""
    native = driver.bindings()
    config = native.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = shared_bytes
    config.hStream = stream
    attributes = []
    if cluster is not None:
        attribute = native.CUlaunchAttribute()
        attribute.id = native.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dimension = attribute.value.clusterDim
        dimension.x, dimension.y, dimension.z = cluster
        attributes.append(attribute)
    if cooperative:
        attribute = native.CUlaunchAttribute()
        attribute.id = native.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


class Library:
    """A module, unloaded with the object."""

    def __init__(self, cubin: bytes) -> None:
        self._handle = driver.call("cuModuleLoadData", cubin, doing="loading a module")

    def function(self, name: str, shown: str | None = None) -> Function:
        """The kernel of this mangled name; `shown` is its name in messages."""
        handle = driver.call("cuModuleGetFunction", self._handle, name.encode(), doing=f"looking up {shown or name}")
        return Function(handle, shown or name)

    def symbol(self, name: str) -> int | None:
        """Device address of a global or constant symbol; None when the module has none of this name."""
        try:
            address, _ = driver.call("cuModuleGetGlobal", self._handle, name.encode())
        except DeviceError as error:
            if "NOT_FOUND" in str(error):
                return None
            raise
        return int(address)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and not ending():
            driver.release("cuModuleUnload", handle)
