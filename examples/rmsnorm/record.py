"""Remake the recordings of RMSNorm forward, bfloat16, cold L2, warm TLB.

In: a GPU machine with torch and an installed warplens. Out: recordings/*.wlens. Without options the document's kernel
at 432 x 5120 and 528 x 5120, and the recording that ships with `warplens demo`; with --steps each step of steps.py, or
those that are named, at 4096 x 5120, some of its blocks, and some steps at the sizes where they tell most. The inputs
are set up first, warm-up launches fill the TLB, and the L2 is flushed before each launch. Writes nothing when a result
disagrees with float64.

    python examples/rmsnorm/record.py [--steps [NAME ...]]
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
OTHER_SIZES = {  # step -> rows, hidden, which blocks
    "aligned": [(432, 5120, 1), (32768, 1024, 64)],
    "overlap": [(32768, 1024, 64), (4096, 16384, 32)],
    "shaped": [(32768, 1024, 32), (4096, 16384, 16)],
}
BUNDLED_ROWS = 528
BUNDLED = REPOSITORY / "src" / "warplens" / "demo" / "rmsnorm_h200.wlens"
MAX_BUNDLED_BYTES = 300_000


def record(rows: int, step: Step = DOCUMENT, hidden: int = HIDDEN, **options: Any) -> Any:
    """A trace of one size; RuntimeError when y disagrees with float64."""
    kernel = rmsnorm.make_kernel("bfloat16", step, hidden)
    generator = torch.Generator(device="cuda").manual_seed(rows)
    x = torch.randn(rows, hidden, device="cuda", dtype=torch.bfloat16, generator=generator)
    weight = torch.randn(hidden, device="cuda", dtype=torch.bfloat16, generator=generator)
    y = torch.full_like(x, torch.nan)
    torch.cuda.synchronize()
    trace = rmsnorm.record(kernel, x, weight, y, step=step, rounds=10, warmup=3, cold_l2=True, **options)
    found = rmsnorm.compare(y, rmsnorm.expected(x, weight, rmsnorm.EPS))
    if not found.good:
        raise RuntimeError(f"y[{found.worst_index}] of {rows} x {hidden} is wrong: {found}; nothing was written")
    trace.manifest["note"] = (
        f"RMSNorm forward, {step.title}, {rows} x {hidden} bfloat16, cold L2 (examples/rmsnorm/record.py)"
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


def record_steps(names: list[str]) -> None:
    """Record the steps of these names, all where there are none, of every n-th block, so that the files stay small."""
    for step in [step_named(name) for name in names] or STEPS:
        for rows, hidden, every in [(STEP_ROWS, HIDDEN, step.record_every_block), *OTHER_SIZES.get(step.name, [])]:
            trace = record(rows, step, hidden, every_block=every)
            save(trace, RECORDINGS / f"rmsnorm_{step.name}_{rows}x{hidden}_h200.wlens")


def main() -> None:
    """Record what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", nargs="*", metavar="NAME", help="record these steps, or all, instead of the document's kernel"
    )
    options = parser.parse_args()
    device = torch.cuda.get_device_name()
    if "H200" not in device:
        sys.exit(f"the recordings are of an H200, this is {device}: use `warplens demo`, or rmsnorm.record()")
    if options.steps is not None:
        record_steps(options.steps)
    else:
        record_document()


if __name__ == "__main__":
    main()
