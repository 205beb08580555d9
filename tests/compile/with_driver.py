"""A driver for Triton that loads and launches nothing, so that all in front of it runs without a GPU.

In: machine code. Out: `loaded`: name and whether there were marks. Imported by with_triton.py and with_inductor.py, and
by Inductor's workers.
"""

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

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


def activate():
    """Has Triton use it."""
    triton.runtime.driver.set_active(Driver())
