"""A program whose Triton has no GPU: a driver that loads and launches nothing. What it loads is printed as JSON.

In: nothing. Out: for each step the kernels that were loaded since the step before, and whether they had marks. Run by
test_triton.py in a process of its own.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "ptx")]
sys.modules["torch"] = SimpleNamespace(Tensor=type("Tensor", (), {}))  # the examples need it where they run alone

import triton  # noqa: E402
import triton_kernels as kernels  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.driver import DriverBase  # noqa: E402

from examples.triton.marked_matmul import marked_matmul  # noqa: E402
from warplens.capture.triton import TritonCapture  # noqa: E402

loaded = []


class Utilities:
    """What Triton loads machine code with."""

    def load_binary(self, name, code, shared, device):
        loaded.append([name, b"warplens" in code])
        return 1, 2, 32, 0, 1024

    def get_device_properties(self, device):
        return {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": 32}

    def unload_module(self, module):
        pass


class Driver(DriverBase):
    """Of an H200 that is not there."""

    def __init__(self):
        self.utils = Utilities()
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device=0: 0
        self.launcher_cls = lambda source, metadata: lambda *arguments: None

    @classmethod
    def is_active(cls):
        return True

    def map_python_to_cpp_type(self, kind):
        return kind

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self):
        return None

    def get_benchmarker(self):
        return lambda call, quantiles: (call(), [1.0, 1.0, 1.0])[1]


class Memory:
    """A tensor on that GPU."""

    dtype = "bfloat16"

    def data_ptr(self):
        return 1 << 20


def main():
    triton.runtime.driver.set_active(Driver())
    x = Memory()
    tuned = triton.autotune([triton.Config({}, num_warps=warps) for warps in (4, 8)], key=[])(kernels.layer_norm)
    steps = {}

    def step(name, launch):
        steps[name] = {"marks": launch().asm["ptx"].count("warplens.mark"), "loaded": list(loaded)}
        loaded.clear()

    def norm():
        return kernels.layer_norm[(4,)](x, x, x, x, 2048, 1e-5, BLOCK=2048, num_warps=8)

    def marked():
        blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
        return marked_matmul[(4, 4)](x, x, x, *[512] * 6, **blocks, num_warps=8, num_stages=3)

    step("norm, before", norm)
    capture = TritonCapture(quiet=True)
    capture._point = lambda kernel, stream: None  # there is no memory for records
    with capture:
        step("norm", norm)
        step("marked", marked)
        step("tuned", lambda: tuned[(4,)](x, x, x, x, 2048, 1e-5, BLOCK=2048))
    step("norm, behind", norm)
    step("marked, behind", marked)
    sys.stdout.write(json.dumps({"version": triton.__version__, "steps": steps, "notes": capture.notes}))


if __name__ == "__main__":
    main()
