"""A kernel as Inductor writes it, compiled by its workers or by this process, with Triton's driver of with_triton.py.

In: the number of compile threads. Out: JSON: kernels that were loaded and whether they had marks, and those whose
launches were seen. Run by test_triton.py in a process of its own; Inductor's workers run the kernel's source.
"""

import json
import sys
from pathlib import Path

import torch  # noqa: F401
from torch._dynamo import device_interface
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile

sys.path.insert(0, str(Path(__file__).parent))
import with_driver

from warplens.capture.triton import TritonCapture

KERNEL = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import triton
import triton.language as tl
import with_driver
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties

triton_helpers.set_driver_to_gpu = with_driver.activate  # there is none
TYPES = {{"x": "*bf16", "y": "*bf16", "xnumel": "i32", "XBLOCK": "constexpr"}}
DEVICE = DeviceProperties(type="cuda", index=0, multi_processor_count=132, cc=90, major=9, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048)
ALIGNED = {{(n,): [["tt.divisibility", 16]] for n in range(3)}}

@triton_heuristics.pointwise(
    size_hints={{"x": 1 << 20}}, filename=__file__, min_elem_per_thread=0,
    triton_meta={{"signature": TYPES, "device": DEVICE, "constants": {{}}, "configs": [ALIGNED]}},
    inductor_meta={{"grid_type": "Grid1D", "autotune_hints": set(), "kernel_name": "triton_poi_fused_silu_0",
        "mutated_arg_names": [], "optimize_mem": True, "no_x_dim": None, "num_load": 1, "num_reduction": 0,
        "backend_hash": "x", "autotune_local_cache": True, "autotune_pointwise": True, "spill_threshold": 16}},
)
@triton.jit
def triton_poi_fused_silu_0(x, y, xnumel, XBLOCK: tl.constexpr):
    at = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    value = tl.load(x + at, at < xnumel).to(tl.float32)
    tl.store(y + at, value * tl.sigmoid(value), at < xnumel)
"""


class Device:
    """As torch.cuda.device, of a GPU that is not there."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def main():
    gpu = device_interface.CudaInterface
    gpu.device = Device
    gpu.current_device = staticmethod(lambda: 0)
    gpu.synchronize = staticmethod(lambda *_: None)
    gpu.get_raw_stream = gpu.exchange_device = gpu.maybe_exchange_device = staticmethod(lambda *_: 0)
    with_driver.activate()
    config.compile_threads = int(sys.argv[1])
    if config.compile_threads > 1:
        AsyncCompile.use_process_pool = classmethod(lambda _: True)  # which else waits for a pool that is warm
    seen = []
    capture = TritonCapture(quiet=True)
    capture._point = lambda kernel, _: seen.append(kernel.name)  # there is no memory for records
    with capture:
        tuner = AsyncCompile().triton("triton_poi_fused_silu_0", KERNEL, device_str="cuda")
        tuner = tuner.result() if hasattr(tuner, "result") else tuner
        x = with_driver.Memory()
        tuner.launchers[0](x, x, 1 << 20, stream=0)
    facts = {"loaded": with_driver.loaded, "seen": seen, "notes": capture.notes}
    sys.stdout.write(json.dumps(facts | {"own_launcher": config.use_static_cuda_launcher}))


if __name__ == "__main__":
    main()
