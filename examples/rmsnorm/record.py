"""Remake the recordings of RMSNorm forward, bfloat16, cold L2, warm TLB.

In: a GPU machine with torch and an installed warplens. Out: recordings/*.wlens. Without options the document's kernel
at 432 x 5120 and 528 x 5120, and the recording that ships with `warplens demo`; with --steps each step of steps.py at
4096 x 5120, some of its blocks, and one at 432 x 5120. The inputs are set up first, warm-up launches fill the TLB, and
the L2 is flushed before each launch. Writes nothing when a result disagrees with float64.

    python examples/rmsnorm/record.py [--steps]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import rmsnorm
import torch
from steps import DOCUMENT, STEPS, Step, step_named

REPOSITORY = Path(__file__).parents[2]
RECORDINGS = REPOSITORY / "recordings"
HIDDEN = 5120
ROWS = (432, 528)  # an H200 holds 396 blocks at once: both have a second wave, 528 a broad one
STEP_ROWS = 4096
BUNDLED_ROWS = 528
BUNDLED = REPOSITORY / "src" / "warplens" / "demo" / "rmsnorm_h200.wlens"
MAX_BUNDLED_BYTES = 300_000


def record(rows: int, step: Step = DOCUMENT, **options: Any) -> Any:
    """A trace of one size; RuntimeError when y disagrees with float64."""
    kernel = rmsnorm.make_kernel("bfloat16", step)
    generator = torch.Generator(device="cuda").manual_seed(rows)
    x = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16, generator=generator)
    weight = torch.randn(HIDDEN, device="cuda", dtype=torch.bfloat16, generator=generator)
    y = torch.full_like(x, torch.nan)
    torch.cuda.synchronize()
    trace = rmsnorm.record(kernel, x, weight, y, step=step, rounds=10, warmup=3, cold_l2=True, **options)
    found = rmsnorm.compare(y, rmsnorm.expected(x, weight, rmsnorm.EPS))
    if not found.good:
        raise RuntimeError(f"y[{found.worst_index}] of {rows} x {HIDDEN} is wrong: {found}; nothing was written")
    trace.manifest["note"] = (
        f"RMSNorm forward, {step.title}, {rows} x {HIDDEN} bfloat16, cold L2 (examples/rmsnorm/record.py)"
    )
    return trace


def save(trace: Any, path: Path) -> int:
    """Write a trace; the bytes of its file."""
    path.parent.mkdir(exist_ok=True)
    trace.save(path)
    size_bytes = path.stat().st_size
    print(f"wrote {path} ({size_bytes:,} bytes)")
    return size_bytes


def record_document() -> None:
    """Record the document's kernel at both sizes, then write the three files."""
    traces = {rows: record(rows) for rows in ROWS}
    for rows, trace in traces.items():
        save(trace, RECORDINGS / f"rmsnorm_{rows}x{HIDDEN}_h200.wlens")
    if save(traces[BUNDLED_ROWS], BUNDLED) > MAX_BUNDLED_BYTES:
        sys.exit(f"{BUNDLED.name} is too large: at most {MAX_BUNDLED_BYTES:,} bytes may ship")


def record_steps() -> None:
    """Record every step, of every n-th block, so that the files stay small; and one at the article's size, whole."""
    for step in STEPS:
        trace = record(STEP_ROWS, step, every_block=step.record_every_block)
        save(trace, RECORDINGS / f"rmsnorm_{step.name}_{STEP_ROWS}x{HIDDEN}_h200.wlens")
    aligned = record(ROWS[0], step_named("aligned"))
    save(aligned, RECORDINGS / f"rmsnorm_aligned_{ROWS[0]}x{HIDDEN}_h200.wlens")


def main() -> None:
    """Record what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", action="store_true", help="record the steps instead of the document's kernel")
    options = parser.parse_args()
    device = torch.cuda.get_device_name()
    if "H200" not in device:
        sys.exit(f"the recordings are of an H200, this is {device}: use `warplens demo`, or rmsnorm.record()")
    if options.steps:
        record_steps()
    else:
        record_document()


if __name__ == "__main__":
    main()
