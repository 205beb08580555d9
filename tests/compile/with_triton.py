"""A program whose Triton has the driver of with_driver.py. What it loads is printed as JSON.

In: "hook", for a program that sets a hook of Triton's stages while it is recorded. Out: for each step the kernels that
were loaded since the step before, and whether they had marks. Run by test_triton.py in a process of its own.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "ptx"), str(ROOT / "tests" / "compile")]
sys.modules["torch"] = SimpleNamespace(Tensor=type("Tensor", (), {}))  # the examples need it where they run alone

import triton  # noqa: E402
import triton_kernels as kernels  # noqa: E402
import with_driver  # noqa: E402

from examples.triton.marked_matmul import marked_matmul  # noqa: E402
from warplens.capture import triton_builds  # noqa: E402
from warplens.capture.triton import TritonCapture  # noqa: E402


def main():
    with_driver.activate()
    x = with_driver.Memory()
    tuned = triton.autotune([triton.Config({}, num_warps=warps) for warps in (4, 8)], key=[])(kernels.layer_norm)
    steps = {}

    def step(name, launch):
        steps[name] = {"marks": launch().asm["ptx"].count("warplens.mark"), "loaded": list(with_driver.loaded)}
        with_driver.loaded.clear()

    def norm():
        return kernels.layer_norm[(4,)](x, x, x, x, 2048, 1e-5, BLOCK=2048, num_warps=8)

    def marked():
        blocks = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
        return marked_matmul[(4, 4)](x, x, x, *[512] * 6, **blocks, num_warps=8, num_stages=3)

    logs = []
    read = triton_builds._complaints
    triton_builds._complaints = lambda log: logs.append(log) or read(log)
    step("norm, before", norm)
    capture = TritonCapture(quiet=True)
    capture._point = lambda kernel, stream: None  # there is no memory for records
    with capture:
        if sys.argv[1:] == ["hook"]:
            triton.knobs.runtime.add_stages_inspection_hook = lambda *own: None if own else ("theirs", "theirs")
        step("norm", norm)
        step("marked", marked)
        step("tuned", lambda: tuned[(4,)](x, x, x, x, 2048, 1e-5, BLOCK=2048))
    step("norm, behind", norm)
    step("marked, behind", marked)
    found = {"version": triton.__version__, "steps": steps, "notes": capture.notes}
    found |= {"logs": ["registers" in log for log in logs], "variable": "TRITON_DUMP_PTXAS_LOG" in os.environ}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
