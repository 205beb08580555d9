"""RMSNorm forward as a function of torch tensors: a step's kernel without marks, compiled once, launched directly.

In: tensors on the GPU. Out: y. Checks arguments as `rmsnorm.plan` does, and the GPU, before anything is launched.
"""

from __future__ import annotations

import ctypes
from typing import Any

import rmsnorm
from steps import Launch, Step, check_capability, launch_of

from warplens.capture import driver
from warplens.capture.compile import compile_cubin
from warplens.capture.library import Function, Library
from warplens.errors import UsageError


class Forward:
    """A step's kernel for one dtype ("bfloat16" or "float16"), on the current GPU.

    overlap: launch with programmatic stream serialisation, so that a step that waits with `griddepcontrol` may begin
    while the kernel before it ends. Raises UsageError for a GPU that is too old for the step.
    """

    def __init__(self, step: Step, dtype: str, *, overlap: bool | None = None) -> None:
        self.step, self.dtype = step, dtype
        major, minor = rmsnorm.capability()
        check_capability(step, (major, minor))
        self._sm_count = driver.attribute(driver.ensure_context(), "MULTIPROCESSOR_COUNT")
        arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
        names = step.kernel_names(dtype, traced=False)
        options = [f"--include-path={step.path.parent}", "-DWARPLENS_ON=false"]
        source = step.path.read_text(encoding="utf-8")
        compiled = compile_cubin(source, names, arch=arch, options=options, filename=step.path.name)
        self._library = Library(compiled.cubin)
        shown = f"{step.name}, {dtype}"
        self._functions = {name: self._library.function(compiled.names[name], shown=shown) for name in names}
        self._overlap = step.overlaps if overlap is None else overlap

    def resources(self, rows: int, hidden: int) -> dict[str, int]:
        """Registers, shared memory and resident blocks for a launch of this shape."""
        launch = launch_of(self.step, rows, hidden, self.dtype, self._sm_count)
        function = self._function(hidden)
        function.allow_shared_bytes(launch.shared_bytes)
        return function.resources(launch.block[0] * launch.block[1], launch.shared_bytes)

    def _function(self, hidden: int) -> Function:
        return self._functions[self.step.kernel_name(self.dtype, hidden, traced=False)]

    def plan(self, x: Any, weight: Any, y: Any) -> Launch:
        """The launch for these tensors.

        Raises UsageError as `rmsnorm.plan` does, for tensors that are not on a GPU, and for a type that this kernel
        was not compiled for.
        """
        for name, tensor in (("x", x), ("weight", weight), ("y", y)):
            if not getattr(tensor, "is_cuda", False):
                where = getattr(tensor, "device", "the host")
                raise UsageError(f"{name} lies on {where}; expected a tensor on a CUDA device ({name}.cuda())")
        launch = rmsnorm.plan(x, weight, y, self.step, sm_count=self._sm_count)
        if launch.dtype != self.dtype:
            raise UsageError(f"x holds {launch.dtype}; this kernel was compiled for {self.dtype}")
        return launch

    def __call__(self, x: Any, weight: Any, y: Any = None, *, eps: float = rmsnorm.EPS) -> Any:
        """y = x / sqrt(mean(x^2) + eps) * weight on torch's current stream; `y` is made where it is not given."""
        import torch

        y = torch.empty_like(x) if y is None else y
        launch = self.plan(x, weight, y)
        self._launch(launch, x, weight, y, eps, torch.cuda.current_stream().cuda_stream)
        return y

    def _launch(self, launch: Launch, x: Any, weight: Any, y: Any, eps: float, stream: int) -> None:
        native = driver.bindings()
        function = self._function(x.shape[-1])
        function.allow_shared_bytes(launch.shared_bytes)
        config = native.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
        config.sharedMemBytes, config.hStream = launch.shared_bytes, stream
        if self._overlap:
            attribute = native.CUlaunchAttribute()
            attribute.id = native.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        values = (x.data_ptr(), weight.data_ptr(), y.data_ptr(), *launch.numbers, eps)
        types = (*[ctypes.c_void_p] * 3, *[ctypes.c_uint] * len(launch.numbers), ctypes.c_float)
        driver.call("cuLaunchKernelEx", config, function.handle, (values, types), 0)
