"""Remake the recordings of RMSNorm forward: 432 x 5120 and 528 x 5120, bfloat16, cold L2, warm TLB.

In: a GPU machine with torch and an installed warplens. Out: recordings/*.wlens and the recording that ships with
`warplens demo`. The inputs are set up first, warm-up launches fill the TLB, and the L2 is flushed before each
launch. Writes nothing when a result disagrees with float64.

    python examples/rmsnorm/record.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import rmsnorm
import torch

REPOSITORY = Path(__file__).parents[2]
HIDDEN = 5120
ROWS = (432, 528)  # an H200 holds 396 blocks at once: both have a second wave, 528 a broad one
BUNDLED_ROWS = 528
BUNDLED = REPOSITORY / "src" / "warplens" / "demo" / "rmsnorm_h200.wlens"
MAX_BUNDLED_BYTES = 300_000


def record(kernel: Any, rows: int) -> Any:
    """A trace of one size; RuntimeError when y disagrees with float64."""
    generator = torch.Generator(device="cuda").manual_seed(rows)
    x = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16, generator=generator)
    weight = torch.randn(HIDDEN, device="cuda", dtype=torch.bfloat16, generator=generator)
    y = torch.full_like(x, torch.nan)
    torch.cuda.synchronize()
    trace = rmsnorm.record(kernel, x, weight, y, rounds=10, warmup=3, cold_l2=True)
    found = rmsnorm.compare(y, rmsnorm.expected(x, weight, rmsnorm.EPS))
    if not found.good:
        raise RuntimeError(f"y[{found.worst_index}] of {rows} x {HIDDEN} is wrong: {found}; nothing was written")
    trace.manifest["note"] = f"RMSNorm forward, {rows} x {HIDDEN} bfloat16, cold L2 (examples/rmsnorm/record.py)"
    return trace


def main() -> None:
    """Record all sizes, then write all files."""
    device = torch.cuda.get_device_name()
    if "H200" not in device:
        sys.exit(f"the recordings are of an H200, this is {device}: use `warplens demo`, or rmsnorm.record()")
    kernel = rmsnorm.make_kernel("bfloat16")
    traces = {rows: record(kernel, rows) for rows in ROWS}
    for rows, trace in traces.items():
        path = REPOSITORY / "recordings" / f"rmsnorm_{rows}x{HIDDEN}_h200.wlens"
        path.parent.mkdir(exist_ok=True)
        trace.save(path)
        print(f"wrote {path} ({path.stat().st_size:,} bytes)")
    traces[BUNDLED_ROWS].save(BUNDLED)
    bundled_bytes = BUNDLED.stat().st_size
    print(f"wrote {BUNDLED} ({bundled_bytes:,} bytes)")
    if bundled_bytes > MAX_BUNDLED_BYTES:
        sys.exit(f"{BUNDLED.name} has {bundled_bytes:,} bytes; at most {MAX_BUNDLED_BYTES:,} may ship")


if __name__ == "__main__":
    main()
